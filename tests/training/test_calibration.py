"""Calibration: a line for the logits of each group of labels, fitted to rows that the network was not trained on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support.inprocess import run_ranks
from support.plain import PLAIN

import dslide
from dslide import CalibrationInfo, Callback, Config, EpochInfo, Network, SlideClassifier, Trainer
from dslide.checkpoint.saved_model import SavedModel, save_model
from dslide.comm import Communicator
from dslide.comm.votes import Vote, Votes
from dslide.data import Dataset, SparseRows
from dslide.model.calibration import BEND, IDENTITY, LEAST, OFFSET, SLOPE, on_lines
from dslide.training.calibration import MIXED, PENALTY, Candidates, bent, calibrate, fit_lines
from dslide.training.metrics import Evaluation, hits_of, inverse_propensities
from dslide.training.run import Checkpointing

NO_GROUP = 60  # without candidates
LINES = {1: (0.4, -1.0), 3: (0.8, 0.5), 5: (1.3, 0.0)}  # slope and offset by group


def some_candidates(rows: int, count: int, sigmoid: bool, seed: int = 0) -> Candidates:
    """Candidates that are true as often as LINES says."""
    rng = np.random.default_rng(seed)
    groups = rng.choice(list(LINES), (rows, count))
    logits = rng.normal(0, 2, (rows, count))
    z = np.vectorize(lambda g: LINES[g][0])(groups) * logits + np.vectorize(lambda g: LINES[g][1])(groups)
    if sigmoid:
        hits = rng.random((rows, count)) < 1 / (1 + np.exp(-z))
    else:
        hits = np.zeros((rows, count), bool)
        hits[np.arange(rows), np.argmax(z + rng.gumbel(size=z.shape), axis=1)] = True
    ids = np.argsort(rng.random((rows, 100)), axis=1)[:, :count].astype(np.int32)
    true = sp.csr_matrix((np.ones(hits.sum()), (np.nonzero(hits)[0], ids[hits])), (rows, 100), dtype=np.float32)
    return Candidates(ids, groups, logits, np.zeros_like(logits), hits.astype(np.float64), SparseRows.from_scipy(true))


def penalised_loss(lines: np.ndarray, found: Candidates, sigmoid: bool) -> float:
    z = lines[found.groups, SLOPE] * found.logits + lines[found.groups, OFFSET]
    if sigmoid:
        loss = np.logaddexp(0, z).sum() - (found.hits * z).sum()
    else:
        loss = np.log(np.exp(z).sum(axis=1)).sum() - (found.hits * z).sum()
    change = lines[:, :LEAST] - lines[NO_GROUP, :LEAST]  # from what all groups together have
    return float(loss + (np.array(PENALTY)[[0, 2]] * change**2).sum() / 2)


@pytest.mark.parametrize("sigmoid", [True, False])
def test_the_lines_by_which_candidates_are_true_are_found(sigmoid: bool) -> None:
    lines = fit_lines(some_candidates(8000, 6, sigmoid), sigmoid)
    offsets = np.array([lines[group, OFFSET] - LINES[group][1] for group in LINES])
    if not sigmoid:
        offsets -= offsets.mean()  # of softmax only differences count
    np.testing.assert_allclose(offsets, 0, atol=0.12)
    np.testing.assert_allclose(
        [lines[group, SLOPE] for group in LINES], [line[0] for line in LINES.values()], atol=0.06
    )
    untouched = [group for group in range(len(lines)) if group not in LINES]
    np.testing.assert_array_equal(lines[untouched], np.tile(lines[NO_GROUP], (len(untouched), 1)))
    assert 0.4 < lines[NO_GROUP, SLOPE] < 1.3  # what all groups together have
    assert not lines[:, MIXED].any()


@pytest.mark.parametrize("sigmoid", [True, False])
def test_linear_classifiers_count_as_far_as_they_tell(sigmoid: bool) -> None:
    found = some_candidates(8000, 6, sigmoid)
    noise = np.random.default_rng(5).normal(0, 1, found.logits.shape)
    halved = dataclasses.replace(found, logits=found.logits - 1.5 * noise, linear=noise)
    lines = fit_lines(halved, sigmoid)
    np.testing.assert_allclose([lines[group, MIXED] for group in LINES], 1.5, atol=0.2)
    misleading = fit_lines(dataclasses.replace(found, linear=-noise - found.logits), sigmoid)
    assert misleading[:, MIXED].max() < 0.1


@pytest.mark.parametrize("sigmoid", [True, False])
def test_the_fit_is_a_minimum(sigmoid: bool) -> None:
    found = some_candidates(300, 5, sigmoid)
    lines = fit_lines(found, sigmoid)
    least = penalised_loss(lines, found, sigmoid)
    for group in LINES:
        for column in (SLOPE, OFFSET):
            for change in (-0.02, 0.02):
                other = lines.copy()
                other[group, column] += change
                assert penalised_loss(other, found, sigmoid) > least


def test_logits_below_the_fitted_ones_keep_their_distances() -> None:
    logits = np.array([-1000.0, -5.0, -4.0, 0.0, 4.0])
    numbers = map(np.array, (0.5, 2.0, -4.0, 1.0, -0.25))
    np.testing.assert_allclose(on_lines(logits, *numbers), [-996.0, -1.0, 0.0, 2.0, 4.0 - 0.75])


@pytest.mark.parametrize("sigmoid", [True, False])
def test_the_highest_scores_of_rare_labels_bend_down_where_they_are_worth_less(sigmoid: bool) -> None:
    rng = np.random.default_rng(2)
    found = some_candidates(6000, 6, sigmoid)
    z = np.where((found.groups == 1) & (found.logits > 2), 2, found.logits)  # surer than that they should not be
    if sigmoid:
        hits = rng.random(z.shape) < 1 / (1 + np.exp(-z))
    else:
        hits = np.argmax(z + rng.gumbel(size=z.shape), axis=1)[:, None] == np.arange(z.shape[1])
    found = dataclasses.replace(found, hits=hits.astype(np.float64))
    lines, curves = fit_lines(found, sigmoid), bent(fit_lines(found, sigmoid), found, sigmoid)
    assert curves[1, BEND] < -0.15 < curves[5, BEND]
    high = (found.groups == 1) & (found.logits > 3)
    wrong = [
        np.abs((found.scores(each) - found.scores(each).mean() - z + z.mean())[high]).mean() for each in (lines, curves)
    ]
    assert wrong[1] < wrong[0]


def test_scores_stay_in_the_order_of_logits() -> None:
    found = some_candidates(2000, 6, sigmoid=True)
    upside_down = dataclasses.replace(found, hits=((found.logits > -1) & (found.logits < 1)).astype(np.float64))
    curves = bent(fit_lines(upside_down, True), upside_down, True)
    logits = np.linspace(-9, 9, 50)
    for group in LINES:
        assert (np.diff(on_lines(logits, *curves[group, :MIXED])) > 0).all()


def test_held_out_rows_without_labels_calibrate_nothing() -> None:
    network = Network(Config(**OPTIONS), FEATURES, LABELS)
    unlabelled = Dataset(HELD_OUT.x, SparseRows.from_scipy(sp.csr_matrix((len(HELD_OUT), LABELS), dtype=np.float32)))
    info = calibrate(network, unlabelled, TRAIN.label_counts, (5,))
    assert np.isnan([info.before, info.after]).all()
    assert not info.used
    assert network.calibration.is_identity


# ---- a network ------------------------------------------------------------------------------------------------------

FEATURES, LABELS = 120, 90
OPTIONS: dict[str, Any] = {
    **PLAIN, "hidden": (32,), "batch_size": 32, "threads": 1, "epochs": 15, "schedule": "constant", "loss": "sigmoid",
    "wire": "float32",
}  # fmt: skip


def made(rows: int, seed: int) -> Dataset:
    """Ten frequent labels, each told by a feature of its own, and eighty rare ones that are pure chance, but that a
    network learns by heart from their rows' other features."""
    rng = np.random.default_rng(seed)
    frequent, rare = rng.integers(0, 10, rows), rng.integers(10, LABELS, rows)
    seen = np.where(rng.random(rows) < 0.7, frequent, rng.integers(0, 10, rows))
    columns = np.hstack([seen[:, None], rng.integers(10, FEATURES, (rows, 8))])
    x = sp.csr_matrix((np.full(columns.size, 0.33), (np.repeat(np.arange(rows), 9), columns.ravel())), (rows, FEATURES))
    y = np.zeros((rows, LABELS), np.float32)
    y[np.arange(rows), frequent] = 1
    some = np.flatnonzero(rng.random(rows) < 0.5)
    y[some, rare[some]] = 1
    return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y), source="made")


TRAIN, HELD_OUT = made(600, 0), made(400, 1)


def trained(comm: Communicator | None = None) -> tuple[Network, float, float]:
    """A network that was trained for too long, calibrated; nDCG@5 before and after."""
    trainer = Trainer(Config(**OPTIONS), FEATURES, LABELS, comm=comm)
    trainer.fit(TRAIN)
    info = calibrate(trainer.network, HELD_OUT, TRAIN.label_counts, (5,))
    return trainer.network, info.before, info.after


@pytest.fixture(scope="module")
def network() -> Network:
    return trained()[0]


def test_rare_labels_that_mislead_are_held_back() -> None:
    network, before, after = trained()
    assert after > before + 0.02
    fresh = made(1000, 2)
    calibrated_hits = hits_of(network.predict_topk(fresh.x, 1)[0].astype(np.int64), fresh.y).mean()
    network.calibration.reset()
    assert calibrated_hits > hits_of(network.predict_topk(fresh.x, 1)[0].astype(np.int64), fresh.y).mean()


def test_all_predictions_are_calibrated(network: Network) -> None:
    every = np.arange(LABELS, dtype=np.int32)
    scores = network.scores(HELD_OUT.x, every)
    ids, best = network.predict_topk(HELD_OUT.x, LABELS)
    np.testing.assert_allclose(np.take_along_axis(scores, ids.astype(int), axis=1), best, rtol=1e-4, atol=1e-4)
    ids, best = network.predict_topk_approximate(HELD_OUT.x, 3)
    found = ids >= 0
    expected = np.take_along_axis(scores, ids.astype(int), axis=1)
    np.testing.assert_allclose(expected[found], best[found], rtol=1e-4, atol=1e-4)


def test_a_calibrated_network_is_saved_and_loaded(network: Network, tmp_path: Path) -> None:
    model = SavedModel(network.config, FEATURES, LABELS, network.state())
    save_model(tmp_path / "m", model, optimizer=False)
    ids, scores = dslide.open_model(tmp_path / "m").network.predict_topk(HELD_OUT.x, 5)
    np.testing.assert_array_equal(ids, network.predict_topk(HELD_OUT.x, 5)[0])
    np.testing.assert_array_equal(scores, network.predict_topk(HELD_OUT.x, 5)[1])


def test_ranks_calibrate_and_predict_alike(network: Network, tmp_path: Path) -> None:
    expected = network.predict_topk(HELD_OUT.x, 5)
    save_model(tmp_path / "m", SavedModel(network.config, FEATURES, LABELS, network.state()), optimizer=False)

    def predict(comm: Communicator) -> Any:
        own, *_ = trained(comm)
        loaded = dslide.open_model(tmp_path / "m", comm=comm).network
        return own.predict_topk(HELD_OUT.x, 5), loaded.predict_topk(HELD_OUT.x, 5), own.calibration.array[:2]

    for rank, (own, loaded, numbers) in enumerate(run_ranks(3, predict)):
        np.testing.assert_array_equal(loaded[0], expected[0])
        np.testing.assert_allclose(loaded[1], expected[1], rtol=1e-4, atol=1e-4)
        assert np.mean(own[0] == expected[0]) > 0.98  # sums in another order
        np.testing.assert_allclose(numbers, network.calibration.array[rank::3][:2], atol=0.02)


def test_training_that_goes_on_starts_without_it(network: Network) -> None:
    trainer = Trainer(Config(**OPTIONS), FEATURES, LABELS)
    trainer.network.load_state(network.state())
    assert not trainer.network.calibration.is_identity
    trainer.train_batch(*TRAIN.batch(np.arange(8)), total_steps=0)
    assert trainer.network.calibration.is_identity
    np.testing.assert_array_equal(trainer.network.calibration.array, np.tile(np.float32(IDENTITY), (LABELS, 1)))


def test_what_ranks_no_better_is_not_used() -> None:
    """Labels of one group: a line changes no order."""
    network = Network(Config(**OPTIONS), FEATURES, LABELS)
    info = calibrate(network, HELD_OUT, np.full(LABELS, 7), (5,))
    assert info.before == info.after
    assert network.calibration.is_identity


def test_a_run_says_what_calibrating_gives(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    infos: list[CalibrationInfo] = []

    class Seen(Callback):
        def on_calibration(self, trainer: Trainer, info: CalibrationInfo) -> None:
            infos.append(info)

    dslide.train(TRAIN, OPTIONS | {"validation": 0.3}, out=tmp_path / "run", callbacks=[Seen()], progress=True)
    (info,) = infos
    change = f"on held-out rows: nDCG@5 {info.before:.4f} -> {info.after:.4f}, cross-validated"
    assert change in capfd.readouterr().err
    records = map(json.loads, (tmp_path / "run/log.jsonl").read_text().splitlines())
    (record,) = [record for record in records if record["record"] == "calibration"]
    assert (record["before"], record["after"], record["used"]) == (info.before, info.after, info.used)
    assert info.used != dslide.open_model(tmp_path / "run").network.calibration.is_identity


@pytest.mark.parametrize("complete", [False, True])
def test_a_checkpoint_of_the_last_step_gets_the_calibration(tmp_path: Path, complete: bool) -> None:
    class Due(Callback):
        def on_epoch(self, trainer: Trainer, info: EpochInfo) -> None:
            if trainer.epoch == trainer.config.epochs:
                (manager,) = (each.manager for each in trainer.callbacks if isinstance(each, Checkpointing))
                manager.after_step(Votes(Vote.CHECKPOINT_DUE, Vote.NONE))
                if complete:
                    manager.save()

    options = OPTIONS | {"validation": 0.3, "patience": 99, "ranking": "propensity", "epochs": 2}
    result = dslide.train(TRAIN, options, out=tmp_path / "run", callbacks=[Due()])
    assert result.summary["epochs"] == 2
    assert not result.network.calibration.is_identity
    saved = dslide.open_model(tmp_path / "run").network
    np.testing.assert_array_equal(saved.calibration.array, result.network.calibration.array)


# ---- ranking by propensity ------------------------------------------------------------------------------------------


def psp(network: Network) -> float:
    evaluation = Evaluation((1,), TRAIN.label_counts, len(TRAIN))
    evaluation.update(network.predict_topk(HELD_OUT.x, 1)[0], HELD_OUT.y)
    return evaluation.result()["psp_at_1"]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_ranking_by_propensity_brings_rare_labels_forward(loss: str) -> None:
    networks = []
    for ranking in ("precision", "propensity"):
        trainer = Trainer(Config(**OPTIONS | {"loss": loss, "epochs": 2, "ranking": ranking}), FEATURES, LABELS)
        trainer.fit(TRAIN)
        networks.append(trainer.network)
    plain, weighted = networks
    every = np.arange(LABELS, dtype=np.int32)
    logits = plain.scores(HELD_OUT.x, every)
    np.testing.assert_array_equal(weighted.scores(HELD_OUT.x, every), logits)  # chances are what they were
    worth = inverse_propensities(TRAIN.label_counts, len(TRAIN))
    chances = -np.logaddexp(0, -logits) if loss == "sigmoid" else logits
    ids, scores = weighted.predict_topk(HELD_OUT.x, 3)
    expected = chances + np.log(worth)
    np.testing.assert_array_equal(ids, np.argsort(-expected, axis=1, kind="stable")[:, :3])
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :3], rtol=1e-4, atol=1e-4)
    assert TRAIN.label_counts[ids[:, 0]].mean() < TRAIN.label_counts[plain.predict_topk(HELD_OUT.x, 1)[0][:, 0]].mean()
    assert psp(weighted) >= psp(plain)


def test_the_estimator_ranks_by_propensity_after_each_pass() -> None:
    model = SlideClassifier(**OPTIONS | {"ranking": "propensity"})
    for _ in range(2):
        model.partial_fit(TRAIN.x, TRAIN.y)
        assert not model.network_.calibration.is_identity
