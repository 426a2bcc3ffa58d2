"""Prediction: exact top-k against sorting all logits, approximate top-k against the exact logits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.plain import PLAIN

from dslide.config import Config
from dslide.data import SparseRows
from dslide.errors import DataError
from dslide.model import prediction as network_module
from dslide.model.network import Network
from dslide.util.csr import Csr

FEATURES, LABELS = 40, 700


def make_rows(rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, FEATURES)) * (rng.random((rows, FEATURES)) < 0.3)
    x[::7] = 0  # rows without features are predicted too
    return SparseRows.from_scipy(x)


def make_network(**options):
    """Fresh weights, made larger so that rows differ, and biases."""
    network = Network(Config(**PLAIN | {"hidden": (24,)} | options), FEATURES, LABELS)
    rng = np.random.default_rng(1)
    for layer in network.layers:
        layer.arrays["weights"] *= 3
        layer.arrays["bias"][:] = 0.1 * rng.standard_normal(layer.arrays["bias"].shape)
    return network


def all_logits(network, x):
    """By numpy, in float64."""
    a = x.to_scipy().toarray().astype(np.float64)
    for i, layer in enumerate(network.layers):
        stored = layer.arrays["weights"].astype(np.float64)
        weights = stored[:, : layer.neurons] if layer.sparse_input else stored[:, : layer.inputs].T
        a = a @ weights + layer.arrays["bias"][:, 0]
        if i < len(network.layers) - 1 and network.config.activation == "relu":
            a = np.maximum(a, 0)
    return a


NETWORKS = [
    {},
    {"hidden": (24, 17), "activation": "linear"},
    {"hidden": (24,), "hidden_share": (0.5,)},  # behind a sampled layer the output is a sparse one
]


@pytest.mark.parametrize("options", NETWORKS)
@pytest.mark.parametrize("k", [1, 5, 700, 703])
def test_exact_topk_sorts_all_logits(options, k, monkeypatch):
    network, x = make_network(**options), make_rows(230)
    expected = all_logits(network, x)
    # small blocks of rows, 97 behind dense layers: results must not depend on where rows are cut
    monkeypatch.setattr(network_module, "LOGIT_BYTES", 97 * 4 * 24)
    assert len(network_module.row_blocks(network, 230)) >= 3
    ids, scores = network.predict_topk(x, k)
    real = min(k, LABELS)
    assert_allclose(scores[:, :real], -np.sort(-expected, axis=1)[:, :real], rtol=1e-4, atol=1e-5)
    # float32 may swap labels whose logits differ by less than rounding: their own exact logits are as high
    assert_allclose(np.take_along_axis(expected, ids[:, :real], axis=1), scores[:, :real], rtol=1e-4, atol=1e-5)
    assert (np.sort(ids[:, :real], axis=1)[:, 1:] > np.sort(ids[:, :real], axis=1)[:, :-1]).all()  # each once
    assert (np.diff(scores[:, :real], axis=1) <= 0).all()
    assert (ids[:, real:] == -1).all()
    assert (scores[:, real:] == -np.inf).all()
    monkeypatch.undo()
    assert_array_equal(network.predict_topk(x, k)[0], ids)


def test_topk_of_equal_logits_goes_by_number():
    network = make_network()
    network.output.arrays["weights"][:] = 0
    network.output.arrays["bias"][:] = 0
    network.output.arrays["bias"][[5, 650]] = 1
    ids, scores = network.predict_topk(make_rows(3), 4)
    assert ids.tolist() == [[5, 650, 0, 1]] * 3
    assert scores.tolist() == [[1, 1, 0, 0]] * 3


@pytest.mark.parametrize("options", NETWORKS)
@pytest.mark.parametrize("k", [1, 5, 700])
def test_excluded_labels_are_never_given(options, k, monkeypatch):
    network, x = make_network(output="lsh", hash_k=2, tables=6, **options), make_rows(60)
    monkeypatch.setattr(network_module, "LOGIT_BYTES", 17 * 4 * LABELS)  # several blocks of rows, cut in the lists too
    gone = np.random.default_rng(2).random((60, LABELS)) < np.linspace(0, 1, 60)[:, None]
    exclude = SparseRows.from_scipy(gone)
    for predict in (network.predict_topk, network.predict_topk_approximate):
        everything, all_scores = predict(x, LABELS)
        ids, scores = predict(x, k, exclude)
        for row in range(60):
            left = [i for i, label in enumerate(everything[row]) if label >= 0 and not gone[row, label]][:k]
            nothing = k - len(left)
            assert ids[row].tolist() == [*everything[row, left], *[-1] * nothing]
            assert scores[row].tolist() == [*all_scores[row, left], *[-np.inf] * nothing]


def test_labels_to_exclude_must_fit():
    network, x = make_network(), make_rows(3)
    for rows, columns in ((2, LABELS), (3, LABELS + 1)):
        with pytest.raises(DataError, match=f"3 rows of at most 700 labels, not {rows} rows of {columns}"):
            network.predict_topk(x, 1, SparseRows.from_scipy(np.ones((rows, columns))))


def test_no_rows_and_blocks_of_bounded_size():
    network = make_network()
    assert [a.shape for a in network.predict_topk(make_rows(0), 3)] == [(0, 3), (0, 3)]
    blocks = network_module.row_blocks(network, 5000, wide=1 << 20)
    assert [b for b, _ in blocks[1:]] == [e for _, e in blocks[:-1]]
    assert (blocks[0][0], blocks[-1][1]) == (0, 5000)
    assert max(e - b for b, e in blocks) * (4 << 20) <= network_module.LOGIT_BYTES


@pytest.mark.parametrize("options", NETWORKS)
def test_scores_of_given_labels(options):
    network, x = make_network(**options), make_rows(50)
    labels = np.array([699, 3, 3, 0, 420])
    assert_allclose(network.scores(x, labels), all_logits(network, x)[:, labels], rtol=1e-4, atol=1e-5)
    assert network.scores(x, np.array([], int)).shape == (50, 0)
    for wrong in (-1, 700):
        with pytest.raises(DataError, match="0 to 699"):
            network.scores(x, np.array([2, wrong]))


@pytest.mark.parametrize("options", NETWORKS)
@pytest.mark.parametrize("family", ["simhash", "wta", "dwta", "minhash"])
def test_approximate_topk_scores_are_exact_and_its_labels_the_best_of_those_found(options, family):
    network = make_network(output="lsh", family=family, hash_k=2, tables=6, **options)
    x = make_rows(60)
    logits = all_logits(network, x)
    ids, scores = network.predict_topk_approximate(x, 700)
    for row, label, score in zip(logits, ids, scores, strict=True):
        found = label >= 0
        assert_allclose(score[found], row[label[found]], rtol=1e-4, atol=1e-5)
        assert (np.diff(score[found]) <= 0).all()
        assert len(set(label[found])) == found.sum()
        assert (score[~found] == -np.inf).all()
        assert not found[np.argmin(found) :].any() or found.all()  # -1 only at the end
    best, best_scores = network.predict_topk_approximate(x, 5)
    assert_array_equal(best, ids[:, :5])
    assert_array_equal(best_scores, scores[:, :5])
    assert (ids >= 0).mean() < 0.95  # or there was nothing approximate about it


def recall(network, x, k=10):
    exact, found = network.predict_topk(x, k)[0], network.predict_topk_approximate(x, k)[0]
    return np.mean([len(set(a) & set(b)) / k for a, b in zip(exact, found, strict=True)])


def test_more_tables_find_more_of_the_best():
    x = make_rows(200, seed=3)
    recalls = [recall(make_network(output="lsh", hash_k=8, tables=n, bucket_size=0), x) for n in (1, 4, 16, 64)]
    assert recalls[0] < recalls[1] < recalls[2] < recalls[3]
    assert recalls[0] < 0.3
    assert recalls[3] > 0.8


@pytest.mark.parametrize("output", ["cells", "lsh"])
def test_approximate_prediction_sees_weights_as_they_are_now(output):
    """Tables and cells are not those of the last rebuild in training: what is found is what a network made of the same
    weights finds."""
    network = make_network(output=output, hash_k=8, tables=5, optimizer="sgd", activation="linear")
    x = make_rows(200, seed=3)
    before, _ = network.predict_topk_approximate(x, 5)
    labels = Csr(np.arange(201), np.arange(200, dtype=np.int32), np.ones(200, np.float32))
    for step in range(3):
        network.train_step(Csr(x.indptr, x.indices, x.values), labels, step, 30.0)
    after, scores = network.predict_topk_approximate(x, 5)
    fresh = Network(network.config, FEATURES, LABELS)
    fresh.load_state(network.state())
    expected, expected_scores = fresh.predict_topk_approximate(x, 5)
    assert_array_equal(after, expected)
    assert_array_equal(scores, expected_scores)
    assert (after != before).mean() > 0.2


def test_a_network_for_prediction_has_no_tables_until_they_are_asked_for():
    trained = make_network(output="lsh", hidden=(24, 24), hidden_share=(0.5, 1.0))
    network = Network(trained.config, FEATURES, LABELS, trainable=False, weights=trained.state())
    assert all(layer.lsh is None for layer in network.layers)
    x = make_rows(30)
    assert_array_equal(network.predict_topk(x, 3)[0], trained.predict_topk(x, 3)[0])
    assert all(layer.lsh is None for layer in network.layers)
    assert recall(network, x) > 0


def test_rows_with_unknown_features_are_refused():
    with pytest.raises(DataError, match="41 features but the network was made for 40"):
        make_network().predict_topk(SparseRows.from_scipy(np.ones((1, 41))), 1)
