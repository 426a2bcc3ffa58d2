"""Networks with a label prior: training and prediction against the slow network, on several ranks; what it is for."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import support.planted as planted
from model.test_network_gradients import ERROR, RATE, central_differences, weights_of
from numpy.testing import assert_allclose, assert_array_equal
from reference.label_prior import SlowLabelPrior, lengths_of
from reference.network import Activity, ReferenceNetwork
from support.inprocess import run_ranks
from support.layer_cases import make_targets, sparse_input
from support.plain import PLAIN
from support.recording import Recording

from dslide import Config, Network, Trainer, _core
from dslide.data import Dataset, SparseRows
from dslide.model.label_prior import SCALE_STEP, regrouped
from dslide.model.sharding import Shard
from dslide.util.csr import Csr

FEATURES, LABELS, ROWS = 12, 83, 260
BASE = PLAIN | {
    "hidden": (9,), "output": "full", "prior_labels": 6, "prior_scale": 2.0, "prior_power": 0.5, "prior_boost": 3.0,
    "wire": "float32", "epsilon": 1e-5, "seed": 5, "init_scale": 4.0,
}  # fmt: skip
OUTPUTS = [
    {"loss": "softmax"},
    {"loss": "sigmoid"},
    {"loss": "softmax", "output": "lsh", "hash_hits": 2, "random_negatives": 9, "bucket_size": 0},
    {"loss": "sigmoid", "output": "random", "random_negatives": 9},
]
TRAINED = [
    options | {"prior_learning_rate": 0.7, "prior_hits": hits}
    for options, hits in [*zip(OUTPUTS, (0, 0, 3, 2), strict=True), ({"loss": "softmax", "output": "random"}, 3)]
]


class Batch:
    """Rows to count links of, and to train on."""

    def __init__(self, loss="softmax", rows=ROWS):
        self.x, self.matrix, self.present = sparse_input(rows, FEATURES, 11)
        targets = make_targets(rows, LABELS, 11, loss == "softmax")
        self.labels, self.targets = Csr(targets.indptr, targets.indices, targets.values), targets.matrix
        self.rows = SparseRows(self.x.indptr, self.x.indices, self.x.values, FEATURES)
        self.y = SparseRows(targets.indptr, targets.indices, targets.values, LABELS)

    def link(self, network):
        network.set_label_prior(self.rows, self.y, same=False)
        rng = np.random.default_rng(4)
        for layer in network.layers:
            layer.arrays["bias"][:, 0] = 0.2 * network.shard.part(rng.standard_normal(layer.total))
        return network

    def slow(self, config):
        return SlowLabelPrior.count(
            self.rows, self.y, config.prior_labels, False, config.prior_power, config.prior_scale,
            by_gain=config.prior_learning_rate > 0,
        )  # fmt: skip

    def added(self, slow, own=True, boost=1.0):
        """What the prior adds in training, or in prediction, where there is a factor on it."""
        return boost * slow.added(self.matrix, lengths_of(self.x), self.targets > 0 if own else None)


# ---- one rank -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OUTPUTS, ids=str)
def test_gradients_are_those_of_finite_differences(options):
    config, batch = Config(**BASE | {"optimizer": "sgd"} | options), Batch(options["loss"], rows=40)
    network = batch.link(Recording(config, FEATURES, LABELS))
    reference, added = ReferenceNetwork(network), batch.added(batch.slow(config))
    assert np.abs(added).max() > 0.5
    before = [array.copy() for array in weights_of(network)]
    result = network.train_step(batch.x, batch.labels, 0, RATE)

    def loss_of():
        return reference.loss(batch.matrix, batch.targets, network.chosen, added)

    assert result.loss == pytest.approx(loss_of(), rel=1e-5)
    numbers = [part for layer in reference.layers for part in (layer.weights, layer.bias)]
    for old, new, part in zip(before, weights_of(network), numbers, strict=True):
        expected = central_differences(loss_of, part.value)
        assert np.abs((old - new) / RATE - expected).max() < ERROR * np.abs(expected).max()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("options", OUTPUTS + TRAINED, ids=str)
def test_training_is_that_of_the_slow_network(options, kept, monkeypatch):
    """Whether logits are kept from the first pass to the second or computed again."""
    if not kept:
        monkeypatch.setattr("dslide.model.output_losses.KEPT_BYTES", 0)
    config, batch = Config(**BASE | {"epsilon": 1e-2} | options), Batch(options["loss"])
    network = batch.link(Recording(config, FEATURES, LABELS))
    reference, slow, moment = ReferenceNetwork(network), batch.slow(config), np.zeros(32)
    for step in range(5):
        result = network.train_step(batch.x, batch.labels, step, 0.05)
        added = batch.added(slow)
        if config.prior_learning_rate > 0:
            gradient = reference.logit_gradient(batch.matrix, batch.targets, network.chosen, added)
            share = 0.05 / config.learning_rate  # of the schedule
            rate = config.prior_learning_rate * share
            by_scale = slow.learn(batch.matrix, gradient, rate, batch.targets > 0, lengths_of(batch.x))
            moment += by_scale**2
            change = SCALE_STEP * config.prior_scale * share * by_scale / np.sqrt(np.maximum(moment, 1e-300))
            slow.scale = np.maximum(slow.scale - change, 0)
        loss = reference.train_step(batch.matrix, batch.present, batch.targets, network.chosen, 0.05, added)
        assert result.loss == pytest.approx(loss, rel=1e-4)
    found = SlowLabelPrior.of_prior(network.prior)
    assert_allclose(found.trained, slow.trained, rtol=1e-3, atol=1e-3)
    assert_allclose(found.scale, slow.scale, rtol=1e-3, atol=1e-3)
    assert np.any(found.trained != 0) == np.any(found.scale != config.prior_scale) == (config.prior_learning_rate > 0)
    for layer, slow in zip(network.layers, reference.layers, strict=True):
        expected = slow.arrays()
        for name in ("weights", "bias"):
            width = expected[name].shape[-1]
            assert_allclose(layer.arrays[name][:, :width], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.filterwarnings("error")
def test_a_boost_of_zero_predicts_without_links():
    config, batch = Config(**BASE | {"prior_boost": 0.0}), Batch()
    network = batch.link(Network(config, FEATURES, LABELS))
    found = network.scores(batch.rows, np.arange(LABELS))
    network.prior = None
    assert_array_equal(found, network.scores(batch.rows, np.arange(LABELS)))


def test_dropout_takes_off_what_the_whole_row_had():
    """Inputs that are left out add nothing, the others more in proportion; the row's own share is that of what it was
    before, not of what dropout made of it."""
    config, batch = Config(**BASE | {"dropout_input": 0.4}), Batch()
    network = batch.link(Recording(config, FEATURES, LABELS))
    left = network.step.drop_inputs(batch.x, 7)
    assert 0 < len(left.values) < len(batch.x.values)
    matrix = np.zeros((ROWS, FEATURES))
    matrix[np.repeat(np.arange(ROWS), np.diff(left.indptr)), left.indices] = left.values
    expected = batch.slow(config).added(matrix, lengths_of(batch.x), batch.targets > 0, 0.6)
    network.train_step(batch.x, batch.labels, 7, 0.01)
    seen = network.active[-1]
    added = np.zeros((ROWS, LABELS))
    added[np.repeat(np.arange(ROWS), np.diff(seen.prior_begin)), seen.prior_position] = seen.prior_value
    assert_allclose(added, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_prediction_is_that_of_the_slow_network(loss, monkeypatch):
    monkeypatch.setattr("dslide.model.prediction.PRIOR_ROWS", 7)  # several blocks of rows
    config, batch = Config(**BASE | {"loss": loss}), Batch(loss)
    network = batch.link(Network(config, FEATURES, LABELS))
    everything = [Activity(np.ones((ROWS, n), bool), np.ones((ROWS, n))) for n in (9, LABELS)]
    reference, added = ReferenceNetwork(network), batch.added(batch.slow(config), own=False, boost=3.0)
    _, z = reference.forward(batch.matrix, everything, added)
    close = {"rtol": 1e-4, "atol": 1e-4}
    some = np.array([80, 3, 3, 11], np.int32)
    assert_allclose(network.scores(batch.rows, some), z[:, some], **close)
    ids, scores = network.predict_topk(batch.rows, 5)
    assert_allclose(scores, -np.sort(-z, axis=1)[:, :5], **close)
    assert_allclose(np.take_along_axis(z, ids.astype(np.int64), 1), scores, **close)
    as_trained = batch.added(batch.slow(config), own=False)  # the boost is for ranking, not for the loss
    expected = reference.loss(batch.matrix, batch.targets, everything, as_trained)
    assert network.exact_loss(batch.rows, batch.y) == pytest.approx(expected, rel=1e-5)

    gone = np.random.default_rng(3).random((ROWS, LABELS)) < 0.5
    for left_out, allowed in ((None, np.ones_like(gone)), (SparseRows.from_scipy(gone), ~gone)):
        ids, scores = network.predict_topk_approximate(batch.rows, LABELS, left_out)
        for row in range(ROWS):
            found = ids[row][ids[row] >= 0]
            assert len(set(found.tolist())) == len(found)
            assert allowed[row, found].all()
            assert set(np.flatnonzero((added[row] != 0) & allowed[row])) <= set(found.tolist())  # what is linked
            assert_allclose(scores[row, : len(found)], z[row, found], **close)
            assert np.all(np.diff(scores[row, : len(found)]) <= 0)


def test_rows_of_any_kind_are_predicted():
    """Without features, with features that were never seen, none at all."""
    batch = Batch()
    network = batch.link(Network(Config(**BASE), FEATURES + 3, LABELS))
    rows = SparseRows.from_scipy(np.diag([0.0] * FEATURES + [1, -2, 3]).astype(np.float32))
    _, scores = network.predict_topk(rows, 2)
    plain = Network(
        network.config,
        FEATURES + 3,
        LABELS,
        trainable=False,
        weights={name: array for name, array in network.state().items() if not name.startswith("prior.")},
    )
    assert_array_equal(scores, plain.predict_topk(rows, 2)[1])
    assert network.predict_topk(rows.part(0, 0), 2)[0].shape == (0, 2)


# ---- several ranks --------------------------------------------------------------------------------------------------


def trained_by(size, config):
    """Losses, predictions, the exact loss and the label prior of each rank, after some steps."""
    batch = Batch(config.loss)

    def work(comm):
        network = batch.link(Network(config, FEATURES, LABELS, comm=comm))
        losses = [network.train_step(batch.x, batch.labels, step, 0.02).loss for step in range(4)]
        found = [network.predict_topk(batch.rows, 6), network.predict_topk_approximate(batch.rows, 6)]
        return losses, found, network.exact_loss(batch.rows, batch.y), network.prior.state()

    return run_ranks(size, work)


@cache
def trained_by_one(config):
    return trained_by(1, config)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("options", [*OUTPUTS, *TRAINED, {"micro_batches": 3, "dropout_input": 0.3}], ids=str)
def test_training_and_prediction_are_those_of_one_rank(size, options):
    config = Config(**BASE | options)
    (losses, found, exact, links), *_ = trained_by_one(config)
    many = trained_by(size, config)
    for own_losses, own_found, own_exact, _ in many:
        assert_allclose(own_losses, losses, rtol=1e-5)
        assert own_exact == pytest.approx(exact, rel=1e-5)
        for (ids, scores), (expected_ids, expected) in zip(own_found, found, strict=True):
            assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
            assert np.mean(ids == expected_ids) > 0.98  # but for ties to rounding
    together = regrouped([(Shard(rank, size), state) for rank, (*_, state) in enumerate(many)], Shard())
    for name, array in links.items():
        if name in ("prior.trained", "prior.scale", "prior.scale_moment"):
            assert_allclose(together[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
        else:
            assert_array_equal(together[name], array, strict=True, err_msg=name)


# ---- which networks have links --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "linked"),
    [
        ({}, True),
        ({"prior_labels": 2**20}, True),
        ({"prior_labels": 0}, False),
        ({"active_sets": "row"}, False),
        ({"hidden_share": (0.5,)}, False),
    ],
)
def test_links_go_with_shared_active_sets_and_dense_hidden_layers(options, linked):
    batch = Batch()
    trainer = Trainer(Config(**BASE | {"epochs": 1, "threads": 1} | options), FEATURES, LABELS)
    trainer.fit(Dataset(batch.rows, batch.y))
    assert (trainer.network.prior is not None) == linked


def test_items_are_not_linked_to_themselves():
    items = SparseRows.from_scipy(np.array([[1, 1, 0], [0, 1, 1], [1, 1, 1]], np.float32))
    trainer = Trainer(Config(**BASE | {"epochs": 1, "threads": 1}), 3, 3)
    trainer.fit(Dataset(items, items, users=np.arange(3, dtype=np.int32)))
    assert_array_equal(trainer.network.prior.arrays["neuron"], [1, 2, 0, 2, 0, 1])


# ---- what they are for ----------------------------------------------------------------------------------------------


def marked(labels: int = 1500, copies: int = 4) -> planted.Problem:
    """Every label has a feature of its own, which no other has; the rest of a row is noise."""

    def make(rows: int, seed: int) -> Dataset:
        rng = np.random.default_rng(seed)
        truth = rng.permutation(np.arange(rows) % labels)
        columns = np.hstack([truth[:, None], labels + rng.integers(0, 300, (rows, 3))])
        return planted.dataset(columns, np.full(columns.shape, 0.5), labels + 300, truth, labels)

    return planted.Problem(make(copies * labels, 1), make(1000, 2))


def test_links_keep_apart_what_a_narrow_layer_can_not():
    problem = marked()
    precision = {}
    for links in (0, 8):
        options = {
            "hidden": (8,),
            "prior_labels": links,
            "prior_scale": 10.0,
            "batch_size": 128,
            "epochs": 3,
            "threads": 2,
        }
        trainer = Trainer(Config(**PLAIN | options), problem.train.features, problem.train.labels)
        trainer.fit(problem.train)
        precision[links] = problem.precision(trainer.network)
    assert precision[8] > 0.9
    assert precision[0] < 0.5


def test_labels_at_random_can_not_be_known_in_training():
    """Rows whose labels have nothing to do with their features: in training, links may not tell them better than
    chance, though they were counted on the same rows. Without the row's share taken off they tell them at once."""
    rng = np.random.default_rng(0)
    rows, features, labels = 400, 300, 100
    x = SparseRows.from_scipy(((rng.random((rows, features)) < 0.03) * rng.random((rows, features))).astype(np.float32))
    y = SparseRows.from_scipy(np.eye(labels, dtype=np.float32)[rng.integers(0, labels, rows)])
    network = Network(Config(**BASE | {"prior_labels": 64, "prior_scale": 10.0, "init_scale": 0.01}), features, labels)
    network.set_label_prior(x, y, same=False)
    chance = np.log(labels)
    assert network.exact_loss(x, y) < 0.7 * chance  # rows that were counted, asked as if they were new
    rows = Csr(x.indptr, x.indices, x.values)
    assert network.train_step(rows, Csr(y.indptr, y.indices, y.values), 0, 0.0).loss > chance


def test_the_number_of_threads_changes_no_link():
    problem, states = planted.prototypes(labels=300, features=200), []
    before = _core.threads()
    for threads in (1, 2, 3):
        _core.set_threads(threads)
        network = Network(Config(**BASE), problem.train.features, problem.train.labels)
        network.set_label_prior(problem.train.x, problem.train.y, same=False)
        states.append(network.prior.state())
    _core.set_threads(before)
    for state in states[1:]:
        for name, array in state.items():
            assert_array_equal(array, states[0][name])


def learned(x, y, **options):
    """A network with a label prior, trained on some rows."""
    data = Dataset(SparseRows.from_scipy(x.astype(np.float32)), SparseRows.from_scipy(y.astype(np.float32)))
    config = {"hidden": (8,), "prior_labels": 64, "prior_scale": 10.0, "prior_learning_rate": 1.0, "epochs": 12}
    trainer = Trainer(Config(**PLAIN | config | {"batch_size": 64, "threads": 1} | options), data.features, data.labels)
    trainer.fit(data)
    return trainer.network


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("copies", [2, 4, 9])
def test_a_prior_that_misleads_is_switched_off_and_one_that_tells_all_is_kept(loss, copies):
    """Labels that have nothing to do with features, or a feature each; all with as many rows."""
    rng = np.random.default_rng(3)
    y = np.eye(150)[rng.permutation(np.arange(150 * copies) % 150)]
    noise = (rng.random((len(y), 200)) < 0.05) * rng.random((len(y), 200))
    scale = {}
    for name, x in (("misleading", noise), ("telling", np.hstack([y, 0.2 * noise]))):
        prior = learned(x, y, loss=loss, epochs=400 // copies).prior
        scale[name] = prior.arrays["scale"][copies.bit_length()]
    assert scale["misleading"] < 1
    assert scale["telling"] > 10


def test_trained_weights_learn_what_counts_can_not():
    """A label's feature is weak, and rows have strong ones that say nothing: the trained weights learn to ignore them,
    on rows that are new."""
    rng = np.random.default_rng(5)

    def rows(count):
        truth, other = rng.integers(0, 60, count), rng.integers(0, 60, (count, 4))
        x = np.zeros((count, 120))
        x[np.arange(count), truth] = 0.3
        x[np.arange(count)[:, None], 60 + other] = 1.0
        return x, truth

    (x, truth), (test, expected) = rows(3000), rows(1000)
    right = {}
    for rate in (0.0, 2.0):
        network = learned(x, np.eye(60)[truth], hidden=(2,), prior_learning_rate=rate, epochs=3, linear_negatives=0)
        found = network.predict_topk(SparseRows.from_scipy(test.astype(np.float32)), 1)[0][:, 0]
        right[rate] = np.mean(found == expected)
    assert right[2.0] > 0.9
    assert right[0.0] < 0.8
