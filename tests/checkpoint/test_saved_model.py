"""Model folders: what is saved comes back, a failed save harms nothing, and damage is named."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.saved_models import network_state

from dslide.checkpoint.manifest import FORMAT, Manifest, write_json
from dslide.checkpoint.saved_model import SavedModel, load_model, save_model
from dslide.config import Config
from dslide.errors import ModelError

CONFIG = Config(hidden=(4,), learning_rate=0.125, optimizer="adagrad")
READS = f"this version of dslide reads format {FORMAT} only"


def a_model(scale: float = 1.0, **changes: Any) -> SavedModel:
    state = network_state(CONFIG, features=3, labels=2)
    state["layer0.weights"][:] = scale
    model = SavedModel(
        config=dataclasses.replace(CONFIG),
        features=3,
        labels=2,
        state=state,
        label_names=["Öl\n\t", ""],
        feature_names=["a", "b", '"'],
        vectorizer={"options": {}, "words": ["a", "b", '"'], "df": [2, 1, 1], "rows": 2},
        progress={"step": 7, "epoch": 1},
        label_counts=np.array([5, 6]),
        rows=9,
        base=1,
        interactions=False,  # else features and labels are as many
        estimator={"multilabel": False},
    )
    return dataclasses.replace(model, **changes)


def same(a: SavedModel, b: SavedModel) -> None:
    for field in dataclasses.fields(SavedModel):
        if field.name not in ("state", "label_counts"):
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    assert set(a.state) == set(b.state)
    for name in a.state:
        np.testing.assert_array_equal(a.state[name], b.state[name])
    np.testing.assert_array_equal(a.label_counts, b.label_counts)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", a_model())
    return tmp_path / "model"


def test_everything_comes_back(folder: Path) -> None:
    same(load_model(folder, optimizer=True, verify=True), a_model())


def test_optional_parts_may_be_missing(tmp_path: Path) -> None:
    bare = a_model(
        label_names=None, feature_names=None, vectorizer=None, progress={}, label_counts=None, estimator=None
    )
    save_model(tmp_path / "m", bare)
    same(load_model(tmp_path / "m", optimizer=True), bare)


def rewrite_config(folder: Path, change: Any) -> None:
    """Changes config.json, and the manifest with it."""
    options = json.loads((folder / "config.json").read_text())
    change(options)
    entry = write_json(folder / "config.json", options)
    manifest = Manifest.read(folder)
    manifest.files["config.json"] = entry
    manifest.write(folder)


def test_interactions_are_true_or_false(folder: Path) -> None:
    rewrite_config(folder, lambda options: options.pop("interactions"))
    with pytest.raises(ModelError, match=r"config\.json: interactions: expected true or false, not None"):
        load_model(folder)
    rewrite_config(folder, lambda options: options.update(interactions="yes"))
    with pytest.raises(ModelError, match=r"config\.json: interactions: expected true or false, not 'yes'"):
        load_model(folder)


def test_optimizer_state_is_kept_apart(folder: Path) -> None:
    weights = {"layer0.weights", "layer0.bias", "layer1.weights", "layer1.bias", "calibration"}
    assert set(load_model(folder).state) == weights
    assert set(load_model(folder, optimizer=True).state) == set(a_model().state) > weights
    save_model(folder, a_model(), optimizer=False)
    assert set(load_model(folder).state) == weights
    with pytest.raises(ModelError, match=r"there is no optimizer\.safetensors; it was saved without the state"):
        load_model(folder, optimizer=True)


def test_a_model_is_replaced_and_nothing_stays_beside_it(folder: Path) -> None:
    save_model(folder, a_model(2.0))
    assert load_model(folder).state["layer0.weights"][0, 0] == 2
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_the_arrays_in_use_may_be_those_of_the_model_replaced(folder: Path) -> None:
    loaded = load_model(folder, optimizer=True)
    save_model(folder, loaded)
    same(load_model(folder, optimizer=True, verify=True), a_model())


def test_other_folders_and_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/1.jpg").write_bytes(b"x")
    with pytest.raises(ModelError, match="photos: exists and is not a model folder"):
        save_model(tmp_path / "photos", a_model())
    assert (tmp_path / "photos/1.jpg").exists()
    with pytest.raises(ModelError, match=r"1\.jpg: is not a folder"):
        save_model(tmp_path / "photos/1.jpg", a_model())


def test_a_crash_between_the_two_renames_loses_nothing(folder: Path) -> None:
    folder.rename(folder.with_name("model.old"))  # the moment before model.new becomes model
    shutil.copytree(folder.with_name("model.old"), folder.with_name("model.new"))
    same(load_model(folder, optimizer=True), a_model())
    save_model(folder, a_model(2.0))
    assert load_model(folder).state["layer0.weights"][0, 0] == 2
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_a_crash_before_the_old_one_is_removed_keeps_the_new_one(folder: Path) -> None:
    save_model(folder.with_name("model.old"), a_model(9.0))
    assert load_model(folder).state["layer0.weights"][0, 0] == 1
    save_model(folder, a_model(2.0))
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


FULL_DISK = """
import resource, signal, sys
import numpy as np
from dslide.config import Config
from dslide.errors import ModelError
from dslide.checkpoint.saved_model import SavedModel, save_model
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
state = {"layer0.weights": np.zeros(int(sys.argv[2]), np.float32)}
try:
    save_model(sys.argv[1], SavedModel(Config(), 1, 1, state))
except ModelError as error:
    sys.exit(str(error))
"""


def test_a_full_disk_leaves_the_old_model_and_nothing_else(folder: Path) -> None:
    def save(floats: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", FULL_DISK, str(folder), str(floats)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    failed = save(1_000_000)
    assert failed.stderr == f"{folder}: the model can't be saved: File too large\n"
    assert failed.returncode == 1
    same(load_model(folder, optimizer=True, verify=True), a_model())
    assert [p.name for p in folder.parent.iterdir()] == ["model"]
    assert save(10).returncode == 0  # the limit alone is not what fails


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="the model can't be saved: Not a directory"):
        save_model(tmp_path / "file/model", a_model())


TENSORS = ["weights.safetensors", "optimizer.safetensors", "label_counts.safetensors"]
TEXTS = ["config.json", "labels.json", "features.json", "vectorizer.json", "progress.json", "estimator.json"]
TEXTS += ["manifest.json"]
ALL_FILES = sorted(TENSORS + TEXTS)


def test_the_files_of_a_model(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == ALL_FILES


@pytest.mark.parametrize("name", ALL_FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name):
        load_model(folder, optimizer=True)


def test_prediction_needs_no_optimizer_state(folder: Path) -> None:
    (folder / "optimizer.safetensors").unlink()
    assert load_model(folder, verify=True).state["layer0.weights"][0, 0] == 1


@pytest.mark.parametrize("name", ALL_FILES)
def test_a_truncated_file_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=rf"{name}: damaged: (it has \d+ bytes, but|not valid JSON)"):
        load_model(folder, optimizer=True)


@pytest.mark.parametrize("name", [n for n in ALL_FILES if n != "manifest.json"])
def test_a_changed_byte_is_found(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"{name}: damaged: its checksum"):
        load_model(folder, optimizer=True, verify=True)
    if name.endswith(".json"):
        with pytest.raises(ModelError, match=f"{name}: damaged: its checksum"):
            load_model(folder)


def test_no_folder_and_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing: there is no such model folder"):
        load_model(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"not a complete model folder: there is no manifest\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": FORMAT + 1, "dslide": "9.9"}, rf"has format {FORMAT + 1} \(written by dslide 9\.9\), {READS}"),
        ({"format": 5}, rf"m.*manifest\.json: the model has format 5 \(.*\), {READS}"),
        ({"format": str(FORMAT)}, f"the model has format '{FORMAT}' .* {READS}"),
        ({"format": float(FORMAT)}, rf"the model has format {FORMAT}\.0 .* {READS}"),
        ({"format": None}, f"the model has format None .* {READS}"),
        ({"files": []}, "no list of files"),
        ({"files": {"../x": {"size": 1, "crc32": 1}}}, r"'\.\./x' is not a file of a model"),
        ({"files": {"/etc/passwd": {"size": 1, "crc32": 1}}}, "is not a file of a model"),
        ({"files": {"config.json": 5}}, r"no size and checksum of config\.json"),
        ({"files": {"config.json": {"size": "1", "crc32": 1}}}, r"no size and checksum of config\.json"),
        ({"files": {}}, r"there is no config\.json"),
    ],
)
def test_hostile_manifests_are_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": -1}, r"config\.json: features: expected a whole number, 1 to 2147483647, not -1"),
        ({"features": 4}, r"features\.json: expected a list of 4 names"),
        ({"label_names": ["a"]}, r"labels\.json: expected a list of 2 names"),
        ({"label_names": ["a", 5]}, r"labels\.json: expected a list of 2 names"),
        ({"label_names": {"a": 5}}, r"labels\.json: damaged: expected a JSON list"),
        ({"vectorizer": [1]}, r"vectorizer\.json: damaged: expected a JSON object"),
        ({"label_counts": np.zeros(3, np.int64)}, r"label_counts\.safetensors: counts of shape \(3,\) for 2"),
    ],
)
def test_content_that_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_model(tmp_path / "m", a_model(**changes))
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "m")


def test_options_of_a_model_are_checked(tmp_path: Path) -> None:
    model = a_model()
    object.__setattr__(model.config, "epochs", -1)
    save_model(tmp_path / "m", model)
    with pytest.raises(ModelError, match=r"config\.json: epochs: expected a whole number, at least 0, not -1"):
        load_model(tmp_path / "m")
