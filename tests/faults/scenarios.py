"""Commands whose file operations fail (run.py), on tiny data."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from faults.run import Scenario
from support.inprocess import run_ranks

import dslide
from dslide.checkpoint import replicator
from dslide.checkpoint.collective_load import load_on_all_ranks
from dslide.checkpoint.run_folder import checkpoints
from dslide.checkpoint.saved_model import load_model, save_model
from dslide.cli import COMMANDS, main
from dslide.comm import Communicator
from dslide.launch.exit import run_to_end

for name in COMMANDS:  # once, not in each of the many processes that run commands
    importlib.import_module(f"dslide.cli.{name}")

TRAIN = ["--hidden", "4", "--threads", "1", "--validation", "0", "--batch-size", "8", "--checkpoints-kept", "1"]
TRAIN += ["--checkpoint-seconds", "0", "--quiet", "--k", "1"]
Digest = str


def data(folder: Path) -> Path:
    return folder / "data.tsv"


def prepare_data(folder: Path) -> None:
    rows = [f"label {i % 4}\tword{i % 5} word{i % 3} more\n" for i in range(24)]
    data(folder).write_text("".join(rows))


def prepare_run(folder: Path) -> None:
    """A run of one epoch."""
    prepare_data(folder)
    assert main(["train", str(data(folder)), "--out", str(folder / "run"), "--epochs", "1", *TRAIN]) == 0


def digest(model: Any) -> Digest:
    """Of all that training goes on from."""
    about = hashlib.sha256()
    for name in sorted(model.state):
        about.update(name.encode() + np.ascontiguousarray(model.state[name]).tobytes())
    return about.hexdigest() + repr((model.label_names, model.progress.get("step")))


def state(folder: Path) -> Digest:
    return digest(load_model(folder, optimizer=True, verify=True))


def files(*names: str) -> Callable[[Path], object]:
    """The content of files and folders, and that nothing temporary is beside them."""

    def found(folder: Path) -> dict[str, bytes]:
        left = [path.name for path in folder.iterdir() if path.name.startswith(".") or ".new" in path.name]
        assert not left, left
        paths = [path for name in names for path in [folder / name, *sorted((folder / name).rglob("*"))]]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}

    return found


def absent_or_whole(name: str, result: Callable[[Path], object]) -> Callable[[Path], None]:
    """It appears complete or not at all."""

    def check(folder: Path) -> None:
        if os.path.lexists(folder / name):
            result(folder)

    return check


def unless(name: str, command: Callable[[Path], int]) -> Callable[[Path], None]:
    """The command given again, unless it is done."""

    def again(folder: Path) -> None:
        clean(folder)
        if not os.path.lexists(folder / name):
            assert command(folder) == 0

    return again


def clean(folder: Path) -> None:
    """Removes what a process that was killed could not: temporary files beside their places."""
    import shutil

    for path in folder.iterdir():
        if path.name.endswith(".partial"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


# ---- runs -----------------------------------------------------------------------------------------------------------


def resume(folder: Path) -> int:
    return main(["train", str(data(folder)), "--resume", str(folder / "run"), "--epochs", "2", *TRAIN[-2:], "--quiet"])


def resume_again(folder: Path) -> None:
    clean(folder / "run")
    if load_model(folder / "run").progress["epoch"] < 2:
        assert resume(folder) == 0


def begin(folder: Path) -> int:
    """A new run, or what there is of it."""
    options = {"hidden": (4,), "threads": 1, "validation": 0.0, "batch_size": 8, "checkpoint_seconds": 0.0, "epochs": 1}
    return run_to_end(lambda: dslide.train(data(folder), out=folder / "run", resume_existing=True, **options) and 0)


def opens_if_there(folder: Path) -> None:
    if checkpoints(folder / "run"):
        state(folder / "run")


def of_run(folder: Path) -> object:
    return state(folder / "run")


# ---- ranks with disks of their own ----------------------------------------------------------------------------------


def on_ranks(folder: Path, epochs: int) -> None:
    replicator.SHARE = 0.9  # no pauses
    options = {"hidden": (4,), "threads": 1, "validation": 0.0, "batch_size": 8, "checkpoint_seconds": 0.0}

    def work(comm: Communicator) -> None:
        run = folder / f"disk{comm.rank}" / "run"
        dslide.train(
            data(folder), out=run, resume_existing=True, comm=comm, epochs=epochs, checkpoints_kept=1, **options
        )

    run_ranks(2, work, limit=5.0)


def prepare_ranks(folder: Path) -> None:
    prepare_data(folder)
    on_ranks(folder, 1)


def ranks_state(folder: Path) -> object:
    """Of both disks."""

    def work(comm: Communicator) -> Digest:
        return digest(load_on_all_ranks(folder / f"disk{comm.rank}" / "run", comm, optimizer=True, verify=True))

    return run_ranks(2, work)


# ---- models ---------------------------------------------------------------------------------------------------------


def prepare_models(folder: Path) -> None:
    """A run of two epochs, and the model after one, which is replaced by that after two."""
    prepare_run(folder)
    save_model(folder / "model", load_model(folder / "run", optimizer=True))
    assert resume(folder) == 0
    (folder / "before").write_text(state(folder / "model"))
    (folder / "after").write_text(state(folder / "run"))


def save(folder: Path) -> int:
    return run_to_end(lambda: save_model(folder / "model", load_model(folder / "run", optimizer=True)) or 0)


def one_or_the_other(folder: Path) -> None:
    assert state(folder / "model") in ((folder / "before").read_text(), (folder / "after").read_text())


def of_model(folder: Path) -> object:
    assert not (folder / "model.new").exists()
    return state(folder / "model")


def command(*words: str) -> Callable[[Path], int]:
    """A command line with the folder's files in it, which are in braces."""
    return lambda folder: main([str(folder / word[1:-1]) if word.startswith("{") else word for word in words])


def _making(prepare: Callable[[Path], None], act: Callable[[Path], int], result: Callable[[Path], object]) -> Scenario:
    """A command that makes `out`."""
    return Scenario(prepare, act, absent_or_whole("out", result), unless("out", act), result)


def _opened(folder: Path) -> object:
    return digest(load_model(folder / "out", verify=True))


SCENARIOS = {
    "resume": Scenario(prepare_run, resume, of_run, resume_again, of_run),
    "train": Scenario(prepare_data, begin, opens_if_there, begin, of_run),
    "ranks": Scenario(
        prepare_ranks, lambda folder: run_to_end(lambda: on_ranks(folder, 2) or 0), ranks_state,
        lambda folder: on_ranks(folder, 2), ranks_state,
    ),
    "save": Scenario(prepare_models, save, one_or_the_other, save, of_model),
    "convert": _making(prepare_data, command("convert", "{data.tsv}", "{out}"), files("out")),
    "export": _making(prepare_run, command("export", "{run}", "{out}", "--weights", "int8"), _opened),
    "arrays": _making(prepare_run, command("export", "{run}", "{out}", "--arrays"), files("out")),
    "relabel": _making(prepare_run, command("relabel", "{run}", "{out}"), _opened),
    "vectors": _making(prepare_run, command("vectors", "{run}", "--output", "{out}"), files("out")),
    "predict": _making(prepare_run, command("predict", "{run}", "{data.tsv}", "--output", "{out}"), files("out")),
}  # fmt: skip
