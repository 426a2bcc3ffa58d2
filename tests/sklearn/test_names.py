"""Names all the way: of labels, of texts, in models of the command line and of data frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dslide import SlideClassifier
from dslide.cli import main
from dslide.errors import DataError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of texts in which every label has a word of its own."""
    folder = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(0)
    rows = []
    for label in rng.integers(10, size=400).tolist():
        words = [f"word{label}", *(f"other{n}" for n in rng.integers(50, size=5))]
        rows.append({"text": " ".join(words), "labels": [f"label {label}"]})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--epochs", "10", "--hidden", "16", "--batch-size", "32", "--threads", "1"]
    assert main(["train", str(folder / "train.jsonl"), "--out", str(folder / "run"), *options]) == 0
    return folder / "run"


def test_classes_are_the_labels_names_and_rows_may_be_texts(run: Path) -> None:
    model = SlideClassifier.load(run)
    assert sorted(model.classes_) == sorted(f"label {n}" for n in range(10))
    columns, _ = model.predict_topk(["word3 other1", "other2 word7"], 1)
    assert model.classes_[columns[:, 0]].tolist() == ["label 3", "label 7"]
    again, _ = model.predict_topk(model.vectorizer_.transform(["word3 other1", "other2 word7"]), 1)
    np.testing.assert_array_equal(columns, again)
    assert model.predict(np.array(["word3 other1"], object)).shape == (1, 10)


def test_a_single_text_is_refused(run: Path) -> None:
    with pytest.raises(DataError, match="X: expected a list of texts, not a single one"):
        SlideClassifier.load(run).predict_topk("word3", 1)


def test_columns_of_a_data_frame_become_the_classes(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=200)
    x = np.eye(4, dtype=np.float32)[labels]
    y = pandas.DataFrame(np.eye(4, dtype=int)[labels], columns=["north", "east", "south", "west"])
    for out in (None, tmp_path / "run"):
        model = SlideClassifier(hidden=(8,), epochs=3, threads=1)
        model.fit(x, y, **({} if out is None else {"out": out}))
        assert model.classes_.tolist() == ["north", "east", "south", "west"]
    model.save(tmp_path / "model")
    for folder in ("run", "model"):
        assert SlideClassifier.load(tmp_path / folder).classes_.tolist() == ["north", "east", "south", "west"]
