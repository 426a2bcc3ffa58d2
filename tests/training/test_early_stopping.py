"""Early stopping: training ends when held-out rows get no better, with the network that was best on them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support.inprocess import run_ranks
from support.plain import PLAIN
from support.run_state import assert_same, state

import dslide
from dslide import Callback, Config, SlideClassifier, ValidationInfo, load_model
from dslide.checkpoint.run_folder import checkpoints
from dslide.checkpoint.saved_model import save_model
from dslide.cli import main
from dslide.data import Dataset, SparseRows, load
from dslide.errors import ConfigError, DataError, ModelError
from dslide.model.defaults import resolve
from dslide.planner.memory import plan
from dslide.training.early_stopping import hold_out_rows
from dslide.training.metrics import Evaluation

# Rows of a few random features, of which one tells the label, most of the time: soon there is only noise to learn.
ROWS, FEATURES, LABELS = 800, 400, 8
OPTIONS: dict[str, Any] = {
    **PLAIN, "hidden": (32,), "batch_size": 32, "threads": 1, "epochs": 12, "schedule": "constant", "validation": 0.25,
    "checkpoint_seconds": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> Dataset:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, LABELS, ROWS)
    shown = np.where(rng.random(ROWS) < 0.7, truth, rng.integers(0, LABELS, ROWS))
    columns = np.hstack([shown[:, None], rng.integers(LABELS, FEATURES, (ROWS, 12))])
    rows = np.repeat(np.arange(ROWS), 13)
    x = sp.csr_matrix((np.full(13 * ROWS, 0.28), (rows, columns.ravel())), (ROWS, FEATURES))
    y = sp.csr_matrix((np.ones(ROWS), (np.arange(ROWS), truth)), (ROWS, LABELS))
    return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y), source="made")


class Scores(Callback):
    """Remembers what was measured."""

    def __init__(self) -> None:
        self.infos: list[ValidationInfo] = []

    def on_validation(self, trainer: Any, info: ValidationInfo) -> None:
        self.infos.append(info)

    @property
    def scores(self) -> list[float]:
        return [info.metrics[info.metric] for info in self.infos]


# ---- a run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scores, dslide.RunResult]:
    folder, scores = tmp_path_factory.mktemp("early") / "run", Scores()
    return folder, scores, dslide.train(data, OPTIONS, out=folder, callbacks=[scores])


def test_training_ends_two_epochs_after_the_best(run: tuple[Path, Scores, dslide.RunResult]) -> None:
    _, scores, result = run
    best = int(np.argmax(scores.scores)) + 1
    assert result.summary["best_epoch"] == best
    assert result.summary["epochs"] == len(scores.infos) == best + 2 < OPTIONS["epochs"]
    assert [info.best for info in scores.infos] == [
        score > max(scores.scores[:i], default=-1) for i, score in enumerate(scores.scores)
    ]
    assert [info.ends for info in scores.infos] == [False] * (best + 1) + [True]


def test_the_best_network_is_kept(data: Dataset, run: tuple[Path, Scores, dslide.RunResult], tmp_path: Path) -> None:
    folder, scores, result = run
    best = result.summary["best_epoch"]
    alone = dslide.train(data, OPTIONS | {"epochs": best}, out=tmp_path / "alone")
    assert_same(state(folder), state(tmp_path / "alone"))
    for (name, array), other in zip(result.network.state().items(), alone.network.state().values(), strict=True):
        np.testing.assert_array_equal(array, other, err_msg=name)
    _, held_out = hold_out_rows(data, 0.25, 0)
    assert dslide.evaluate(folder, held_out)["ndcg_at_5"] == pytest.approx(max(scores.scores))


def test_the_last_network_is_kept_if_another_is_better_by_chance_only(data: Dataset, tmp_path: Path) -> None:
    scores = Scores()
    options = OPTIONS | {"validation": 0.02, "epochs": 8, "patience": 9}  # 16 rows
    result = dslide.train(data, options, out=tmp_path / "run", callbacks=[scores])
    assert 0 < max(scores.scores) - scores.scores[-1] < 0.15 / np.sqrt(16)
    assert result.summary["best_epoch"] == result.summary["epochs"] == 8
    _, held_out = hold_out_rows(data, 0.02, 0)
    result.network.calibration.reset()
    ids, _ = result.network.predict_topk(held_out.x, 5)
    evaluation = Evaluation((5,))
    evaluation.update(ids, held_out.y)
    assert evaluation.result()["ndcg_at_5"] == scores.scores[-1]


def test_the_log_says_what_was_measured(run: tuple[Path, Scores, dslide.RunResult]) -> None:
    folder, scores, _ = run
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    measured = [record for record in records if record["record"] == "validation"]
    assert [record[record["metric"]] for record in measured] == scores.scores
    assert [record["epoch"] for record in measured] == list(range(1, len(scores.infos) + 1))


def test_the_command_prints_what_it_keeps(tmp_path: Path, capfd: pytest.CaptureFixture[str], data: Dataset) -> None:
    lines = [f"{ROWS} {FEATURES} {LABELS}"]
    for row in range(ROWS):
        x, y = data.rows(row, row + 1)
        lines.append(f"{y.indices[0]} " + " ".join(f"{i}:{v:g}" for i, v in zip(x.indices, x.values, strict=True)))
    (tmp_path / "data.txt").write_text("\n".join(lines) + "\n")
    words = [w for name, v in OPTIONS.items() for w in (f"--{name.replace('_', '-')}", str(v).strip("(),"))]
    assert main(["train", str(tmp_path / "data.txt"), "--out", str(tmp_path / "run"), *words]) == 0
    out, err = capfd.readouterr()
    assert "200 rows more are held out to tell which epoch was the best (--validation 0: none)" in out
    done = json.loads((tmp_path / "run/summary.json").read_text())
    kept = f"the network after epoch {done['best_epoch']} is kept, the best on the held-out rows"
    assert f"{kept}; training ended after epoch {done['epochs']} of 12\n" in out
    assert " on held-out rows, the best so far\n" in err
    assert " on held-out rows, no better for some epochs: training ends\n" in err


# ---- interruptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["before the best", "after the best"])
def test_an_interrupted_run_ends_with_the_same_network(
    data: Dataset, run: tuple[Path, Scores, dslide.RunResult], tmp_path: Path, after: str
) -> None:
    folder, _, result = run
    steps = result.summary["steps"] // result.summary["epochs"]
    epochs = result.summary["best_epoch"] + (after == "after the best") - 0.5

    class Stop(Callback):
        def on_step(self, trainer: Any, info: Any) -> None:
            if info.step == round(epochs * steps):
                raise KeyboardInterrupt

    assert dslide.train(data, OPTIONS, out=tmp_path / "run", callbacks=[Stop()]).interrupted
    resumed = dslide.resume(tmp_path / "run", data)
    assert resumed.summary["best_epoch"] == result.summary["best_epoch"]
    assert resumed.summary["steps"] == result.summary["steps"]
    assert_same(state(tmp_path / "run"), state(folder))


def test_the_best_checkpoint_stays_until_the_end(
    data: Dataset, run: tuple[Path, Scores, dslide.RunResult], tmp_path: Path
) -> None:
    _, _, result = run
    steps = result.summary["steps"] // result.summary["epochs"]
    found: list[list[int]] = []

    class Look(Callback):
        def on_checkpoint(self, trainer: Any, step: int) -> None:
            found.append(list(checkpoints(tmp_path / "run")))

    often = {"checkpoint_seconds": 1e-3, "checkpoints_kept": 1}
    dslide.train(data, OPTIONS | often, out=tmp_path / "run", callbacks=[Look()])
    best = result.summary["best_epoch"] * steps
    later = [steps for steps in found if steps[-1] > best]
    assert later
    assert all(best in steps for steps in later)


def test_a_run_that_ended_early_is_resumed_with_more_epochs_only(
    data: Dataset, run: tuple[Path, Scores, dslide.RunResult], tmp_path: Path
) -> None:
    folder, _, result = run
    shutil.copytree(folder, tmp_path / "run")
    done = result.summary["epochs"]
    with pytest.raises(ConfigError, match=f"ended early, after {done} of 12 epochs; give more epochs than 12"):
        dslide.resume(tmp_path / "run", data)
    again = dslide.train(data, OPTIONS, out=tmp_path / "run", resume_existing=True)  # as a supervisor restarts it
    assert again.summary["steps"] == result.summary["steps"]
    more = dslide.resume(tmp_path / "run", data, epochs=13, patience=1)
    assert more.summary["epochs"] > done


def test_without_its_checkpoint_the_last_network_is_kept(
    data: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Lose(Callback):
        best = 0  # step
        pause = 0.0  # seconds

        def on_validation(self, trainer: Any, info: ValidationInfo) -> None:
            if info.best:
                self.best, self.pause = trainer.step, 0.01
            if info.ends:
                assert self.best in checkpoints(tmp_path / "run")
                for path in checkpoints(tmp_path / "run").values():
                    shutil.rmtree(path, ignore_errors=True)  # old ones are being removed anyway

        def on_step(self, trainer: Any, info: Any) -> None:
            """It is written in the background, in stages that begin with steps: those after it, of two epochs, take
            as long as that needs."""
            if self.pause and self.best not in checkpoints(tmp_path / "run"):
                time.sleep(self.pause)
                self.pause = min(1.5 * self.pause, 2.0)

    result = dslide.train(data, OPTIONS, out=tmp_path / "run", callbacks=[Lose()])
    assert "can't be used" in capfd.readouterr().err
    assert result.summary["best_epoch"] == result.summary["epochs"]
    assert load_model(tmp_path / "run").progress["step"] == result.summary["steps"]


@pytest.mark.parametrize("best", [5, {"epoch": 1}, {"epoch": "1", "step": 1, "score": 0.5, "ended": False}])
def test_a_damaged_result_in_a_checkpoint_is_refused(
    data: Dataset, run: tuple[Path, Scores, dslide.RunResult], tmp_path: Path, best: Any
) -> None:
    saved = load_model(run[0], optimizer=True)
    saved.progress["best"] = best
    save_model(tmp_path / "m", saved)
    with pytest.raises(ModelError, match=r"m: damaged: the progress of its training has best: "):
        dslide.resume(tmp_path / "m", data, epochs=20)


# ---- ranks ----------------------------------------------------------------------------------------------------------


def test_ranks_decide_alike(data: Dataset, run: tuple[Path, Scores, dslide.RunResult], tmp_path: Path) -> None:
    options = OPTIONS | {"wire": "float32"}
    one = dslide.train(data, options, out=tmp_path / "one")

    def train(comm: Any) -> dict[str, Any]:
        return dslide.train(data, options, out=tmp_path / "three", comm=comm).summary

    for summary in run_ranks(3, train):
        assert summary["best_epoch"] == one.summary["best_epoch"]
        assert summary["epochs"] == one.summary["epochs"]
    a, b = state(tmp_path / "one"), state(tmp_path / "three")
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-3, atol=1e-4, err_msg=name)


# ---- the estimator --------------------------------------------------------------------------------------------------


def test_the_estimator_keeps_the_best_network_too(data: Dataset, run: tuple[Path, Scores, dslide.RunResult]) -> None:
    folder, _, result = run
    y = data.y.to_scipy()
    model = SlideClassifier(**OPTIONS).fit(data.x, y)
    assert model.n_iter_ == result.summary["epochs"]
    assert_same({name: np.array(array) for name, array in model.network_.state().items()}, state(folder))


def test_the_copy_in_memory_is_planned() -> None:
    config = Config(hidden=(64,))
    without, kept = (plan(config, 1000, 5000, keeps_best=keeps).parts for keeps in (False, True))
    network = without["weights"] + without["optimizer state"] + without["label prior"]
    assert kept["best network"] == network
    assert without["best network"] == 0


# ---- which rows -----------------------------------------------------------------------------------------------------


def test_no_rows_are_held_out_without_a_share(data: Dataset) -> None:
    rows, held_out = hold_out_rows(data, 0.0, 0)
    assert rows is data
    assert held_out is None


def test_a_fifth_of_the_items_of_some_users_is_held_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{user} " + " ".join(map(str, rng.choice(50, 1 + user % 16, replace=False))) for user in range(200)]
    (tmp_path / "users.txt").write_text("\n".join(lines) + "\n")
    data = load(tmp_path / "users.txt", format="interactions")
    rest, held_out = hold_out_rows(data, 0.25, 0)
    assert isinstance(rest, Dataset)
    assert held_out is not None
    assert held_out.users is not None
    assert len(held_out) == 50
    assert rest.y.nnz == data.y.nnz - held_out.y.nnz
    assert 0 not in held_out.users % 16  # users of one item keep it
    np.testing.assert_array_equal(np.diff(held_out.y.indptr), np.maximum(1, (1 + held_out.users % 16) // 5))
    for row, user in enumerate(held_out.users):
        items = held_out.y.indices[held_out.y.indptr[row] : held_out.y.indptr[row + 1]]
        history = rest.y.indices[rest.y.indptr[user] : rest.y.indptr[user + 1]]
        assert not set(items) & set(history)
        assert sorted([*history, *items]) == sorted(data.y.indices[data.y.indptr[user] : data.y.indptr[user + 1]])
    with pytest.raises(DataError, match=r"a share of 0\.001 of 200 users is none with two items"):
        hold_out_rows(data, 0.001, 0)


@pytest.mark.parametrize(("several", "held_out"), [(199, 0), (200, 200), (5000, 250)])
def test_users_with_one_item_are_never_held_out_of(several: int, held_out: int) -> None:
    counts = np.where(np.arange(5000) < several, 2, 1)
    y = SparseRows(
        np.append(0, np.cumsum(counts)), np.zeros(counts.sum(), np.int32), np.ones(counts.sum(), np.float32), 9
    )
    data = Dataset(y, y, users=np.arange(5000, dtype=np.int32))
    config = resolve(Config(), 9, data)
    _, chosen = hold_out_rows(data, config.validation, 0)
    assert (0 if chosen is None else len(chosen)) == held_out


@pytest.mark.parametrize(
    ("rows", "labels", "held_out"),
    [
        (3_999, 50, 0),  # too few to spare any
        (4_000, 50, 200),
        (10_000, 50, 500),
        (40_000, 50, 1_000),
        (150_000, 50, 1_500),
        (1_000_000, 50, 2_000),
        (1_000_000, 700_000, 768),  # scoring a row against all labels takes long
        (1_000_000, 10_000_000, 200),
    ],
)
def test_how_many_rows_are_held_out(rows: int, labels: int, held_out: int) -> None:
    indptr, ones = np.arange(rows + 1), np.ones(rows, np.float32)
    x, y = (SparseRows(indptr, np.zeros(rows, np.int32), ones, columns) for columns in (10, labels))
    config = resolve(Config(), labels, Dataset(x, y))
    assert round(config.validation * rows) == held_out
    assert dataclasses.replace(config, validation=0.5).validation == 0.5
