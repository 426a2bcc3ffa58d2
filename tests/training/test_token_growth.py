"""A model of running text goes on with further text, which has new words."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.inprocess import run_ranks

import dslide
from dslide import Vectors
from dslide.comm import Communicator, solo
from dslide.data import TokenOptions, Tokens, load_tokens
from dslide.errors import ConfigError, DataError
from dslide.training.callbacks import Callback, StepInfo
from dslide.training.trainer import Trainer

OPTIONS: dict[str, Any] = {"format": "tokens", "window": 2, "subsample": 0.0, "min_count": 1}
SMALL: dict[str, Any] = {"hidden": (16,), "threads": 1, "batch_size": 64}
STREAM = TokenOptions(window=2, min_count=1, subsample=0.0)


def sentences(count: int, groups: range, seed: int) -> str:
    """Nouns of a group stand before verbs of the same group, and never otherwise."""
    random = np.random.default_rng(seed)
    chosen = random.choice(groups, count)
    return "\n".join(f"noun{g}x{random.integers(4)} verb{g}x{random.integers(4)} so" for g in chosen) + "\n"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of four groups, trained on old.txt, and further text with two groups more."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "old.txt").write_text(sentences(1500, range(4), 1))
    (folder / "new.txt").write_text(sentences(800, range(2, 6), 2))
    (folder / "test.txt").write_text(sentences(200, range(6), 3))
    dslide.train(folder / "old.txt", out=folder / "run", epochs=4, **OPTIONS, **SMALL)
    return folder


def loss(run: Path, text: Path, groups: range) -> float:
    """Over all words of the model, of other sentences on the groups."""
    (text / "some.txt").write_text(sentences(200, groups, 7))
    return dslide.evaluate(run, text / "some.txt")["loss"]


@pytest.mark.parametrize("replay", [None, "old.txt"])
def test_a_model_learns_new_words_and_keeps_the_old_ones(text: Path, tmp_path: Path, replay: str | None) -> None:
    earlier = None if replay is None else text / replay
    out, known = tmp_path / "grown", dslide.open_model(text / "run").saved
    result = dslide.train(text / "new.txt", out=out, start_from=text / "run", replay=earlier, epochs=4)
    model = dslide.open_model(out).saved
    assert model.label_names is not None
    assert known.label_names is not None
    assert known.label_counts is not None
    assert model.label_counts is not None
    assert model.label_names[: known.labels] == known.label_names
    assert {f"noun{group}x{i}" for group in (4, 5) for i in range(4)} <= {*model.label_names[known.labels :]}
    assert model.rows == known.rows + 3 * 800
    so = model.label_names.index("so")
    assert model.label_counts[so] == known.label_counts[known.label_names.index("so")] + 800
    assert (result.summary["rows"] > 3 * 800) is (replay is not None)
    nearest = [name for name, _ in Vectors.open(out).nearest("noun5x0", 3)]
    assert all("5x" in name for name in nearest), nearest
    before, after, of_new = (
        loss(run, text, groups) for run, groups in ((text / "run", range(4)), (out, range(4)), (out, range(4, 6)))
    )
    assert of_new < before + 0.6  # an untrained model has log(41) = 3.7, this one 2.3
    assert after < before + (0.6 if replay is None else 0.2)


def test_ranks_grow_a_model_as_one_rank_does(text: Path, tmp_path: Path) -> None:
    def work(comm: Communicator) -> np.ndarray:
        data = load_tokens(
            text / "new.txt", STREAM, dslide.open_model(text / "run", comm=solo()).saved.label_names, True
        )
        result = dslide.train(
            data, out=tmp_path / f"of-{comm.size}", start_from=text / "run", replay=text / "old.txt", comm=comm,
            threads=1, wire="float32",
        )  # fmt: skip
        return result.network.scores(data.rows(0, 30)[0], np.arange(data.labels, dtype=np.int32))

    one, three = work(solo()), run_ranks(3, work)[0]
    assert_allclose(one, three, atol=2e-2)


class Stop(Callback):
    """Presses Ctrl-C after 20 steps."""

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        if info.step == 20:
            os.kill(os.getpid(), signal.SIGINT)


def test_growing_can_be_interrupted_and_resumed(text: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"replay": text / "old.txt", "threads": 1}
    whole = dslide.train(text / "new.txt", out=tmp_path / "whole", start_from=text / "run", epochs=2, **how)
    part = tmp_path / "part"
    first = dslide.train(text / "new.txt", out=part, start_from=text / "run", epochs=2, callbacks=[Stop()], **how)
    assert first.interrupted
    resumed = dslide.resume(part, text / "new.txt", **how)
    assert not resumed.interrupted
    for name, array in whole.network.state().items():
        assert_array_equal(resumed.network.state()[name], array, err_msg=name)


def test_new_words_follow_those_of_the_model(text: Path) -> None:
    data = load_tokens(text / "new.txt", STREAM, ["so", "unheard"], more=True)
    assert data.names[:2] == ["so", "unheard"]
    assert len(data.names) == 2 + 2 * 4 * 4
    assert data.left_out == 0
    counts = data.label_counts[2:]
    assert (np.diff(counts) <= 0).all()
    rare = load_tokens(text / "new.txt", TokenOptions(min_count=800), ["noun2x0"], more=True)
    assert rare.names == ["noun2x0", "so"]


def test_a_sample_has_pieces_of_the_stream_and_keeps_its_sentences(text: Path) -> None:
    data = load_tokens(text / "old.txt", STREAM)
    some = data.sample(1500, [1])
    assert len(some) in (1500, 2000)  # with the last piece, or without
    ends = {text.split()[-1] for text in sentences_of(some)[1:-1]}
    assert "so" in ends
    assert {*sentences_of(some)[2:5]} <= {*sentences_of(data)}
    assert len(data.sample(10**9, [1])) == len(data)
    both = some.and_rows(data)
    assert sentences_of(both) == sentences_of(some) + sentences_of(data)


def sentences_of(data: Tokens) -> list[str]:
    return [" ".join(data.names[i] for i in part) for part in np.split(data.words, data.offsets[1:-1])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hold_out": 0.1}, "hold_out: has no use with text of a model that grows"),
        ({"format": "tsv"}, "format: a model of running text grows by running text"),
        ({"window": 9}, "window: the run was begun with 2"),
        ({"hidden": (8,)}, "hidden: the model has"),
    ],
)
def test_options_that_make_no_sense_are_refused(text: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dslide.train(text / "new.txt", out=text / "refused", start_from=text / "run", **options)


def test_text_of_other_words_is_refused(text: Path) -> None:
    other = load_tokens(text / "new.txt", STREAM)
    for data, replay in ((other, None), (text / "new.txt", other)):
        with pytest.raises(DataError, match="running text"):
            dslide.train(data, out=text / "refused", start_from=text / "run", replay=replay)
