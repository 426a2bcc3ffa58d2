"""Networks for dense rows start from the linear discriminant of the training data."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from reference.discriminant import logits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from support.bf16 import nearest
from support.inprocess import run_ranks

from dslide import Config, Network, SparseRows
from dslide.data import Dataset
from dslide.model import discriminant
from dslide.model.defaults import resolve
from dslide.model.discriminant import find_discriminant, label_sums
from dslide.model.sharding import Shard
from dslide.model.storage import narrowed

FEATURES, LABELS = 20, 60
Matrix = npt.NDArray[np.float32]


def clusters(rows_of_label: int = 5, noise: float = 0.7, seed: int = 0) -> tuple[Matrix, npt.NDArray[np.int64], Matrix]:
    """Rows around a mean for each label, their labels and the means; noise and means are spread differently."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((LABELS, FEATURES))
    spread = noise * rng.standard_normal((FEATURES, FEATURES)) / np.sqrt(FEATURES)
    labels = np.concatenate([np.full(max(1, rows_of_label + label % 3 - 1), label) for label in range(LABELS)])
    rows = means[labels] + rng.standard_normal((len(labels), FEATURES)) @ spread
    return rows.astype(np.float32), labels, means.astype(np.float32)


def dataset(x: Any, labels: npt.ArrayLike, count: int = LABELS) -> Dataset:
    labels = np.asarray(labels)
    y = sp.csr_matrix((np.ones(len(labels)), (np.arange(len(labels)), labels)), (len(labels), count))
    return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y))


def started(data: Dataset, comm: Any = None, **options: Any) -> Network:
    config = resolve(Config(**{"threads": 1, "wire": "float32", **options}), data.labels, data)
    network = Network(config, data.features, data.labels, comm=comm)
    network.set_discriminant(data)
    return network


def all_scores(network: Network, x: Any) -> npt.NDArray[np.float32]:
    return network.scores(SparseRows.from_scipy(x), np.arange(network.labels, dtype=np.int32))


# ---- what it is -----------------------------------------------------------------------------------------------------


def test_the_start_is_that_of_the_reference() -> None:
    x, labels, means = clusters()
    data = dataset(x, labels)
    expected = logits(x.astype(float), list(enumerate(labels)), LABELS, means.astype(float))
    network = started(data)
    expected += network.loss.initial_bias(data.label_frequencies())
    assert_allclose(all_scores(network, means), expected, rtol=1e-4, atol=1e-3)


def test_every_label_of_a_row_counts() -> None:
    x, labels, means = clusters()
    pairs = [*enumerate(labels), *((row, (label + 7) % LABELS) for row, label in enumerate(labels) if row % 2)]
    y = sp.csr_matrix((np.ones(len(pairs)), np.array(pairs).T), (len(x), LABELS))
    data = Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y))
    found = find_discriminant(data.x, data.y, FEATURES)
    weights, bias = np.zeros((LABELS, FEATURES)), np.zeros(LABELS)
    for own, sums in label_sums(data.x, data.y):
        weights[own], bias[own] = found.scores(sums, data.label_counts[own])
    if found.spread.min() == 0:
        pytest.fail("the reference is for means that are spread in all directions")
    expected = logits(x.astype(float), pairs, LABELS, means.astype(float))
    assert_allclose((means @ found.directions - found.offset) @ weights.T + bias, expected, rtol=1e-6, atol=1e-6)


def test_with_many_rows_it_is_scikit_learns() -> None:
    x, labels, _ = clusters(rows_of_label=60, noise=2.0)
    new, true, _ = clusters(rows_of_label=20, noise=2.0)
    predicted = started(dataset(x, labels)).predict_topk(SparseRows.from_scipy(new), 1)[0][:, 0]
    expected = LinearDiscriminantAnalysis().fit(x, labels).predict(new)
    assert 0.3 < (expected == true).mean() < 0.99  # neither trivial nor hopeless
    assert (predicted == expected).mean() > 0.97


def test_the_scale_of_columns_does_not_matter() -> None:
    x, labels, means = clusters()
    factor = np.float32(10.0) ** np.linspace(-6, 6, FEATURES, dtype=np.float32)
    plain, scaled = started(dataset(x, labels)), started(dataset(x * factor, labels))
    assert_allclose(all_scores(scaled, means * factor), all_scores(plain, means), rtol=1e-3, atol=1e-2)


def test_zeros_that_are_not_stored_count() -> None:
    x, labels, means = clusters()
    x[np.random.default_rng(1).random(x.shape) < 0.3] = 0
    stored = SparseRows(
        np.arange(len(x) + 1) * FEATURES, np.tile(np.arange(FEATURES, dtype=np.int32), len(x)), x.ravel(), FEATURES
    )
    data = dataset(x, labels)
    assert data.x.nnz < stored.nnz
    full = started(Dataset(stored, data.y))
    assert_allclose(all_scores(started(data), means), all_scores(full, means), rtol=1e-4, atol=1e-4)


def test_the_best_directions_are_kept() -> None:
    rng = np.random.default_rng(0)
    means, labels = np.zeros((LABELS, FEATURES)), np.repeat(np.arange(LABELS), 20)
    means[:, [3, 11]] = 9 * rng.standard_normal((LABELS, 2))
    x = (means[labels] + rng.standard_normal((len(labels), FEATURES))).astype(np.float32)
    found = find_discriminant(*(getattr(dataset(x, labels), name) for name in ("x", "y")), most=2)
    assert found.directions.shape == (FEATURES, 2)
    weight = (found.directions**2).sum(axis=1)
    assert set(np.argsort(-weight)[:2]) == {3, 11}
    network = started(dataset(x, labels), hidden=(2,))
    ids = network.predict_topk(SparseRows.from_scipy(means.astype(np.float32)), 1)[0][:, 0]
    assert (ids == np.arange(LABELS)).mean() > 0.8


def test_labels_that_do_not_exclude_each_other_begin_at_their_frequency() -> None:
    x, labels, means = clusters()
    network = started(dataset(x, labels), loss="sigmoid")
    frequencies = dataset(x, labels).label_frequencies()
    assert_allclose(
        all_scores(network, means), np.tile(np.log(frequencies / (1 - frequencies)), (LABELS, 1)), rtol=1e-5
    )
    hidden = network.layers[0].arrays
    z = x @ hidden["weights"][:, :FEATURES] + hidden["bias"][:FEATURES, 0]
    assert np.sqrt((z**2).sum(axis=1).mean()) == pytest.approx(10, rel=0.05)


# ---- odd data -------------------------------------------------------------------------------------------------------


def constant_column() -> tuple[Matrix, Any]:
    x, labels, _ = clusters()
    x[:, 4], x[:, 5], x[:, 6] = 0, 7.25, 1e-30
    return x, labels


def column_twice() -> tuple[Matrix, Any]:
    x, labels, _ = clusters()
    x[:, 4] = x[:, 5]
    return x, labels


def fewer_rows_than_columns() -> tuple[Matrix, Any]:
    x, labels, _ = clusters()
    return x[:16], labels[:16]


def one_row_a_label() -> tuple[Matrix, Any]:
    x, labels, _ = clusters()
    _, first = np.unique(labels, return_index=True)
    return x[first], labels[first]


def one_label() -> tuple[Matrix, Any]:
    x, _, _ = clusters()
    return x, np.full(len(x), 3)


def equal_rows() -> tuple[Matrix, Any]:
    return np.ones((50, FEATURES), np.float32), np.arange(50) % 5


def one_row() -> tuple[Matrix, Any]:
    return np.ones((1, FEATURES), np.float32), [2]


def large_numbers() -> tuple[Matrix, Any]:
    x, labels, _ = clusters()
    return x * np.float32(1e30), labels


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "make",
    [constant_column, column_twice, fewer_rows_than_columns, one_row_a_label, one_label, equal_rows, one_row,
     large_numbers],
)  # fmt: skip
def test_odd_data_gives_finite_scores(make: Any, loss: str) -> None:
    x, labels = make()
    data = dataset(x, labels)
    network = started(data, loss=loss)
    assert np.isfinite(all_scores(network, x)).all()
    result = network.train_step(data.x, network.loss.targets(data.y), 0, 0.05)
    assert np.isfinite(result.loss)


@pytest.mark.parametrize(
    "make", [constant_column, column_twice, one_row_a_label, fewer_rows_than_columns, large_numbers]
)
def test_rows_of_such_data_are_told_apart(make: Any) -> None:
    x, labels = make()
    predicted = started(dataset(x, labels)).predict_topk(SparseRows.from_scipy(x), 1)[0][:, 0]
    assert (predicted == labels).mean() > 0.95


def test_a_label_without_rows_is_never_first() -> None:
    x, labels, means = clusters()
    network = started(dataset(x, labels, LABELS + 5))
    assert network.predict_topk(SparseRows.from_scipy(means), 1)[0].max() < LABELS


def test_a_network_may_have_more_features_labels_and_neurons_than_the_data() -> None:
    x, labels, means = clusters()
    data = dataset(x, labels)
    config = resolve(Config(threads=1, hidden=(FEATURES + 9,)), LABELS, data)
    network = Network(config, FEATURES + 4, LABELS + 3)
    network.set_discriminant(data)
    assert_allclose(all_scores(network, means)[:, :LABELS], all_scores(started(data), means), rtol=1e-4, atol=1e-4)


# ---- sums -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
@pytest.mark.parametrize("shard", [Shard(), Shard(0, 3), Shard(2, 3), Shard(1, 3, (1, 3, 2))])
def test_sums_do_not_depend_on_pieces(monkeypatch: pytest.MonkeyPatch, rows: int, shard: Shard) -> None:
    monkeypatch.setattr(discriminant, "PIECE_BYTES", 8 * FEATURES * rows)
    x, labels, _ = clusters()
    data = dataset(x, labels, LABELS + 1)
    found = list(label_sums(data.x, data.y, shard))
    ids = np.concatenate([own for own, _ in found])
    assert_array_equal(ids, np.arange(shard.count(LABELS)))
    expected = [x[labels == label].sum(axis=0, dtype=np.float64) for label in range(LABELS)]
    assert_allclose(np.concatenate([sums for _, sums in found]), shard.part(np.array(expected)), rtol=1e-12)


def test_moments_do_not_depend_on_pieces_and_lose_no_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels, _ = clusters()
    x = np.round(x * 64) / 64 + np.float32(1e4)  # exact in 32 bits
    data = dataset(x, labels)
    whole = find_discriminant(data.x, data.y, FEATURES)
    monkeypatch.setattr(discriminant, "PIECE_BYTES", 8 * FEATURES * 7)
    pieces = find_discriminant(data.x, data.y, FEATURES)
    near = dataset(x - np.float32(1e4), labels)
    for other in (pieces, find_discriminant(near.x, near.y, FEATURES)):
        assert_allclose(other.spread, whole.spread, rtol=1e-6)
        assert_allclose(np.abs(other.directions), np.abs(whole.directions), rtol=1e-4, atol=1e-6)


# ---- the network ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_start_and_train_as_one(size: int) -> None:
    x, labels, means = clusters()
    data = dataset(x, labels)

    def work(comm: Any) -> tuple[Any, Any]:
        network = started(data, comm)
        first = all_scores(network, means)
        for step in range(3):
            network.train_step(data.x, network.loss.targets(data.y), step, 0.05)
        return first, all_scores(network, means)

    ((first, last),) = run_ranks(1, work)
    for its_first, its_last in run_ranks(size, work):
        assert_allclose(its_first, first, rtol=1e-5, atol=1e-4)
        assert_allclose(its_last, last, rtol=1e-4, atol=1e-3)


def test_directions_are_not_trained_and_scores_are() -> None:
    x, labels, _ = clusters(noise=2.0)
    data = dataset(x, labels)
    network = started(data)
    before = {name: array.copy() for name, array in network.state().items()}
    network.train_step(data.x, network.loss.targets(data.y), 0, 0.05)
    changed = {name for name, array in network.state().items() if not np.array_equal(array, before[name])}
    assert {"layer1.weights", "layer1.bias"} <= changed
    assert not {name for name in changed if name.startswith("layer0.")}


def test_starting_again_forgets_training() -> None:
    x, labels, _ = clusters(noise=2.0)
    data = dataset(x, labels)
    network = started(data, output="lsh")
    before = {name: array.copy() for name, array in network.state().items()}
    for step in range(2):
        network.train_step(data.x, network.loss.targets(data.y), step, 0.05)
    assert network.output.lsh is not None
    assert network.output.lsh.built
    network.set_discriminant(data)
    assert not network.output.lsh.built  # tables are of other weights
    for name, array in network.state().items():
        if not name.endswith(".codes"):
            assert_array_equal(array, before[name], err_msg=name)


def test_bf16_weights_are_the_nearest() -> None:
    x, labels, _ = clusters()
    full, half = (started(dataset(x, labels), weights=weights) for weights in ("float32", "bf16"))
    for one, other in zip(full.layers, half.layers, strict=True):
        assert_array_equal(other.arrays["weights"], nearest(np.array(one.arrays["weights"])))


def test_rounding_to_bf16_is_to_the_nearest() -> None:
    numbers = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    halfway = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 0.0, -0.0], np.float32)
    for some in (numbers, numbers * np.float32(1e-38), numbers * np.float32(1e37), halfway):
        assert_array_equal(narrowed(some), nearest(some))
