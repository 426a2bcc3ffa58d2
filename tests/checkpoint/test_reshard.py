"""Shards of saved models: any number of ranks reads what any other wrote; missing, damaged and hostile files are
named."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inprocess import run_ranks
from support.saved_models import (
    CONFIGS,
    FEATURES,
    LABELS,
    ONE,
    a_model,
    check,
    names_in,
    network_state,
    same_arrays,
    save,
)

from dslide.checkpoint.manifest import FORMAT
from dslide.checkpoint.saved_model import SavedModel, load_model, save_model
from dslide.comm import Communicator
from dslide.config import Config
from dslide.errors import ModelError
from dslide.model.network import Network
from dslide.model.sharding import WHOLE, Shard
from dslide.model.state_layout import array_layouts, is_parameter

SIZES = (1, 2, 3, 4, 7)

# ---- any number of ranks reads what any other wrote ----------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("wrote", SIZES)
def test_every_number_of_ranks_reads_it(tmp_path: Path, config: Config, wrote: int) -> None:
    save(tmp_path / "model", wrote, config)
    assert names_in(tmp_path) == ["model"]
    for size in SIZES:
        for rank in range(size):
            check(tmp_path / "model", config, Shard(rank, size))


UNEQUAL = [(2, 1), (1, 3), (3, 1, 2)]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("wrote", [(1,), (1, 1, 1), *UNEQUAL])
def test_every_share_reads_it(tmp_path: Path, config: Config, wrote: tuple[int, ...]) -> None:
    save(tmp_path / "model", len(wrote), config, shares=wrote)
    for shares in [(1,), (1, 1), *UNEQUAL]:
        for rank in range(len(shares)):
            check(tmp_path / "model", config, Shard(rank, len(shares), shares))


@pytest.mark.parametrize("shares", [[1], [1, 2, 3], [0, 1], [65, 1], ["1", 1], "21", [2, True]])
def test_wrong_shares_of_writers_are_damage(tmp_path: Path, shares: Any) -> None:
    save(tmp_path / "m", 2, shares=(2, 1))
    path = tmp_path / "m/manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"shares": shares}))
    with pytest.raises(ModelError, match=r"damaged: expected .*shares"):
        load_model(tmp_path / "m")


def test_arrays_written_with_other_shares_are_damage(tmp_path: Path) -> None:
    save(tmp_path / "m", 2, shares=(2, 1))
    path = tmp_path / "m/manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"shares": [1, 2]}))
    with pytest.raises(ModelError, match=r"expected|shape"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_layouts_are_those_of_the_network(config: Config) -> None:
    network = Network(config, FEATURES, LABELS)
    network.rebuild_tables()
    state = network.state()
    layouts = array_layouts(config, FEATURES, LABELS)
    assert {name: (layout.shape(), layout.dtype) for name, layout in layouts.items()} == {
        name: (array.shape, array.dtype) for name, array in state.items()
    }


def test_the_files_of_a_model(tmp_path: Path) -> None:
    save(tmp_path / "m", 3)
    shards = [f"{kind}-{rank}-of-3.safetensors" for kind in ("optimizer", "weights") for rank in range(3)]
    assert names_in(tmp_path / "m") == sorted(["config.json", "manifest.json", "progress.json", *shards])
    manifest = json.loads((tmp_path / "m/manifest.json").read_text())
    assert (manifest["format"], manifest["shards"]) == (FORMAT, 3)
    assert sorted(manifest["files"]) == [name for name in names_in(tmp_path / "m") if name != "manifest.json"]
    for name, entry in manifest["files"].items():
        assert entry["size"] == (tmp_path / "m" / name).stat().st_size


def test_a_model_is_replaced_by_one_of_another_number_of_ranks(tmp_path: Path) -> None:
    save(tmp_path / "m", 4, seed=1)
    save(tmp_path / "m", 3, seed=2)
    check(tmp_path / "m", ONE, seed=2)
    assert names_in(tmp_path) == ["m"]
    assert len(names_in(tmp_path / "m")) == 3 + 6


def test_arrays_of_a_shard_are_mapped_where_as_many_ranks_wrote_it(tmp_path: Path) -> None:
    save(tmp_path / "m", 2)
    for array in load_model(tmp_path / "m", optimizer=True, shard=Shard(1, 2)).state.values():
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_listing_arrays_assembles_none(tmp_path: Path) -> None:
    config = Config(hidden=(64,))
    run_ranks(2, lambda comm: save_model(
        tmp_path / "m", a_model(config, 20_000, 10, Shard(comm.rank, 2)), comm=comm, optimizer=False
    ))  # fmt: skip
    state = load_model(tmp_path / "m").state
    tracemalloc.start()
    assert "layer0.weights" in state
    assert "layer2.weights" not in state
    assert len(state) == len(list(state)) == 5
    assert tracemalloc.get_traced_memory()[1] < 1 << 20  # the array has 5 MB
    tracemalloc.stop()


def test_a_model_without_optimizer_state(tmp_path: Path) -> None:
    save(tmp_path / "m", 2, optimizer=False)
    assert set(load_model(tmp_path / "m").state) == {
        "calibration",
        *(f"layer{i}.{a}" for i in range(3) for a in ("weights", "bias")),
    }
    with pytest.raises(ModelError, match=r"there is no optimizer-0-of-2\.safetensors; it was saved without the state"):
        load_model(tmp_path / "m", optimizer=True)


def test_arrays_survive_the_folder_they_came_from(tmp_path: Path) -> None:
    save(tmp_path / "m", 3, seed=1)
    loaded = load_model(tmp_path / "m", optimizer=True)
    save(tmp_path / "m", 2, seed=2)
    same_arrays(loaded.state, network_state(ONE, FEATURES, LABELS, seed=1))
    save_model(tmp_path / "m", loaded)  # one rank saves what it assembled
    check(tmp_path / "m", ONE, seed=1)


MEMORY = """
import sys
from dslide.checkpoint.saved_model import load_model
from dslide.model.sharding import Shard
def peak():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
state = load_model(sys.argv[1], shard=Shard(0, int(sys.argv[2]))).state
before, largest = peak(), 0
for name in ("layer0.weights", "layer1.weights"):
    array = state[name]
    assert array[-1, 0] == array[0, 13] == 1, name
    largest = max(largest, array.nbytes)
    del array
print(peak() - before, largest)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("wrote", "reads"), [(4, 1), (1, 3)])
def test_memory_holds_the_result_and_little_else(tmp_path: Path, wrote: int, reads: int) -> None:
    """Whole arrays take 67 MB: pages of the files must not stay in memory beside the array assembled from them."""
    config, size = Config(hidden=(40,)), 349_526

    def work(comm: Communicator) -> None:
        shard = Shard(comm.rank, comm.size)
        arrays = array_layouts(config, size, size)
        state = {n: np.ones(a.shape(shard), a.dtype) for n, a in arrays.items() if is_parameter(n)}
        save_model(tmp_path / "m", SavedModel(config, size, size, state), comm=comm, optimizer=False)

    run_ranks(wrote, work)
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "m"), str(reads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    grown, largest = map(int, done.stdout.split())
    assert grown < largest + (32 << 20)


# ---- what is missing, damaged or hostile ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "model", 4)
    return tmp_path / "model"


@pytest.mark.parametrize("shard", [Shard(1, 2), Shard(1, 4), Shard(3, 8), Shard(0, 3), WHOLE], ids=str)
def test_only_files_that_are_read_have_to_be_there(folder: Path, shard: Shard) -> None:
    needed = {(n % 4) for n in range(shard.rank, 24, shard.size)}
    for rank in set(range(4)) - needed:
        for kind in ("weights", "optimizer"):
            (folder / f"{kind}-{rank}-of-4.safetensors").unlink()
    check(folder, ONE, shard)
    lost = max(needed)
    (folder / f"optimizer-{lost}-of-4.safetensors").unlink()
    same_weights = network_state(ONE, FEATURES, LABELS, shard)["layer1.weights"]
    np.testing.assert_array_equal(load_model(folder, shard=shard).state["layer1.weights"], same_weights)
    message = (
        f"{folder}/optimizer-{lost}-of-4.safetensors: is missing; rank {lost} of 4 wrote it, perhaps on another "
        f"machine, and it has to be copied here"
    )
    with pytest.raises(ModelError) as error:
        load_model(folder, optimizer=True, shard=shard)
    assert str(error.value) == message


def test_damage_is_found_in_the_files_that_are_read(folder: Path) -> None:
    path = folder / "weights-2-of-4.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    load_model(folder)
    load_model(folder, verify=True, shard=Shard(1, 4))
    with pytest.raises(ModelError, match=r"weights-2-of-4\.safetensors: damaged: its checksum"):
        load_model(folder, verify=True)
    path.write_bytes(content[:-5])
    with pytest.raises(ModelError, match=r"weights-2-of-4\.safetensors: damaged: it has \d+ bytes, but"):
        load_model(folder, shard=Shard(0, 2))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize("shards", [0, -1, 1 << 16 | 1, 10**30, "4", 4.0, True, None, [4]], ids=repr)
def test_hostile_numbers_of_shards_are_refused(folder: Path, shards: Any) -> None:
    rewrite(folder, lambda content: content.update(shards=shards))
    with pytest.raises(ModelError, match="expected a number of shards, 1 to 65536, not"):
        load_model(folder)


@pytest.mark.parametrize(
    "name",
    [
        "weights.safetensors", "weights-4-of-4.safetensors", "weights--1-of-4.safetensors",
        "weights-01-of-4.safetensors", "weights-1-of-5.safetensors", "../weights-1-of-4.safetensors",
        "weights-1-of-4.safetensors/../x", "weights-1-of-4.safetensors\n", "weights-١-of-4.safetensors",
        "labels-1-of-4.json",
    ],
    ids=repr,
)  # fmt: skip
def test_hostile_names_of_shards_are_refused(folder: Path, name: str) -> None:
    rewrite(folder, lambda content: content["files"].update({name: {"size": 1, "crc32": 1}}))
    with pytest.raises(ModelError) as error:
        load_model(folder)
    assert str(error.value) == f"{folder}/manifest.json: damaged: {name!r} is not a file of a model of 4 shards"


def test_more_shards_than_are_listed(folder: Path) -> None:
    rewrite(folder, lambda content: content["files"].pop("weights-2-of-4.safetensors"))
    load_model(folder, shard=Shard(1, 4))
    with pytest.raises(ModelError, match=r"model: there is no weights-2-of-4\.safetensors"):
        load_model(folder)
    rewrite(folder, lambda c: c.update(shards=60_000, files={"config.json": c["files"]["config.json"]}))
    with pytest.raises(ModelError, match=r"model: there is no weights-0-of-60000\.safetensors"):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("layer0.weights", np.ones((11, 8), np.float32), "layer0.weights is float32[11, 8], expected float32[11, 16]"),
        ("layer2.weights", np.ones((9, 16), np.float32), "layer2.weights is float32[9, 16], expected float32[10, 16]"),
        ("layer0.bias", np.ones((5, 1), np.float64), "layer0.bias is float64[5, 1], expected float32[5, 1]"),
        ("layer1.bias", None, "layer1.bias is missing, expected float32[3, 1]"),
        ("layer3.bias", np.ones((5, 1)), "'layer3.bias': the network that config.json describes has none"),
    ],
)  # fmt: skip
def test_arrays_that_are_not_the_networks(tmp_path: Path, name: str, array: Any, message: str) -> None:
    def work(comm: Communicator) -> None:
        model = a_model(ONE, FEATURES, LABELS, Shard(comm.rank, 4))
        if comm.rank == 0:
            changed = {**model.state, name: array}
            model.state = {n: a for n, a in changed.items() if a is not None}
        save_model(tmp_path / "m", model, comm=comm)

    run_ranks(4, work)
    with pytest.raises(ModelError) as error:
        load_model(tmp_path / "m")
    unexpected = "unexpected " if name == "layer3.bias" else ""
    assert str(error.value) == f"{tmp_path}/m/weights-0-of-4.safetensors: {unexpected}array {message}"
