"""Folders of runs from somebody else: no link in them is followed, nothing in them makes a command wait, and nothing
but what dslide wrote is removed."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.inprocess import run_ranks

import dslide
from dslide.checkpoint import saved_model
from dslide.checkpoint.replicator import Replicator
from dslide.cli import main
from dslide.comm import Communicator
from dslide.errors import ModelError, UserError
from dslide.util import atomic

OPTIONS = {"hidden": (4,), "threads": 1, "validation": 0.0, "batch_size": 8, "checkpoint_seconds": 0.0}
KINDS = ("link to a folder", "link to a file", "pipe", "device")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, in a folder with its data."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "data.txt").write_text("".join(f"{i % 4} {i % 5}:1 {5 + i % 3}:0.5\n" for i in range(24)))
    dslide.train(folder / "data.txt", out=folder / "run", epochs=1, **OPTIONS)
    return folder


class Scene:
    """A copy of the run, and things outside of it that nobody must touch."""

    def __init__(self, folder: Path) -> None:
        self.run, self.data = folder / "run", folder / "data.txt"
        self.outside = folder / "outside"
        self.outside.mkdir()
        self.step = next(path for path in (self.run / "checkpoints").iterdir() if path.is_dir())
        shutil.copytree(self.step, self.outside / "step")
        (self.outside / "step" / "notes.txt").write_text("mine\n")
        (self.outside / "file").write_text("mine, too")
        self.before = self.contents()

    def contents(self) -> dict[str, tuple[int, bytes]]:
        """All that is outside, with times of change."""
        paths = sorted(self.outside.rglob("*"))
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths}

    def plant(self, path: Path, kind: str) -> None:
        """Something in place of a file or a folder."""
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to({"link to a folder": self.outside / "step", "device": "/dev/zero"}.get(kind)
                            or self.outside / "file")  # fmt: skip

    def resume(self, **options: int) -> None:
        dslide.resume(self.run, self.data, **({"epochs": 2} | options))


@pytest.fixture
def scene(sample: Path, tmp_path: Path) -> Scene:
    shutil.copytree(sample, tmp_path / "s")
    return Scene(tmp_path / "s")


USES: dict[str, Callable[[Scene], object]] = {
    "predict": lambda scene: list(dslide.predict(scene.run, scene.data)),
    "load": lambda scene: dslide.load_model(scene.run),
    "resume": lambda scene: scene.resume(),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["latest", "step", "checkpoints", "manifest"])
def test_what_is_no_plain_file_or_folder_is_refused(scene: Scene, place: str, kind: str, use: str) -> None:
    """Each ends at once with a sentence that names it: a pipe would wait forever, a device never end."""
    places = {"latest": scene.step.parent / "latest", "step": scene.step.parent / "step-000000999",
              "checkpoints": scene.step.parent, "manifest": scene.step / "manifest.json"}  # fmt: skip
    path = places[place]
    scene.plant(path, kind)
    if (place, use) == ("latest", "resume"):  # it is not read, and is replaced
        USES[use](scene)
        assert path.read_text() == "step-000000006\n"
        assert not path.is_symlink()
    else:
        with pytest.raises(
            UserError, match=rf"{path}: is (a link, expected a (file|folder)|not a (regular file|folder))"
        ):
            USES[use](scene)
    assert scene.contents() == scene.before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["log.jsonl", "summary.json", "profile.json", "checkpoints/latest.part"])
def test_resuming_writes_through_no_link(scene: Scene, name: str, kind: str) -> None:
    path = scene.run / name
    scene.plant(path, kind)
    if name == "log.jsonl":
        with pytest.raises(ModelError, match=r"log\.jsonl: is (a link, expected a file|not a regular file)"):
            scene.resume()
    else:
        dslide.resume(scene.run, scene.data, epochs=2, profile=True)
        assert (scene.run / "summary.json").read_text().startswith("{")
        if name != "checkpoints/latest.part":
            assert path.read_text().startswith("{")
            assert not path.is_symlink()
    assert scene.contents() == scene.before


def test_event_files_are_written_through_no_link(scene: Scene) -> None:
    scene.plant(scene.run / "tensorboard", "link to a folder")
    with pytest.raises(ModelError, match="tensorboard: is a link, expected a folder"):
        dslide.resume(scene.run, scene.data, epochs=2, tensorboard=True)
    assert scene.contents() == scene.before


def test_ranks_refuse_a_linked_checkpoint_together(scene: Scene) -> None:
    scene.plant(scene.step, "link to a folder")

    def work(comm: Communicator) -> str:
        with pytest.raises(ModelError) as raised:
            dslide.resume(scene.run, scene.data, epochs=2, comm=comm)
        return str(raised.value)

    first, second = run_ranks(2, work)
    assert first == second
    assert f"{scene.step}: is a link, expected a folder" in first
    assert scene.contents() == scene.before


def test_replicas_are_written_into_no_linked_folder(scene: Scene) -> None:
    """Rank 1 has a link in place of the checkpoint that rank 0 sends a file of."""
    places = [scene.run / "checkpoints", scene.run.parent / "other"]
    places[1].mkdir()
    (places[1] / scene.step.name).symlink_to(scene.outside)

    def work(comm: Communicator) -> str:
        helper = Replicator(comm, places[comm.rank])
        error = ""
        if comm.rank == 0:
            delivery = helper.send(1, scene.step / "weights.safetensors", f"{scene.step.name}/weights.safetensors")
            while delivery.state == "running":
                pass
            error = delivery.error
        comm.barrier("sent")
        helper.close()
        return error

    assert f"{places[1] / scene.step.name}: is a link, expected a folder" in run_ranks(2, work)[0]
    assert scene.contents() == scene.before


def test_only_files_of_models_are_removed(scene: Scene) -> None:
    """Old checkpoints go, with what a crash left in them, but nothing else that is there."""
    temporary = ".weights.safetensors.0123abcd.partial"
    for name in ("notes.txt", temporary, ".notes.txt.0123abcd.partial", "weights-0-of-2.safetensors"):
        (scene.step / name).write_text("x")
    (scene.step / "config.json").unlink()
    (scene.step / "config.json").symlink_to(scene.outside / "file")
    old = scene.step.with_name("step-000000001")  # not complete; older than any that is kept
    scene.step.rename(old)
    shutil.copytree(scene.outside / "step", scene.step)
    dslide.resume(scene.run, scene.data, epochs=2, checkpoints_kept=1)
    assert sorted(path.name for path in old.iterdir()) == [".notes.txt.0123abcd.partial", "notes.txt"]
    assert [path.name for path in scene.step.iterdir()] == ["notes.txt"]
    assert scene.contents() == scene.before


@pytest.mark.parametrize("suffix", ["", ".new", ".old"])
def test_saving_a_model_removes_no_other_files(scene: Scene, suffix: str) -> None:
    saved = dslide.load_model(scene.run)
    target = scene.run.parent / "model"
    saved_model.save_model(target, saved, optimizer=False)
    beside = target.with_name(target.name + suffix)
    if suffix:
        shutil.copytree(target, beside)
    (beside / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match=rf"{beside}: (has files that are not|exists and is not)"):
        saved_model.save_model(target, saved, optimizer=False)
    assert (beside / "notes.txt").read_text() == "mine"
    assert dslide.load_model(target).labels == saved.labels


@pytest.mark.parametrize("suffix", ["", ".new", ".old"])
def test_saving_a_model_follows_no_link(scene: Scene, suffix: str) -> None:
    saved = dslide.load_model(scene.run)
    target = scene.run.parent / "model"
    saved_model.save_model(target, saved, optimizer=False)
    linked = target.with_name(target.name + suffix)
    scene.plant(linked, "link to a folder")
    with pytest.raises(ModelError, match=rf"{linked}: is a link, expected a folder"):
        saved_model.save_model(target, saved, optimizer=False)
    assert scene.contents() == scene.before


# ---- new files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planted", ["out.partial", "out.part", ".out.partial", ".out.00000000.partial"])
def test_output_goes_through_no_planted_file(
    scene: Scene, planted: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Temporary names are random; and one that was guessed is not opened if it is there."""
    if planted.startswith(".out.0"):
        monkeypatch.setattr(atomic.secrets, "token_hex", lambda count: "0" * 2 * count)
    out = scene.run.parent / "out"
    scene.plant(out.with_name(planted), "link to a file")
    code = main(["predict", str(scene.run), str(scene.data), "--output", str(out)])
    assert (code, out.exists()) == ((2, False) if planted.startswith(".out.0") else (0, True))
    assert ("can't be written: File exists" in capfd.readouterr().err) == (code == 2)
    assert out.with_name(planted).is_symlink()
    assert scene.contents() == scene.before


def test_output_replaces_no_link(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    out = scene.run.parent / "out"
    out.symlink_to(scene.outside / "new")
    assert main(["predict", str(scene.run), str(scene.data), "--output", str(out)]) == 2
    assert "out: exists already" in capfd.readouterr().err
    assert scene.contents() == scene.before


# ---- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["layer0.weights", "layer1.weights", "layer1.bias"])
def test_weights_that_are_not_finite_are_refused(scene: Scene, name: str, number: float) -> None:
    """Where checksums are verified, which reads all of them, when the model is opened; else by what they predict."""
    saved = dslide.load_model(scene.run)
    state = {key: np.array(array) for key, array in saved.state.items()}
    state[name][:, :1] = number
    model = scene.run.parent / "model"
    saved_model.save_model(model, dataclasses.replace(saved, state=state), optimizer=False)
    words = rf"weights\.safetensors: array {name} has numbers that are not finite"
    for use in (lambda: dslide.open_model(model), lambda: dslide.load_model(model, verify=True)):
        with pytest.raises(ModelError, match=words):
            use()
    opened = dslide.open_model(model, verify=False)
    for predict in (lambda: list(dslide.predict(opened, scene.data)), lambda: dslide.evaluate(opened, scene.data)):
        with pytest.raises(ModelError, match="has weights that are not finite, so it can't predict"):
            predict()
