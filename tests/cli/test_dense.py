"""Dense rows on the command line: .npy files, embeddings beside text, no hidden layer, several ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dslide.checkpoint.saved_model import load_model
from dslide.checkpoint.vectors import Vectors
from dslide.cli import main
from dslide.errors import ModelError

CLASSES, COLUMNS, TRAIN, TEST = 30, 24, 900, 200
FAST = ["--threads", "1", "--quiet", "--epochs", "3"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clusters as float16, labels as numbers and as names, and texts that tell half of a label."""
    folder = tmp_path_factory.mktemp("dense")
    rng = np.random.default_rng(0)
    means, y = rng.standard_normal((CLASSES // 2, COLUMNS)), rng.integers(0, CLASSES, TRAIN + TEST)
    x = (means[y // 2] + 0.5 * rng.standard_normal((len(y), COLUMNS))).astype(np.float16)
    np.save(folder / "X.npy", x[:TRAIN])
    np.save(folder / "Y.npy", y[:TRAIN])
    np.save(folder / "X.tst.npy", x[TRAIN:])
    np.save(folder / "tested.npy", y[TRAIN:])
    (folder / "names.txt").write_text("".join(f"label{label}\n" for label in y[:TRAIN]))
    lines = [f"label{label}\t{'even' if label % 2 == 0 else 'odd'} number\n" for label in y]
    (folder / "text.tsv").write_text("".join(lines[:TRAIN]))
    (folder / "test.tsv").write_text("".join(lines[TRAIN:]))
    return folder


def summary(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return content


def test_a_matrix_is_trained_on_tested_resumed_and_predicted(
    files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, run = str(files / "X.npy"), tmp_path / "run"
    test = ["--test", str(files / "X.tst.npy"), "--test-y", str(files / "tested.npy")]
    assert main(["train", data, *test, "--out", str(run), "--threads", "1", "--epochs", "3"]) == 0
    assert f"{TRAIN:,} rows, {COLUMNS} features (dense), {CLASSES} labels" in capfd.readouterr().out
    assert 0.4 < summary(run)["p_at_1"] < 0.6  # of two labels with the same mean
    assert summary(run)["p_at_3"] > 0.32
    model = load_model(run)
    assert (model.config.start, model.dense_features, model.features) == ("discriminant", COLUMNS, COLUMNS)
    assert main(["evaluate", str(run), str(files / "X.tst.npy"), "--y", str(files / "tested.npy"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["p_at_1"] == pytest.approx(summary(run)["p_at_1"], abs=1e-6)
    assert main(["train", data, "--resume", str(run), "--epochs", "5", "--threads", "1", "--quiet"]) == 0
    assert main(["predict", str(run), str(files / "X.tst.npy"), "--k", "2", "--why", "1", "--probabilities"]) == 0
    lines = capfd.readouterr().out.splitlines()[-3 * TEST :]
    assert len(lines[0].split("\t")) == 2
    export = ["export", str(run), str(tmp_path / "small"), "--weights", "int8"]
    assert main(export) == 0
    assert main(["predict", str(tmp_path / "small"), str(files / "X.tst.npy")]) == 0


def test_dense_features_beside_text_tell_more(files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, run = [str(files / "text.tsv"), "--test", str(files / "test.tsv")], tmp_path / "run"
    dense = ["--embeddings", str(files / "X.npy"), "--test-embeddings", str(files / "X.tst.npy")]
    assert main(["train", *text, *dense, "--out", str(run), "--threads", "1"]) == 0
    assert capfd.readouterr().out.rstrip().endswith(f"test.tsv --embeddings {files / 'X.tst.npy'}")  # what to do next
    assert summary(run)["p_at_1"] > 0.85
    assert load_model(run).dense_features == COLUMNS
    both = [str(files / "test.tsv"), "--embeddings", str(files / "X.tst.npy")]
    assert main(["predict", str(run), *both, "--k", "1", "--why", "9"]) == 0
    assert re.search(r"\bdense \d+ [+-]", capfd.readouterr().out)
    for wrong, message in (
        ([str(files / "test.tsv")], "embeddings gives the file of the dense ones"),
        ([str(files / "X.tst.npy")], "has 24 features, 24 of them dense, but the model was trained with 27 features"),
        ([str(files / "test.tsv"), "--embeddings", str(files / "X.npy")], "has 900 rows, but"),
    ):
        assert main(["predict", str(run), *wrong]) == 2
        assert message in capfd.readouterr().err


def test_a_linear_classifier_of_cosines(files: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('hidden = []\nunit_length = "both"\ntemperature = 0.1\noutput_bias = false\n')
    run = tmp_path / "run"
    labels = ["--y", str(files / "names.txt"), "--config", str(tmp_path / "run.toml")]
    train = ["train", str(files / "X.npy"), *labels, "--hold-out", "0.2", "--out", str(run), "--threads", "1"]
    assert main([*train, "--quiet", "--epochs", "10"]) == 0
    assert summary(run)["p_at_3"] > 0.25
    model = load_model(run)
    assert (model.config.hidden, model.config.unit_length) == ((), "both")
    assert set(model.label_names or ()) == {f"label{number}" for number in range(CLASSES)}
    weights = model.state["layer0.weights"][:, :COLUMNS]
    np.testing.assert_allclose(np.linalg.norm(weights, axis=1), 1, rtol=1e-5)
    assert Vectors.open(run, "labels").matrix.shape == (CLASSES, COLUMNS)
    with pytest.raises(ModelError, match="its features have numbers but no names"):
        Vectors.open(run)


def test_options_name_no_hidden_layer(files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", str(files / "X.npy"), "--hidden", "none", "--out", str(run), *FAST]) == 0
    assert summary(run)["config"]["hidden"] == []
    assert summary(run)["parameters"] == CLASSES * (COLUMNS + 1)
    assert main(["train", str(files / "X.npy"), "--unit-length", "rows", "--out", str(tmp_path / "other")]) == 2
    assert "unit_length: is for networks without hidden layers" in capfd.readouterr().err
    assert main(["plan", str(files / "X.npy"), "--hidden", "none"]) == 0
    assert "plan: 750 parameters" in capfd.readouterr().out
    sizes = ["--features", "384", "--labels", "5000", "--rows", "1000000", "--hidden", "32", "--threads", "1"]
    assert main(["plan", *sizes, "--dense-features", "384"]) == 0
    assert "1.59 GB data" in capfd.readouterr().out  # 4 bytes of each feature, and the labels
    assert main(["plan", *sizes, "--dense-features", "385"]) == 2
    assert "--dense-features: expected 0 to 384, not 385" in capfd.readouterr().err


@pytest.mark.parametrize("options", [[], ["--hidden", "none"]], ids=["hidden", "linear"])
def test_real_ranks_train_the_same_network(options: list[str], files: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    train = ["train", str(files / "X.npy"), *options, "--wire", "float32", *FAST, "--validation", "0"]
    assert main([*train, "--out", str(one)]) == 0
    command = [sys.executable, "-m", "dslide.cli", *train, "--out", str(two), "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    expected, found = (load_model(folder).state for folder in (one, two))
    assert set(found) == set(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=2e-3, err_msg=name)
