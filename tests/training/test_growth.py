"""Training that goes on from a saved model with new rows, labels and words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inprocess import run_ranks

import dslide
from dslide.cli import main
from dslide.comm import Communicator, solo
from dslide.data import Dataset, SparseRows
from dslide.errors import ConfigError, DataError
from dslide.training.callbacks import Callback

TOPICS = [[f"{topic}word{i}" for i in range(8)] for topic in ("cat", "dog", "owl", "fox", "bee", "ant")]
OPTIONS: dict[str, Any] = {"threads": 1, "hidden": (16,), "seed": 1}


def lines(count: int, topics: range, seed: int) -> list[str]:
    """Rows of a topic's words, labelled with the topic, and with "even" or "odd"."""
    rng = np.random.default_rng(seed)
    made = []
    for topic in rng.choice(topics, count):
        words = rng.choice(TOPICS[topic], 5)
        made.append(f"topic{topic} {'even' if topic % 2 == 0 else 'odd'}\t{' '.join(words)}")
    return made


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of four topics, trained on old.tsv, and further rows with two more in new.tsv."""
    folder = tmp_path_factory.mktemp("texts")
    write(folder / "old.tsv", lines(600, range(4), 1))
    write(folder / "new.tsv", lines(200, range(2, 6), 2))
    write(folder / "test.tsv", lines(200, range(6), 3))
    dslide.train(folder / "old.tsv", out=folder / "old", epochs=4, **OPTIONS)
    return folder


def precision(run: Path, rows: list[str]) -> float:
    """The share of texts whose topic is among the two best labels."""
    found = dslide.predict(run, [row.split("\t")[1] for row in rows], k=2)
    return float(np.mean([row.split()[0] in each.names for row, each in zip(rows, found, strict=True)]))


@pytest.mark.parametrize("replay", [False, True])
def test_a_model_learns_new_labels_and_words_and_keeps_the_old_ones(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], replay: bool
) -> None:
    new, old, out = str(texts / "new.tsv"), str(texts / "old.tsv"), tmp_path / "grown"
    replayed = ["--replay", old] if replay else []
    assert main(["train", new, "--from", str(texts / "old"), "--out", str(out), "--quiet", *replayed]) == 0
    capsys.readouterr()
    model = dslide.open_model(out)
    names = dslide.open_model(texts / "old").saved.label_names
    assert model.saved.label_names is not None
    assert names is not None
    assert model.saved.label_names[: len(names)] == names
    assert {"topic4", "topic5"} <= {*model.saved.label_names}
    assert model.saved.label_counts is not None
    assert model.saved.rows > 600
    assert "beeword1" in json.dumps(model.saved.vectorizer)
    assert precision(out, lines(100, range(4, 6), 5)) > 0.95
    assert precision(out, lines(100, range(4), 6)) > 0.9
    assert precision(texts / "old", lines(100, range(4), 6)) > 0.95


def test_what_is_replayed_is_decided_by_the_labels_of_new_rows(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alike = write(tmp_path / "alike.tsv", lines(200, range(4), 8))
    how = ["--from", str(texts / "old"), "--epochs", "1"]
    old = ["--replay", str(texts / "old.tsv")]
    said = []
    for name, data, more in (
        ("a", texts / "new.tsv", old),
        ("b", texts / "new.tsv", []),
        ("c", alike, old),
        ("d", alike, []),
    ):
        assert main(["train", str(data), *how, "--out", str(tmp_path / name), *more]) == 0
        said.append(capsys.readouterr())
    again = [re.search(r"(\d+) of 600 earlier rows are trained on again: .* (\d+)% are new", each.out) for each in said]
    assert again[1] is again[3] is None
    assert again[0] is not None
    assert again[2] is not None
    assert again[2].group(1) == "0"
    assert 15 < int(again[0].group(2)) < 60  # a third have the new topics, besides even and odd
    warning = "many labels of the new rows are new, and earlier ones will be forgotten: give replay earlier rows"
    assert [warning in each.err for each in said] == [False, True, False, False]
    rows = [json.loads((tmp_path / name / "summary.json").read_text())["rows"] for name in "abcd"]
    assert rows == [200 + int(again[0].group(1)), 200, 200, 200]
    assert rows[0] > 200


def test_ranks_grow_a_model_as_one_rank_does(texts: Path, tmp_path: Path) -> None:
    def work(comm: Communicator) -> tuple[np.ndarray, np.ndarray]:
        out = tmp_path / f"of-{comm.size}"
        result = dslide.train(
            texts / "new.tsv", out=out, start_from=texts / "old", replay=texts / "old.tsv", comm=comm, threads=1,
            wire="float32", epochs=2,
        )  # fmt: skip
        x = dslide.open_model(texts / "old", comm=solo()).read(texts / "test.tsv").x
        return result.network.predict_topk(SparseRows.with_columns(x, result.network.features), 3)

    one, three = work(solo()), run_ranks(3, work)[0]
    np.testing.assert_array_equal(one[0][:, 0], three[0][:, 0])
    np.testing.assert_allclose(one[1], three[1], atol=2e-2)


class Stop(Callback):
    """Interrupts training after a few steps."""

    def on_step(self, trainer: Any, info: Any) -> None:
        if info.step == 3:
            raise KeyboardInterrupt


def test_growing_can_be_interrupted_and_resumed(texts: Path, tmp_path: Path) -> None:
    about: dict[str, Any] = {"replay": texts / "old.tsv", "threads": 1}
    whole = dslide.train(texts / "new.tsv", out=tmp_path / "whole", start_from=texts / "old", epochs=3, **about)
    begun = tmp_path / "begun"
    first = dslide.train(texts / "new.tsv", out=begun, start_from=texts / "old", epochs=3, callbacks=[Stop()], **about)
    assert first.interrupted
    resumed = dslide.resume(begun, texts / "new.tsv", **about)
    for name, array in whole.network.state().items():
        np.testing.assert_array_equal(array, resumed.network.state()[name], err_msg=name)
    with pytest.raises(DataError, match=r"not the data that .*begun was trained on"):
        dslide.resume(begun, texts / "new.tsv", epochs=5)  # without the replayed rows


def test_resuming_with_other_data_says_how_to_go_on(texts: Path) -> None:
    with pytest.raises(DataError, match=r"not the data .* to go on with other data: --from .*old"):
        dslide.resume(texts / "old", write(texts / "other.tsv", lines(50, range(4), 9)), epochs=9)


def test_numbered_labels_and_features_grow_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def data(labels: np.ndarray, columns: int) -> Dataset:
        x = np.zeros((len(labels), columns), np.float32)
        x[np.arange(len(labels)), labels * 2 + rng.integers(0, 2, len(labels))] = 1
        return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(np.eye(columns // 2)[labels]))

    old, new = data(rng.integers(0, 5, 400), 10), data(rng.integers(0, 8, 200), 16)
    dslide.train(old, out=tmp_path / "old", epochs=5, **OPTIONS)
    grown = dslide.train(new, out=tmp_path / "new", start_from=tmp_path / "old", replay=old, epochs=3)
    test = data(np.arange(8), 16)
    assert grown.summary["labels"] == 8
    assert grown.summary["features"] == 16
    assert grown.network.predict_topk(test.x, 1)[0][:, 0].tolist() == list(range(8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": (32,)}, "hidden: the model has"),
        ({"min_df": 3}, "min_df: rows are read as those that"),
        ({"autotune": 5.0}, "autotune: "),
        ({"split": "last"}, "split: "),
    ],
)
def test_options_that_cannot_change_are_refused(texts: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dslide.train(texts / "new.tsv", out=texts / "never", start_from=texts / "old", **options)


def test_from_needs_a_model_and_replay_needs_from(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, old = str(texts / "new.tsv"), str(texts / "old")
    assert main(["train", new, "--replay", new, "--out", str(texts / "never")]) == 2
    assert "replay: is for training that goes on from a model" in capsys.readouterr().err
    assert main(["train", new, "--from", old, "--resume", old]) == 2
    assert "from: a run that is resumed" in capsys.readouterr().err
