"""Ranks that save and load together: what fails on one of them fails on all and harms nothing, and they need not share
a disk."""

from __future__ import annotations

import builtins
import errno
import os
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inprocess import run_ranks
from support.saved_models import FEATURES, LABELS, ONE, a_model, check, names_in, network_state, same_arrays, save

from dslide.checkpoint.collective_load import load_on_all_ranks
from dslide.checkpoint.saved_model import load_model, save_model
from dslide.comm import Communicator
from dslide.errors import ModelError
from dslide.model.sharding import Shard


def errors_of_ranks(size: int, work: Callable[[Communicator], Any]) -> list[str]:
    """The sentence that each rank ends with; they must be ModelErrors."""

    def failing(comm: Communicator) -> str:
        with pytest.raises(ModelError) as error:
            work(comm)
        return str(error.value)

    return run_ranks(size, failing)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "model", 4)
    return tmp_path / "model"


# ---- a failure on one rank -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("call", ["write weights", "write config", "mkdir", "rename"])
def test_a_disk_that_refuses_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int, call: str
) -> None:
    """Ranks 0 and 1 share a disk, rank 2 has its own; one call on a file fails on the disk of one rank."""
    disks = [tmp_path / "a", tmp_path / "a", tmp_path / "b"]

    def work(seed: int) -> Callable[[Communicator], None]:
        return lambda comm: save_model(
            disks[comm.rank] / "m", a_model(ONE, FEATURES, LABELS, Shard(comm.rank, 3), seed), comm=comm
        )

    run_ranks(3, work(1))
    new = disks[victim] / "m.new"

    failing = {
        "write weights": (builtins, "open", str(new / f".weights-{victim}-of-3.safetensors.*.partial")),
        "write config": (builtins, "open", str(new / ".config.json.*.partial")),
        "mkdir": (Path, "mkdir", str(new)),
        "rename": (Path, "rename", str(new)),
    }
    of, name, pattern = failing[call]
    real = getattr(of, name)

    def refused(path: Any, *arguments: Any, **options: Any) -> Any:
        if fnmatch(str(path), pattern):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *arguments, **options)

    monkeypatch.setattr(of, name, refused)
    said = errors_of_ranks(3, work(2))
    assert len(set(said)) == 1
    assert said[0].endswith(f"{disks[victim] / 'm'}: the model can't be saved: No space left on device")
    assert said[0].startswith(f"rank{'s 0 and 1' if call == 'mkdir' and victim == 0 else f' {victim}'}: ")
    monkeypatch.undo()
    for disk, shard in ((disks[0], Shard(0, 3)), (disks[0], Shard(1, 3)), (disks[2], Shard(2, 3))):
        assert names_in(disk) == ["m"]
        check(disk / "m", ONE, shard, seed=1)
    run_ranks(3, work(3))  # nothing that was left is in the way
    check(disks[2] / "m", ONE, Shard(2, 3), seed=3)


def test_a_path_blocked_by_a_file_on_one_machine(tmp_path: Path) -> None:
    disks = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    disks[1].write_text("")
    said = errors_of_ranks(
        3, lambda comm: save_model(disks[comm.rank] / "m", a_model(ONE, 3, 3, Shard(comm.rank, 3)), comm=comm)
    )
    assert set(said) == {f"rank 1: {disks[1]}/m: the model can't be saved: Not a directory"}
    assert names_in(disks[0]) == names_in(disks[2]) == []


def test_other_folders_are_not_replaced(tmp_path: Path) -> None:
    for name in ("photos", "photos.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(b"x")
    said = errors_of_ranks(
        3, lambda comm: save_model(tmp_path / "photos", a_model(ONE, 3, 3, Shard(comm.rank, 3)), comm=comm)
    )
    assert set(said) == {f"rank 0: {tmp_path}/photos: exists and is not a model folder, so it is not replaced"}
    assert names_in(tmp_path) == ["photos", "photos.new"]
    assert names_in(tmp_path / "photos") == names_in(tmp_path / "photos.new") == ["1.jpg"]


def test_a_rank_that_is_lost_leaves_the_old_model(folder: Path) -> None:
    """Its state can't be saved, which is not a user's mistake: for the others it is a rank that dies."""

    def work(comm: Communicator) -> None:
        model = a_model(ONE, FEATURES, LABELS, Shard(comm.rank, 4), seed=1)
        if comm.rank == 1:
            model.state = {"layer0.weights": np.zeros(3, np.complex64)}
        save_model(folder, model, comm=comm)

    with pytest.raises(TypeError, match="arrays of type complex64 can't be saved"):
        run_ranks(4, work)
    check(folder, ONE, seed=0)
    save(folder, 4, seed=2)
    check(folder, ONE, seed=2)
    assert names_in(folder.parent) == ["model"]


def test_remains_of_crashes_are_replaced(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("model.new"))
    folder.rename(folder.with_name("model.old"))
    check(folder, ONE, Shard(2, 4))
    save(folder, 2, seed=1)
    check(folder, ONE, seed=1)
    assert names_in(folder.parent) == ["model"]


# ---- ranks that share no disk --------------------------------------------------------------------------------------


def save_apart(disks: list[Path], seed: int = 0) -> None:
    def work(comm: Communicator) -> None:
        model = a_model(ONE, FEATURES, LABELS, Shard(comm.rank, comm.size), seed)
        model.label_names = [f"label {i}" for i in range(LABELS)]
        save_model(disks[comm.rank], model, comm=comm)

    run_ranks(len(disks), work)


def test_each_machine_gets_its_own_shards_and_all_small_files(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in ("a/m", "b/m", "b/other"))  # the last two differ in their name only
    for seed in (0, 1):  # the second time, folders are there
        save_apart([a, b, a, c, b], seed)
        for disk, ranks in ((a, (0, 2)), (b, (1, 4)), (c, (3,))):
            shards = [f"{kind}-{r}-of-5.safetensors" for kind in ("optimizer", "weights") for r in ranks]
            small = ["config.json", "labels.json", "manifest.json", "progress.json"]
            assert names_in(disk) == sorted(small + shards)
            for rank in ranks:
                check(disk, ONE, Shard(rank, 5), seed)
                assert load_model(disk, shard=Shard(rank, 5)).label_names == [f"label {i}" for i in range(LABELS)]
        assert names_in(tmp_path / "a") == ["m"]
        assert names_in(tmp_path / "b") == ["m", "other"]
    with pytest.raises(ModelError, match=r"weights-1-of-5\.safetensors: is missing; rank 1 of 5 wrote it"):
        load_model(a)
    for path in (*b.iterdir(), *c.iterdir()):
        if not (a / path.name).exists():
            shutil.copy(path, a)
    check(a, ONE, seed=1)


def test_ranks_load_their_shards_together(tmp_path: Path) -> None:
    disks = [tmp_path / "a/m", tmp_path / "b/m"]
    save_apart(disks)

    def work(comm: Communicator) -> None:
        loaded = load_on_all_ranks(disks[comm.rank], comm, optimizer=True, verify=True)
        same_arrays(loaded.state, network_state(ONE, FEATURES, LABELS, Shard(comm.rank, 2)))

    run_ranks(2, work)
    shutil.copytree(disks[1], tmp_path / "kept")
    save_apart(disks, seed=1)
    shutil.rmtree(disks[1])
    (tmp_path / "kept").rename(disks[1])  # as if the second machine had missed a save
    for disk, said in zip(disks, errors_of_ranks(2, work), strict=True):
        assert said.startswith(f"{disk}: the model can't be loaded: the save that rank ")
        for rank, lost in ((0, 1), (1, 0)):
            missing = f"weights-{lost}-of-2.safetensors is on no disk, optimizer-{lost}-of-2.safetensors is on no disk"
            assert f"the save that rank {rank} found: {missing}" in said
    shutil.rmtree(disks[1])
    for disk, said in zip(disks, errors_of_ranks(2, work), strict=True):
        assert said == (
            f"{disk}: the model can't be loaded: weights-1-of-2.safetensors is on no disk, "
            f"optimizer-1-of-2.safetensors is on no disk"
        )
    shutil.rmtree(disks[0])
    assert set(errors_of_ranks(2, work)) == {
        "; ".join(f"rank {rank}: {disk}: there is no such model folder" for rank, disk in enumerate(disks))
    }
