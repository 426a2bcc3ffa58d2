"""Names all the way: of labels, of texts, in models of the command line and of data frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

from dslide import Callback, SlideClassifier, ValidationInfo, _core, load
from dslide.cli import main
from dslide.data import TextOptions, TextVectorizer
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


def test_fit_takes_texts_and_any_vectorizer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=200)
    texts = [f"word{label} other{rng.integers(20)}" for label in labels]
    options = {"hidden": (8,), "epochs": 12, "threads": 1}
    for vectorizer in (None, TfidfVectorizer()):
        model = SlideClassifier(vectorizer=vectorizer, **options).fit(texts, labels)
        assert model.predict(["word3 more", "word1"]).tolist() == [3, 1]
        model.save(tmp_path / "model")
        assert ("TfidfVectorizer is not saved with the model" in capfd.readouterr().err) == (vectorizer is not None)
        loaded = SlideClassifier.load(tmp_path / "model")
        x = model.vectorizer_.transform(["word3 more", "word1"])
        assert sp.issparse(x)
        assert loaded.predict(x).tolist() == [3, 1]
    own = SlideClassifier(vectorizer=TextVectorizer(TextOptions(ngrams=2)), **options)
    own.fit(texts, labels, out=tmp_path / "run")
    loaded = SlideClassifier.load(tmp_path / "run")  # a run keeps the words too
    assert loaded.vectorizer_.options.ngrams == 2
    assert loaded.predict(["word3 more", "word1"]).tolist() == [3, 1]
    with pytest.raises(DataError, match="partial_fit sees too few texts to learn words from"):
        SlideClassifier(**options).partial_fit(texts, labels, classes=range(5))
    hashing = SlideClassifier(vectorizer=HashingVectorizer(n_features=256), **options)
    assert hashing.partial_fit(texts, labels, classes=range(5)).predict_topk(["word3"], 1)[0].shape == (1, 1)


def test_eval_set_decides_which_epoch_is_kept() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=300)
    x = np.eye(4, dtype=np.float32)[labels]
    seen: list[float] = []

    class Watch(Callback):
        def on_validation(self, trainer: object, info: ValidationInfo) -> None:
            seen.append(info.metrics["p_at_1"])

    model = SlideClassifier(hidden=(8,), epochs=3, threads=1)
    model.fit(x, labels, eval_set=(x[:50], (labels[:50] + 1) % 4), callbacks=[Watch()])  # never right
    assert seen
    assert max(seen) < 0.5
    assert model.score(x, labels) > 0.9
    with pytest.raises(DataError, match=r"eval_set: expected a pair \(X, y\)"):
        model.fit(x, labels, eval_set=x)


def test_threads_left_open_are_what_joblib_allows_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    x, y = np.eye(8, dtype=np.float32), np.arange(8) % 4
    model = SlideClassifier(hidden=(4,), epochs=1).fit(x, y)
    assert (_core.threads(), model.threads, model.network_.config.threads) == (1, 0, 1)


def test_rows_of_numbers_get_what_the_command_line_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "rows.txt"
    path.write_text(
        "".join(f"{label} {label}:1 {10 + rng.integers(9)}:0.5\n" for label in rng.integers(1, 9, size=200))
    )
    options = ["--epochs", "3", "--hidden", "8", "--threads", "1", "--quiet"]
    assert main(["train", str(path), "--out", str(tmp_path / "run"), *options]) == 0
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(path), "--k", "3"]) == 0
    expected = [list(map(int, line.split("\t"))) for line in capsys.readouterr().out.splitlines()]
    columns, _ = SlideClassifier.load(tmp_path / "run").predict_topk(load(path).x, 3)
    np.testing.assert_array_equal(columns + 1, expected)  # in the file, labels count from 1
