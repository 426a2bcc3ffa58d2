"""Linear classifiers in a training: when they are mixed in, on several ranks, saved, and removed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import expit
from support.inprocess import run_ranks
from support.plain import PLAIN

import dslide
from dslide import CalibrationInfo, Config, Network, Trainer
from dslide.checkpoint.saved_model import SavedModel, save_model
from dslide.comm import Communicator
from dslide.data import Dataset, SparseRows
from dslide.errors import ModelError
from dslide.model import linear, prediction
from dslide.model.defaults import FEW_ROWS
from dslide.model.label_prior import LINEAR, PREFIX, LabelPrior, prior_arrays, regrouped
from dslide.model.sharding import Shard
from dslide.training import calibration
from dslide.training.calibration import calibrate
from dslide.training.linear import Examples, Trials, train_linear

FEATURES, LABELS = 200, 90
OPTIONS: dict[str, Any] = {
    **PLAIN, "hidden": (3,), "batch_size": 64, "threads": 1, "epochs": 1, "loss": "sigmoid", "wire": "float32",
    "prior_labels": 1, "prior_scale": 1.0, "prior_power": 1.0, "prior_boost": 1.0, "linear_negatives": 20,
}  # fmt: skip


def made(rows: int, seed: int, told: bool = True) -> Dataset:
    """Rows of six features, of which three tell the label, unless nothing does: more than three hidden units can."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, LABELS, rows)
    signs = np.stack([truth, LABELS + truth % 11, LABELS + 11 + truth % 13], axis=1)
    if not told:
        signs = rng.integers(0, 120, (rows, 3))
    columns = np.hstack([np.where(rng.random((rows, 3)) < 0.8, signs, 0), rng.integers(120, FEATURES, (rows, 3))])
    ones = np.ones(columns.size, np.float32)
    x = sp.csr_matrix((ones, (np.repeat(np.arange(rows), 6), columns.ravel())), (rows, FEATURES))
    y = sp.csr_matrix((np.ones(rows), (np.arange(rows), truth)), (rows, LABELS))
    return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y), source="made")


TRAIN, HELD_OUT, TEST = made(2000, 0), made(400, 1), made(300, 2)


def trained(comm: Communicator | None = None, **changes: Any) -> tuple[Network, CalibrationInfo]:
    trainer = Trainer(Config(**OPTIONS | changes), FEATURES, LABELS, comm=comm)
    trainer.fit(TRAIN)
    return trainer.network, calibrate(trainer.network, HELD_OUT, TRAIN.label_counts, (5,), TRAIN)


@pytest.fixture(scope="module")
def network() -> Network:
    return trained()[0]


def hits(network: Network) -> float:
    ids, _ = network.predict_topk(TEST.x, 1)
    return float(np.mean(ids[:, 0] == TEST.y.indices))


@pytest.mark.parametrize("loss", ["sigmoid", "softmax"])
def test_classifiers_that_know_more_than_the_network_are_mixed_in(loss: str) -> None:
    network, info = trained(loss=loss)
    assert info.used
    assert info.linear_cost > 0
    assert network.linear is not None
    without, _ = trained(loss=loss, linear_negatives=0)
    assert without.linear is None
    assert hits(network) > hits(without) + 0.2


def test_data_too_small_to_hold_rows_out_gets_them_too() -> None:
    """With as much spread as the network's logits; not more rows, and not a network without a label prior."""
    found = {}
    for negatives in (0, 20):
        trainer = Trainer(Config(**OPTIONS | {"linear_negatives": negatives}), FEATURES, LABELS)
        trainer.fit(TRAIN)
        assert (trainer.network.linear is not None) == (negatives > 0)
        found[negatives] = hits(trainer.network)
    assert found[20] > found[0] + 0.2
    for rows, changes in ((FEW_ROWS, {}), (2000, {"prior_labels": 0})):
        trainer = Trainer(Config(**OPTIONS | changes), FEATURES, LABELS)
        trainer.fit(made(rows, 4))
        assert trainer.network.linear is None


def test_few_rows_do_not_take_them_from_a_network_that_grew(network: Network) -> None:
    trainer = Trainer(Config(**OPTIONS), FEATURES, LABELS)
    trainer.network.load_state(network.state())
    trainer.network.kept_linear = np.ones(LABELS, bool)
    trainer.counted = TRAIN.label_counts, len(TRAIN)  # as growth does
    trainer.fit(made(500, 6))
    assert trainer.network.linear is not None
    for name, array in trainer.network.linear.arrays.items():
        np.testing.assert_array_equal(array, network.linear.arrays[name])  # type: ignore[union-attr]


def test_what_ranks_best_need_not_have_the_least_loss() -> None:
    """Logits of rows are sure of wrong labels; linear scores tell more, and many rows are needed for the loss to."""
    rng = np.random.default_rng(0)
    hits = np.eye(5)[rng.integers(0, 5, 400)]
    logits, linear = rng.normal(0, 3, hits.shape), hits + rng.normal(0, 0.3, hits.shape)
    true = SparseRows.from_scipy(sp.csr_matrix(hits))
    ids = np.tile(np.arange(5, dtype=np.int32), (400, 1))
    candidates = calibration.Candidates(ids, np.zeros_like(ids, np.int64), logits, 3 * linear, hits, true)
    *_, shared = calibration.fit_rows(candidates, 5, True)
    right = [np.mean((logits + 3 * share * linear).argmax(1) == hits.argmax(1)) for share in calibration.SHARES]
    assert shared[0, calibration.MIXED] == calibration.SHARES[int(np.argmax(right))]
    chances = expit(candidates.scores(shared))
    assert abs(chances.mean() - 0.2) < 0.02  # the sigmoid of scores is a chance


def test_classifiers_that_know_nothing_are_not() -> None:
    trainer = Trainer(Config(**OPTIONS), FEATURES, LABELS)
    trainer.fit(TRAIN)
    info = calibrate(trainer.network, HELD_OUT, TRAIN.label_counts, (5,), made(2000, 3, told=False))
    assert info.linear_cost == 0
    assert trainer.network.linear is None


def test_of_a_network_that_grew_only_labels_with_new_rows_get_other_classifiers() -> None:
    """Kept ones are those of before but for a factor; others are trained at the same cost."""
    network, info = trained()
    assert network.linear is not None
    before = network.linear.without_factors()
    kept = np.arange(LABELS) < LABELS // 2
    network.kept_linear, network.linear_cost = kept, info.linear_cost
    groups = calibration._groups(network, TRAIN.label_counts)
    assert ((groups >= calibration.NEW) == ~kept).all()
    tried = calibration._linear_classifiers(network, made(2000, 5), TRAIN.label_counts, network.linear).by_cost
    assert [*tried] == [info.linear_cost]
    (after,) = tried.values()

    def weights(classifiers: linear.LinearClassifiers) -> np.ndarray:
        arrays = classifiers.arrays
        return sp.csr_matrix((arrays["weight"], arrays["feature"], arrays["begin"]), (LABELS, FEATURES)).toarray()

    same = np.isclose(weights(before), weights(after), rtol=1e-5).all(axis=1)
    assert same[kept].all()
    assert not same[~kept].any()


def test_labels_left_out_of_trials_get_what_they_would_have_got() -> None:
    network, _ = trained()
    examples = Examples.find(network, TRAIN.x, TRAIN.y)
    needed = np.arange(LABELS) % 3 > 0
    trials, whole = Trials.of_needed(network, examples, needed), train_linear(network, examples)
    assert [*trials.by_cost] == [*whole]
    for cost, expected in whole.items():
        assert not np.diff(trials.by_cost[cost].arrays["begin"])[~needed].any()
        for name, array in trials.whole(cost).arrays.items():
            np.testing.assert_array_equal(array, expected.arrays[name], err_msg=name)


def test_negatives_are_rows_that_the_prior_mistakes() -> None:
    network, _ = trained()
    found = Examples.find(network, TRAIN.x, TRAIN.y)
    assert found.positive.nnz == TRAIN.y.nnz
    rows, labels = found.negative.indices, found.negative.row_numbers()
    assert not (TRAIN.y.to_scipy().tocsr()[rows, labels] > 0).any()
    assert np.bincount(rows, minlength=len(TRAIN)).max() <= OPTIONS["linear_negatives"]


def test_only_the_networks_best_labels_are_ranked_again(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.linear is not None
    every = np.arange(LABELS, dtype=np.int32)
    mixed = network.scores(TEST.x, every)
    kept, network.prior.linear = network.linear, None  # type: ignore[union-attr]
    calibration, network.calibration = network.calibration, network.calibration.none()
    logits = network.scores(TEST.x, every)
    network.prior.linear, network.calibration = kept, calibration  # type: ignore[union-attr]
    monkeypatch.setattr(prediction, "CANDIDATES", 7)
    candidates = np.argsort(-logits, axis=1, kind="stable")
    again = np.take_along_axis(mixed, candidates, axis=1)
    order = np.argsort(-again[:, :7], axis=1, kind="stable")
    ids, scores = network.predict_topk(TEST.x, 12)
    np.testing.assert_array_equal(ids[:, :7], np.take_along_axis(candidates, order, axis=1))
    np.testing.assert_allclose(scores[:, :7], -np.sort(-again[:, :7], axis=1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(ids[:, 7:], candidates[:, 7:12])  # the others keep their places
    assert (np.diff(scores, axis=1) <= 0).all()
    fewer, _ = network.predict_topk(TEST.x, 3)
    np.testing.assert_array_equal(fewer, ids[:, :3])


def test_ranks_train_and_predict_alike(network: Network, tmp_path: Path) -> None:
    expected = network.predict_topk(TEST.x, 5)
    save_model(tmp_path / "m", SavedModel(network.config, FEATURES, LABELS, network.state()), optimizer=False)

    def predict(comm: Communicator) -> Any:
        own, info = trained(comm)
        loaded = dslide.open_model(tmp_path / "m", comm=comm).network
        return own.predict_topk(TEST.x, 5), loaded.predict_topk(TEST.x, 5), info.linear_cost > 0

    for own, loaded, mixed in run_ranks(3, predict):
        assert mixed
        np.testing.assert_array_equal(loaded[0], expected[0])
        np.testing.assert_allclose(loaded[1], expected[1], rtol=1e-4, atol=1e-4)
        assert np.mean(own[0] == expected[0]) > 0.98  # sums in another order


def test_saved_classifiers_predict_the_same(network: Network, tmp_path: Path) -> None:
    save_model(tmp_path / "m", SavedModel(network.config, FEATURES, LABELS, network.state()), optimizer=False)
    opened = dslide.open_model(tmp_path / "m").network
    for one, other in zip(opened.predict_topk(TEST.x, 5), network.predict_topk(TEST.x, 5), strict=True):
        np.testing.assert_array_equal(one, other)


def test_shards_regroup(network: Network) -> None:
    whole = prior_arrays(network.state())
    halves = [(Shard(rank, 2), regrouped([(Shard(), whole)], Shard(rank, 2))) for rank in (0, 1)]
    thirds = [(Shard(rank, 3), regrouped(halves, Shard(rank, 3))) for rank in range(3)]
    back = regrouped(thirds, Shard())
    for name in whole:
        np.testing.assert_array_equal(back[name], whole[name], err_msg=name)
    saved = {name: whole[PREFIX + LINEAR + name] for name in linear.TYPES}
    sent = linear.only_labels(saved, Shard(1, 3), Shard())
    np.testing.assert_array_equal(
        linear.regrouped([(Shard(), sent)], Shard(1, 3))["weight"], thirds[1][1][PREFIX + LINEAR + "weight"]
    )


@pytest.mark.parametrize("name", ["begin", "feature", "weight", "bias"])
def test_damaged_classifiers_are_refused(network: Network, name: str) -> None:
    arrays = dict(prior_arrays(network.state()))
    key = PREFIX + LINEAR + name
    arrays[key] = arrays[key][:-1] if name != "feature" else arrays[key] + FEATURES
    with pytest.raises(ModelError):
        LabelPrior.of_state(arrays, FEATURES, LABELS, network.config)


@pytest.mark.parametrize("name", ["begin", "feature", "weight", "bias"])
def test_missing_arrays_are_named(network: Network, name: str) -> None:
    arrays = dict(prior_arrays(network.state()))
    del arrays[PREFIX + LINEAR + name]
    with pytest.raises(ModelError, match=f"linear_{name}"):
        LabelPrior.of_state(arrays, FEATURES, LABELS, network.config)


def test_items_of_users_are_not_told_by_themselves() -> None:
    items = SparseRows.from_scipy((TRAIN.x.to_scipy()[:, :LABELS] != 0).astype(np.float32))
    users = Dataset(items, items, source="made", users=np.arange(len(items)))
    trainer = Trainer(Config(**OPTIONS), LABELS, LABELS)
    trainer.fit(users)
    held_out = Dataset(items.take(np.arange(300)), items.take(np.arange(300)))
    assert calibrate(trainer.network, held_out, users.label_counts, (5,), users).linear_cost == 0


def test_training_that_goes_on_removes_them(network: Network) -> None:
    trainer = Trainer(Config(**OPTIONS), FEATURES, LABELS)
    trainer.network.load_state(network.state())
    assert trainer.network.linear is not None
    trainer.train_batch(*TRAIN.batch(np.arange(8)), total_steps=0)
    assert trainer.network.linear is None
    assert len(trainer.network.state()[PREFIX + LINEAR + "weight"]) == 0
