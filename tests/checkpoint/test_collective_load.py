"""Ranks that load a model together, wherever its files lie: each gets exactly its slices of the whole, from the newest
save of which every file is on some disk."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.inprocess import InProcess, run_ranks
from support.mpi_run import run_mpi
from support.saved_models import CONFIGS, FEATURES, LABELS, ONE, a_model, names_in, network_state, same_arrays

from dslide.checkpoint import remote_arrays
from dslide.checkpoint.collective_load import load_on_all_ranks, open_newest, open_on_all_ranks, restore_network
from dslide.checkpoint.disks import buddy, find_disks
from dslide.checkpoint.remote_arrays import RemoteArrays, prior_for
from dslide.checkpoint.saved_model import SavedModel, save_model
from dslide.comm import Communicator
from dslide.comm.frames import Kind, unpack
from dslide.config import Config
from dslide.errors import ModelError
from dslide.model.label_prior import LabelPrior
from dslide.model.network import Network
from dslide.model.sharding import WHOLE, Shard
from dslide.model.state_layout import array_layouts, is_parameter


def step_name(step: int) -> str:
    return f"step-{step:09}"


def save_on(disks: Sequence[Path], step: int, config: Config = ONE, **options: Any) -> None:
    """As many ranks as disks are given save a checkpoint, each on its own, and copy its files to their buddies. The
    step is the seed of the arrays."""

    def work(comm: Communicator) -> None:
        model = a_model(config, FEATURES, LABELS, Shard(comm.rank, comm.size), step)
        model.label_names = [f"label {i}" for i in range(LABELS)]
        model.label_counts = np.arange(LABELS)
        save_model(disks[comm.rank] / step_name(step), model, comm=comm, **options)

    for disk in disks:
        disk.mkdir(parents=True, exist_ok=True)
    run_ranks(len(disks), work)
    groups = run_ranks(len(disks), lambda comm: find_disks(disks[comm.rank], comm))[0]
    for rank, disk in enumerate(disks):
        other = buddy(rank, groups)
        for path in (disk / step_name(step)).glob(f"*-{rank}-of-{len(disks)}.safetensors") if other is not None else ():
            shutil.copy(path, disks[other] / step_name(step))


def disks_of(tmp_path: Path, count: int) -> list[Path]:
    return [tmp_path / f"node-{number}/checkpoints" for number in range(count)]


def check_newest(disks: Sequence[Path], step: int, config: Config = ONE, optimizer: bool = True) -> None:
    """Ranks on these disks load their shards of the checkpoint, and write nothing."""

    def work(comm: Communicator) -> None:
        folder, model = load_newest(disks[comm.rank], comm, optimizer=optimizer)
        assert folder == disks[comm.rank] / step_name(step)
        expected = network_state(config, FEATURES, LABELS, Shard(comm.rank, comm.size), step)
        if not optimizer:
            expected = {name: array for name, array in expected.items() if is_parameter(name)}
        if comm.rank % 2:  # each rank reads in an order of its own, and some twice
            expected = dict(reversed(expected.items()))
            same_arrays(model.state, expected)
        same_arrays(model.state, expected)
        assert model.progress == {"step": step}
        assert model.label_names == [f"label {i}" for i in range(LABELS)]
        np.testing.assert_array_equal(model.label_counts, np.arange(LABELS))

    before = sorted(path for disk in disks for path in disk.rglob("*"))
    run_ranks(len(disks), work)
    assert sorted(path for disk in disks for path in disk.rglob("*")) == before


def load_newest(place: Path, comm: Communicator, **options: Any) -> tuple[Path, SavedModel]:
    """The newest checkpoint, with all transfers done."""
    found = open_newest(place, comm, **options)
    assert found is not None
    if isinstance(found[1].state, RemoteArrays):
        found[1].state.receive()
    return found


def errors_of(disks: Sequence[Path]) -> list[str]:
    def work(comm: Communicator) -> str:
        with pytest.raises(ModelError) as error:
            open_newest(disks[comm.rank], comm)
        assert error.value.collective
        return str(error.value).removeprefix(f"{disks[comm.rank]}: ")

    return run_ranks(len(disks), work)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


# ---- other numbers of ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("wrote", "reads"), [(1, 4), (4, 3), (7, 2), (4, 4), (2, 5), (3, 6)])
def test_any_number_of_ranks_reads_from_local_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrote: int, reads: int, config: Config
) -> None:
    """Readers on the nodes of the writers, as far as there are, and on new ones. Blocks are small, so that arrays
    are sent in several."""
    monkeypatch.setattr(remote_arrays, "BLOCK", 600)
    disks = disks_of(tmp_path, max(wrote, reads))
    save_on(disks[:wrote], 5, config)
    if wrote > reads + 1:  # then some shards are on no reader's disk: the nodes of others have to have them
        for disk in disks[reads:]:
            shutil.copytree(disk, disks[0], dirs_exist_ok=True)
    for optimizer in (True, False):
        check_newest(disks[:reads], 5, config, optimizer)


@pytest.mark.parametrize("order", [[3, 0, 1, 2], [1, 0, 3, 2]])
def test_ranks_may_come_back_in_another_order(tmp_path: Path, order: list[int]) -> None:
    disks = disks_of(tmp_path, 4)
    save_on(disks, 5)
    check_newest([disks[node] for node in order], 5)


class Counting(InProcess):
    """Counts the bytes that exchanges send."""

    sent = 0

    def send(self, to: int, frame: bytes) -> None:
        said = unpack(frame)
        if said is not None and said.kind in (Kind.PIECE, Kind.LAST):
            Counting.sent += len(said.content)
        super().send(to, frame)


@pytest.mark.parametrize(("wrote", "reads"), [(4, 4), (4, 3), (1, 2)])
def test_on_a_shared_disk_no_arrays_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrote: int, reads: int
) -> None:
    monkeypatch.setattr("support.inprocess.InProcess", Counting)
    disk = tmp_path / "checkpoints"
    save_on([disk] * wrote, 5)
    Counting.sent = 0

    def work(comm: Communicator) -> None:
        _, model = load_newest(disk, comm)
        same_arrays(model.state, network_state(ONE, FEATURES, LABELS, Shard(comm.rank, comm.size), 5))
        if wrote == reads:
            for array in model.state.values():
                assert not array.flags.owndata  # it is mapped

    run_ranks(reads, work)
    assert 0 < Counting.sent < reads * reads * 1000


def test_only_slices_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the file that two readers lack, each gets its own half."""
    config, features = Config(hidden=(16,), optimizer="sgd"), 4000
    monkeypatch.setattr("support.inprocess.InProcess", Counting)
    disks = disks_of(tmp_path, 3)
    run_ranks(1, lambda comm: save_model(disks[0] / step_name(1), a_model(config, features, 60), optimizer=False))
    Counting.sent = 0

    def work(comm: Communicator) -> None:
        load_newest(disks[comm.rank], comm, optimizer=False, verify=False)

    run_ranks(3, work)
    whole = sum((disks[0] / step_name(1)).joinpath(name).stat().st_size for name in ["weights.safetensors"])
    assert 0.5 * whole < Counting.sent < 0.75 * whole


# ---- what is lost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", range(4))
def test_a_node_lost_with_its_disk_loses_nothing(tmp_path: Path, lost: int) -> None:
    """4 -> 4 with an empty disk in its place, and 4 -> 3 without the node."""
    disks = disks_of(tmp_path, 4)
    save_on(disks, 5)
    shutil.rmtree(disks[lost].parent)
    check_newest(disks, 5)
    check_newest(disks[:lost] + disks[lost + 1 :], 5)


def test_two_ranks_on_each_node(tmp_path: Path) -> None:
    a, b, c = disks_of(tmp_path, 3)
    save_on([a, a, b, b, c, c], 5)
    shutil.rmtree(b)
    check_newest([a, a, b, b, c, c], 5)
    check_newest([c, a, a], 5)


@pytest.mark.parametrize("name", ["weights-1-of-3.safetensors", "optimizer-2-of-3.safetensors"])
def test_a_damaged_file_is_replaced_by_its_copy(tmp_path: Path, name: str) -> None:
    disks = disks_of(tmp_path, 3)
    save_on(disks, 4)
    save_on(disks, 5)
    owner = int(name.split("-")[1])
    damage(disks[owner] / step_name(5) / name)
    check_newest(disks, 5)
    damage(disks[(owner + 1) % 3] / step_name(5) / name)  # the copy, too
    check_newest(disks, 4)
    damage(disks[owner] / step_name(4) / "config.json")
    check_newest(disks, 4)


def test_damage_on_all_disks_is_reported(tmp_path: Path) -> None:
    disks = disks_of(tmp_path, 2)
    save_on(disks, 5)
    for disk in disks:
        damage(disk / step_name(5) / "weights-1-of-2.safetensors")
    (said,) = set(errors_of(disks))
    assert said == "no checkpoint can be used: step-000000005: weights-1-of-2.safetensors is on no disk undamaged (" + (
        "; ".join(
            f"rank {rank}: {disks[rank]}/step-000000005/weights-1-of-2.safetensors: damaged: its checksum is not the "
            f"one that was written" for rank in (1, 0)
        )
    ) + ")"  # fmt: skip
    for disk in disks:
        damage(disk / step_name(5) / "labels.json")
    (said,) = set(errors_of(disks))
    assert said == (
        f"no checkpoint can be used: step-000000005: {disks[0]}/step-000000005/labels.json: damaged: its checksum is "
        f"not the one that was written"
    )


def test_a_newer_checkpoint_that_is_incomplete_is_passed_over(tmp_path: Path) -> None:
    disks = disks_of(tmp_path, 3)
    for step in (4, 5, 6):
        save_on(disks, step)
    for disk in disks:  # of 6, one shard is nowhere; of 5, no disk has a manifest
        (disk / step_name(6) / "optimizer-0-of-3.safetensors").unlink(missing_ok=True)
        (disk / step_name(5) / "manifest.json").unlink()
    check_newest(disks, 4)
    check_newest(disks[:1] + disks_of(tmp_path / "new", 1) + disks[2:], 4)
    for disk in disks:
        shutil.rmtree(disk / step_name(4))
    (said,) = set(errors_of(disks))
    missing = "optimizer-0-of-3.safetensors is on no disk"
    assert said == f"no checkpoint can be used: step-000000006: {missing}"


def test_a_disk_that_got_no_manifest_any_more(tmp_path: Path) -> None:
    """The arrays were all written when a node stopped: they count, if they are those of the manifest that another node
    has."""
    disks = disks_of(tmp_path, 2)
    save_on(disks, 4)
    save_on(disks, 5)
    for name in ("manifest.json", "config.json"):
        (disks[1] / step_name(5) / name).unlink()
    for path in (disks[0] / step_name(5)).glob("*-1-of-2*"):  # the only copies are on the other disk
        path.unlink()
    check_newest(disks, 5)
    shutil.copy(disks[1] / step_name(4) / "weights-1-of-2.safetensors", disks[1] / step_name(5))  # of another save
    check_newest(disks, 4)

    def work(comm: Communicator) -> Any:
        return open_newest(disks[comm.rank], comm, verify=False)

    assert [folder.name for folder, _ in run_ranks(2, work)] == [step_name(4)] * 2  # without verify, too


def test_a_node_that_comes_back_with_another_save_of_the_step(tmp_path: Path) -> None:
    """It was away while the others went back to an earlier checkpoint and got as far again."""
    disks = disks_of(tmp_path, 3)
    save_on(disks, 7)
    (disks[2] / step_name(7)).rename(disks[2] / step_name(5))
    save_on(disks[:2], 5)
    for path in disks[:2]:
        shutil.rmtree(path / step_name(7))
    check_newest(disks, 5)
    check_newest(disks[::-1], 5)


def test_a_disk_that_missed_the_last_checkpoint(tmp_path: Path) -> None:
    disks = disks_of(tmp_path, 3)
    save_on(disks, 4)
    save_on(disks[:2], 5)
    check_newest(disks, 5)


def test_no_checkpoints_at_all(tmp_path: Path) -> None:
    disks = disks_of(tmp_path, 3)
    assert run_ranks(3, lambda comm: open_newest(disks[comm.rank], comm)) == [None] * 3
    for disk in disks:
        (disk / step_name(5)).mkdir(parents=True)  # which was cut short
        (disk / "step-5").mkdir()
        (disk / "latest").write_text("step-000000005")
    assert run_ranks(3, lambda comm: open_newest(disks[comm.rank], comm)) == [None] * 3
    (disks[1] / step_name(5) / "manifest.json").write_text("{")
    path = disks[1] / step_name(5) / "manifest.json"
    assert set(errors_of(disks)) == {f"no checkpoint can be used: rank 1: {path}: damaged: not valid JSON"}


def test_damage_on_a_shared_disk_is_reported_once(tmp_path: Path) -> None:
    save_on([tmp_path / "disk"] * 3, 5)
    path = tmp_path / "disk" / step_name(5) / "weights-1-of-3.safetensors"
    damage(path)
    (said,) = set(errors_of([tmp_path / "disk"] * 4))
    words = f"ranks 0, 1, 2 and 3: {path}: damaged: its checksum is not the one that was written"
    assert said == f"no checkpoint can be used: step-000000005: {path.name} is on no disk undamaged ({words})"


def test_a_folder_that_can_not_be_read(tmp_path: Path) -> None:
    """A file in its place: that is not taken for a run without checkpoints."""
    (tmp_path / "file").write_text("")
    words = f"rank 1: {tmp_path}/file: is not a folder"
    assert set(errors_of([tmp_path / "none", tmp_path / "file"])) == {f"no checkpoint can be used: {words}"}


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_checkpoint_without_what_training_needs(tmp_path: Path, ranks: int) -> None:
    disks = disks_of(tmp_path, ranks)
    save_on(disks, 5, optimizer=False)
    name = "optimizer.safetensors" if ranks == 1 else f"optimizer-0-of-{ranks}.safetensors"
    (said,) = set(errors_of(disks))
    assert said == (
        f"no checkpoint can be used: step-000000005: there is no {name}; it was saved without the state that "
        f"resuming needs"
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[int], list[set[int]]]:
    """Ranks that wrote, the node of each that reads, and the shards that each node has."""
    writers, readers = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    nodes = draw(st.lists(st.integers(0, readers - 1), min_size=readers, max_size=readers))
    has = [draw(st.sets(st.integers(0, writers - 1))) for _ in range(readers)]
    return writers, nodes, has


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Two checkpoints on one disk, by the number of ranks that wrote them."""
    places = {writers: tmp_path_factory.mktemp(f"by-{writers}") for writers in range(1, 6)}
    for writers, place in places.items():
        for step in (4, 5):
            save_on([place] * writers, step)
    return places


@settings(max_examples=30, deadline=None)
@given(case=cases(), manifests=st.sets(st.integers(0, 4)))
def test_wherever_files_lie(
    saved: dict[int, Path], case: tuple[int, list[int], list[set[int]]], manifests: set[int]
) -> None:
    """The newer checkpoint is loaded exactly if each shard, and a manifest with its small files, is on some reader's
    node; else the older one, which all have."""
    writers, nodes, has = case
    with tempfile.TemporaryDirectory() as name:
        disks = [Path(name) / f"node-{node}" for node in nodes]
        for node, disk in dict(zip(nodes, disks, strict=True)).items():
            shutil.copytree(saved[writers], disk)
            for path in (disk / step_name(5)).iterdir():
                is_shard = path.name.startswith(("weights", "optimizer"))
                shard = int(path.name.split("-")[1]) if is_shard and writers > 1 else 0
                if shard not in has[node] if is_shard else node not in manifests:
                    path.unlink()
        complete = set.union(*(has[node] for node in nodes)) == set(range(writers)) and manifests & set(nodes)
        check_newest(disks, 5 if complete else 4)


# ---- networks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wrote", "reads"), [(1, 3), (4, 3), (3, 3), (2, 4)])
def test_a_network_is_restored_from_other_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrote: int, reads: int
) -> None:
    """None of the readers but the first has any file. Each gets exactly its part of the label prior, too, and its
    arrays are received straight into those of the network."""
    from checkpoint.test_label_prior_models import CONFIG, DATA, save
    from checkpoint.test_label_prior_models import FEATURES as INPUTS
    from checkpoint.test_label_prior_models import LABELS as OUTPUTS

    monkeypatch.setattr(remote_arrays, "BLOCK", 3000)
    disks = disks_of(tmp_path, reads)
    ids, _ = save(disks[0] / step_name(3), wrote)

    def work(comm: Communicator) -> Any:
        found = open_newest(disks[comm.rank], comm)
        assert found is not None
        network = Network(CONFIG, INPUTS, OUTPUTS, comm=comm)
        restore_network(network, found[1].state)
        local = load_on_all_ranks(disks[0] / step_name(3), comm, optimizer=True)
        same_arrays(network.state(), dict(local.state))
        assert network.prior is not None
        own = network.output.arrays["weights"]
        assert np.shares_memory(found[1].state["layer1.weights"], own) == (comm.rank > 0)
        return network.predict_topk(DATA.x, 4)[0]

    for found in run_ranks(reads, work):
        np.testing.assert_array_equal(found, ids)


def test_arrays_on_other_disks_can_not_be_read_before_they_are_received(tmp_path: Path) -> None:
    """A look-up never communicates: it fails on the rank that lacks the file, and works on the one that has it."""
    disks = disks_of(tmp_path, 2)
    run_ranks(1, lambda comm: save_model(disks[0] / step_name(1), a_model(ONE, FEATURES, LABELS, WHOLE, 1)))
    expected = network_state(ONE, FEATURES, LABELS, Shard(0, 2), 1)

    def work(comm: Communicator) -> None:
        model = open_on_all_ranks(disks[comm.rank] / step_name(1), comm, optimizer=True)
        assert set(model.state) == set(expected)
        if comm.rank == 0:
            same_arrays(model.state, expected)
            return
        into = np.zeros_like(network_state(ONE, FEATURES, LABELS, Shard(1, 2))["layer0.weights"])
        with pytest.raises(RuntimeError, match=r"array layer0\.weights is on the disks of other ranks"):
            model.state["layer0.weights"]
        with pytest.raises(RuntimeError, match=r"call receive\(\) on all ranks first"):
            model.state.copy_into("layer0.weights", into)  # type: ignore[attr-defined]

    run_ranks(2, work)


def test_arrays_that_do_not_fit_are_refused_before_any_is_sent(tmp_path: Path) -> None:
    disks = disks_of(tmp_path, 2)
    run_ranks(1, lambda comm: save_model(disks[0] / step_name(1), a_model(ONE, FEATURES, LABELS, WHOLE, 1)))

    def work(comm: Communicator) -> str:
        model = open_on_all_ranks(disks[comm.rank] / step_name(1), comm, optimizer=True)
        assert isinstance(model.state, RemoteArrays)
        with pytest.raises(ModelError) as error:
            model.state.receive({"layer0.weights": np.zeros((11, 32), np.float32)})
        return str(error.value)

    message = "rank 1: array layer0.weights is float32[11, 16], expected float32[11, 32]"
    assert run_ranks(2, work) == [message] * 2


def test_the_prior_is_sent_to_the_ranks_that_have_its_labels() -> None:
    """Three writers, two readers: what a writer sends to both together is what it has."""
    from checkpoint.test_label_prior_models import CONFIG, DATA
    from checkpoint.test_label_prior_models import FEATURES as INPUTS
    from checkpoint.test_label_prior_models import LABELS as OUTPUTS

    for rank in range(3):
        prior = LabelPrior.count(DATA.x, DATA.y, INPUTS, OUTPUTS, CONFIG, Shard(rank, 3), False).state()
        sent = [prior_for(Shard(reader, 2), Shard(rank, 3), prior) for reader in range(2)]
        for reader, its in enumerate(sent):
            assert set((its["prior.neuron"] * 3 + rank) % 2) == {reader}
        assert sum(len(its["prior.weight"]) for its in sent) == len(prior["prior.weight"]) > 0


def test_a_plain_model_that_only_one_rank_has(tmp_path: Path) -> None:
    folders = [tmp_path / f"{rank}/model" for rank in range(3)]
    run_ranks(1, lambda comm: save_model(folders[1], a_model(ONE, FEATURES, LABELS, WHOLE, 8)))

    def work(comm: Communicator) -> None:
        loaded: SavedModel = load_on_all_ranks(folders[comm.rank], comm, optimizer=True, verify=True)
        same_arrays(loaded.state, network_state(ONE, FEATURES, LABELS, Shard(comm.rank, comm.size), 8))

    run_ranks(3, work)
    assert names_in(tmp_path) == ["1"]


MPI = """
import sys
from pathlib import Path
from dslide.comm import job
from dslide.checkpoint.collective_load import load_on_all_ranks
from dslide.model.sharding import Shard
from dslide.model.state_layout import is_parameter
from support.saved_models import FEATURES, LABELS, ONE, network_state, same_arrays
comm = job(20.0)
run = Path(sys.argv[1]) / f"node-{comm.rank}"
model = load_on_all_ranks(run, comm, optimizer=True, verify=True)
assert model.progress == {"step": 5}
same_arrays(model.state, network_state(ONE, FEATURES, LABELS, Shard(comm.rank, comm.size), 5))
print("done\\n", end="")
"""


@pytest.mark.parametrize("reads", [3, 4])
def test_over_mpi(tmp_path: Path, reads: int) -> None:
    disks = disks_of(tmp_path, 4)
    save_on(disks, 5)
    shutil.rmtree(disks[3])
    run = run_mpi(reads, MPI, tmp_path)
    assert run.code == 0, run
    assert run.stdout.count("done") == reads


MEMORY = """
import sys
from pathlib import Path
from dslide.comm import job
from dslide.checkpoint.collective_load import load_on_all_ranks, open_on_all_ranks, restore_network
from dslide.model.network import Network
def peak():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
comm = job(20.0)
folder = Path(sys.argv[1]) / f"{comm.rank}/m"
if sys.argv[2] == "restore":
    model = open_on_all_ranks(folder, comm, optimizer=True)
    network = Network(model.config, model.features, model.labels, comm=comm)
    before = peak()
    restore_network(network, model.state)
    state, needed = network.state(), 0
else:
    before = peak()
    model = load_on_all_ranks(folder, comm)
    sizes = [model.state[name].nbytes for name in model.state]
    state, needed = model.state, sum(sizes) if comm.rank == 1 else max(sizes)  # the first assembles one at a time
for name in ("layer0.weights", "layer1.weights"):
    array = state[name]
    assert array[-1, 0] == array[0, 9] == 1, name
    del array
for each in comm.gather_objects("memory", [peak() - before, needed]):
    if comm.rank == 0:
        print(*each)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("use", ["restore", "predict"])
def test_memory_holds_the_result_and_little_else(tmp_path: Path, use: str) -> None:
    """Two arrays of 67 MB, half of them for each of two ranks, the second of which has no file. A network that is
    restored has memory of its own for them, which they are received into; for prediction they are received once."""
    config, size = Config(hidden=(40,), optimizer="sgd", output="full"), 349_526
    state = {name: np.ones(a.shape(), a.dtype) for name, a in array_layouts(config, size, size).items()}
    save_model(tmp_path / "0/m", SavedModel(config, size, size, state, progress={"step": 1}))
    run = run_mpi(2, MEMORY, tmp_path, use)
    assert run.code == 0, run
    assert len(run.stdout.splitlines()) == 2
    for line in run.stdout.splitlines():
        grown, needed = map(int, line.split())
        assert grown < needed + (48 << 20)
