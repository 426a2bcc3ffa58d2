"""Networks of dense rows: as of sparse rows with the same numbers; and those without hidden layers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.inprocess import run_ranks
from support.plain import PLAIN

from dslide import Config, Network, SparseRows
from dslide.data import Dataset, DenseRows, MixedRows
from dslide.data.dense_rows import as_sparse
from dslide.errors import ConfigError, DataError
from dslide.model.defaults import resolve
from dslide.training.explanations import contributions
from dslide.training.trainer import Trainer

SPARSE, DENSE, LABELS, ROWS = 30, 37, 53, 150
BASE = PLAIN | {"hidden": (20,), "output": "full", "wire": "float32", "learning_rate": 0.02, "epsilon": 1e-5}


def numbers(columns: int, seed: int, rows: int = ROWS) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def bag(seed: int) -> SparseRows:
    return SparseRows.from_scipy(sp.random(ROWS, SPARSE, 0.2, "csr", np.float32, np.random.default_rng(seed)))


def labels(seed: int, several: bool) -> SparseRows:
    rng = np.random.default_rng(seed)
    y = np.zeros((ROWS, LABELS), np.float32)
    y[np.arange(ROWS), rng.integers(0, LABELS, ROWS)] = 1
    if several:
        y[rng.random(y.shape) < 0.03] = 1
    return SparseRows.from_scipy(sp.csr_matrix(y))


def both_forms(kind: str, seed: int) -> tuple[Any, SparseRows]:
    """Rows with dense features, and the same as sparse rows."""
    dense = numbers(DENSE, seed)
    if kind == "dense":
        return DenseRows(dense), SparseRows.from_scipy(sp.csr_matrix(dense))
    sparse = bag(seed)
    together = sp.hstack([sparse.to_scipy(), sp.csr_matrix(dense)], "csr")
    return MixedRows(sparse, DenseRows(dense)), SparseRows.from_scipy(together)


def trained(config: Config, forms: list[Any], ys: list[SparseRows], features: int, comm: Any = None) -> Network:
    network = Network(resolve(config, LABELS), features, LABELS, comm=comm)
    network.set_output_bias(np.full(LABELS, 1 / LABELS))
    for step, (x, y) in enumerate(zip(forms, ys, strict=True)):
        network.train_step(x, network.loss.targets(y), step, 0.02)
    return network


def assert_alike(found: Network, expected: Network, tolerance: float = 2e-5) -> None:
    for name, array in expected.state().items():
        assert_allclose(found.state()[name], array, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("kind", ["dense", "mixed"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hidden": (24, 20), "activation": "relu"},
        {"loss": "sigmoid", "dropout_hidden": 0.3},
        {"optimizer": "adagrad", "dropout_input": 0.2},
        {"output": "random", "random_negatives": 20},
        {"active_sets": "row", "output": "random", "random_negatives": 20},
        {"hidden_share": (0.5,), "tables": 4, "hash_k": 2},
    ],
    ids=str,
)
def test_training_and_prediction_are_those_of_sparse_rows(kind: str, options: dict[str, Any]) -> None:
    if kind == "mixed" and "dropout_input" in options:
        options = {}  # dense features are left out by other random numbers
    config, many = Config(**(BASE | options)), "loss" in options
    forms = [both_forms(kind, seed) for seed in range(5)]
    ys = [labels(seed, many) for seed in range(5)]
    features = forms[0][1].columns
    found = trained(config, [dense for dense, _ in forms], ys, features)
    expected = trained(config, [sparse for _, sparse in forms], ys, features)
    assert_alike(found, expected)
    dense, sparse = forms[0]
    for form in (dense, sparse):  # a network takes both
        assert_array_equal(found.predict_topk(form, 3)[0], expected.predict_topk(sparse, 3)[0])
        assert_allclose(found.predict_topk(form, 3)[1], expected.predict_topk(sparse, 3)[1], atol=1e-4)
        assert_allclose(found.scores(form, np.arange(9)), expected.scores(sparse, np.arange(9)), atol=1e-4)
        assert found.exact_loss(form, ys[0]) == pytest.approx(expected.exact_loss(sparse, ys[0]), abs=1e-4)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 140), features=st.sampled_from([1, 15, 16, 17, 100]), hidden=st.sampled_from([1, 16, 65]),
       stored=st.sampled_from(["float16", "float64"]), seed=st.integers(0, 2**32 - 1))  # fmt: skip
def test_any_shape_and_type(rows: int, features: int, hidden: int, stored: str, seed: int) -> None:
    x = numbers(features, seed, rows).astype(stored)
    y = SparseRows.from_scipy(sp.csr_matrix(np.eye(rows, LABELS, dtype=np.float32)[:, ::-1]))
    config = Config(**(BASE | {"hidden": (hidden,)}))
    found = trained(config, [DenseRows(x)] * 2, [y] * 2, features)
    expected = trained(config, [SparseRows.from_scipy(sp.csr_matrix(x.astype(np.float32)))] * 2, [y] * 2, features)
    assert_alike(found, expected, 1e-4)


OPTIONS_OF_RANKS: list[dict[str, Any]] = [
    {},
    {"loss": "sigmoid"},
    {"hidden": ()},
    {"hidden": (), "loss": "sigmoid"},
    {"hidden": (), "unit_length": "both", "temperature": 0.1, "output_bias": False},
]


@pytest.mark.parametrize("options", OPTIONS_OF_RANKS, ids=str)
def test_several_ranks_are_one(options: dict[str, Any]) -> None:
    config = Config(**(BASE | options))
    forms, ys = [both_forms("dense", seed)[0] for seed in range(3)], [labels(seed, True) for seed in range(3)]
    one = trained(config, forms, ys, DENSE)
    expected = one.predict_topk(forms[0], 5)

    def train(comm: Any) -> Any:
        network = trained(config, forms, ys, DENSE, comm)
        return network.predict_topk(forms[0], 5), network.scores(forms[0], np.arange(LABELS))

    for (ids, best), scores in run_ranks(3, train):
        assert_array_equal(ids, expected[0])
        assert_allclose(best, expected[1], atol=1e-4)
        assert_allclose(scores, one.scores(forms[0], np.arange(LABELS)), atol=1e-4)


# ---- without hidden layers ------------------------------------------------------------------------------------------


def torch_loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor, config: Config) -> torch.Tensor:
    """The loss of a linear classifier with these options, as PyTorch computes it."""
    if config.unit_length != "none":
        x = torch.nn.functional.normalize(x)
    if config.unit_length == "both":
        w = torch.nn.functional.normalize(w)
    logits = x @ w.T / config.temperature + (b if config.output_bias else 0)
    if config.loss == "softmax":
        return -(y / y.sum(1, keepdim=True) * torch.log_softmax(logits, 1)).sum(1).mean()
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="sum") / len(x)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unit_length": "rows", "temperature": 0.2},
        {"unit_length": "both", "temperature": 0.05, "output_bias": False},
        {"unit_length": "both"},
    ],
    ids=str,
)
def test_a_linear_classifier_has_the_gradients_of_pytorch(loss: str, options: dict[str, Any]) -> None:
    """A small step of SGD is along PyTorch's gradient; also where weights are divided by their length."""
    config = Config(**(BASE | {"hidden": (), "optimizer": "sgd", "loss": loss, "correction": False} | options))
    x = 3 * numbers(DENSE, 1)
    y = labels(1, True)
    network = Network(config, DENSE, LABELS)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((LABELS, DENSE)).astype(np.float32)
    bias = rng.standard_normal(LABELS).astype(np.float32) if config.output_bias else np.zeros(LABELS, np.float32)
    if config.unit_length == "both":
        weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    network.output.restart(weights, bias)
    rate = 1e-3
    step = network.train_step(DenseRows(x), network.loss.targets(y), 0, rate)
    w, b = (torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in (weights, bias))
    dense = torch.tensor(y.to_scipy().toarray(), dtype=torch.float64)
    value = torch_loss(torch.tensor(x, dtype=torch.float64), w, b, dense, network.config)
    value.backward()  # type: ignore[no-untyped-call]
    assert step.loss == pytest.approx(value.item(), rel=1e-4)
    moved = network.output.vectors(np.arange(LABELS, dtype=np.int32)).astype(np.float64) - weights
    assert w.grad is not None
    # 1e-4: float32 weights of about 1; with unit length also the second order of the step
    assert_allclose(moved / -rate, w.grad.numpy(), atol=2e-3 * float(w.grad.abs().max()) + 1e-4)
    if config.unit_length == "both":
        assert_allclose(np.linalg.norm(network.output.vectors(np.arange(LABELS, dtype=np.int32)), axis=1), 1, rtol=1e-5)
    moved_bias = network.output.arrays["bias"][:, 0] - bias
    expected = np.zeros(LABELS) if b.grad is None else b.grad.numpy()
    assert_allclose(moved_bias / -rate, expected, atol=1e-3)


def test_active_sets_of_rows_keep_the_length_of_weights() -> None:
    options = {"hidden": (), "unit_length": "both", "active_sets": "row", "output": "random", "random_negatives": 9}
    network = trained(Config(**(BASE | options)), [DenseRows(numbers(DENSE, 1))] * 3, [labels(1, False)] * 3, DENSE)
    weights = network.output.vectors(np.arange(LABELS, dtype=np.int32))
    assert_allclose(np.linalg.norm(weights, axis=1), 1, rtol=1e-5)


def test_scores_are_cosines_over_the_temperature() -> None:
    config = Config(**(BASE | {"hidden": (), "unit_length": "both", "temperature": 0.05, "output_bias": False}))
    x = 7 * numbers(DENSE, 1)
    network = trained(config, [DenseRows(x)] * 3, [labels(1, False)] * 3, DENSE)
    network.calibration.reset()
    w = network.output.vectors(np.arange(LABELS, dtype=np.int32))
    cosines = (x @ w.T) / np.linalg.norm(x, axis=1, keepdims=True) / np.linalg.norm(w, axis=1)
    assert np.abs(cosines).max() <= 1 + 1e-5
    assert_allclose(network.scores(DenseRows(x), np.arange(LABELS)), cosines / 0.05, atol=1e-3)
    assert_allclose(network.predict_topk(DenseRows(x), 1)[1][:, 0], (cosines / 0.05).max(axis=1), atol=1e-3)


@pytest.mark.parametrize("kind", ["dense", "mixed"])
def test_a_linear_classifier_takes_all_kinds_of_rows(kind: str) -> None:
    config = Config(**(BASE | {"hidden": (), "dropout_input": 0.1}))
    rows, sparse = both_forms(kind, 3)
    y = labels(3, False)
    assert_alike(*(trained(config, [x] * 3, [y] * 3, sparse.columns) for x in (rows, sparse)))


def test_training_makes_a_linear_classifier_better() -> None:
    y = labels(1, False)
    x = np.random.default_rng(0).standard_normal((LABELS, DENSE))[y.indices] + numbers(DENSE, 1)
    data = Dataset(DenseRows(x), y)
    for options in ({}, {"unit_length": "both", "temperature": 0.05}, {"output": "cells", "hash_hits": 4}):
        config = resolve(Config(hidden=(), epochs=8, batch_size=16, validation=0, threads=1, **options), LABELS, data)
        trainer = Trainer(config, DENSE, LABELS)
        before = trainer.network.exact_loss(data.x, data.y)
        result = trainer.fit(data)
        assert not result.interrupted
        assert trainer.network.exact_loss(data.x, data.y) < 0.8 * before
    found, exact = (
        predict(data.x, 3)[0] for predict in (trainer.network.predict_topk_approximate, trainer.network.predict_topk)
    )
    assert (found[:, 0] == exact[:, 0]).mean() > 0.5


def test_a_trainer_whose_options_knew_no_data_takes_dense_rows() -> None:
    data = Dataset(DenseRows(numbers(DENSE, 0)), labels(0, False))
    trainer = Trainer(Config(hidden=(8,), epochs=2, threads=1), DENSE, LABELS)
    assert trainer.fit(data).steps == 2
    assert trainer.network.prior is None


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit_length": "rows"}, "unit_length: is for networks without hidden layers, hidden = none"),
        ({"hidden": (8,), "temperature": 0.5}, "temperature: is for networks without hidden layers"),
        ({"output_bias": False}, "output_bias: is for networks without hidden layers"),
        ({"hidden": (), "prior_labels": 4}, "prior_labels: a network without hidden layers has no label prior"),
        ({"hidden": (), "start": "discriminant"}, r"start = discriminant is for one linear .* not for hidden = \(\)"),
        ({"hidden": (), "hidden_share": (0.5,)}, "hidden_share: 1 values given for 0 hidden layers"),
        ({"hidden": (), "unit_length": "both", "weights": "bf16"}, "weights = bf16: weights of length 1"),
        ({"hidden": (0,)}, "hidden: expected a whole number, 1 to 16,777,216, not 0"),
        ({"hidden": (8, -1)}, "hidden: expected a whole number, 1 to 16,777,216, not -1"),
        ({"hidden": (), "temperature": 0}, "temperature: expected a number"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**options)


def test_rows_that_do_not_fit_are_refused() -> None:
    network = Network(Config(**BASE), DENSE, LABELS)
    for rows in (DenseRows(numbers(DENSE - 1, 0)), DenseRows(numbers(DENSE + 1, 0)),
                 MixedRows(bag(0), DenseRows(numbers(DENSE, 0)))):  # fmt: skip
        with pytest.raises(DataError, match=f"rows have {rows.columns} features but the network was made for {DENSE}"):
            network.predict_topk(rows, 1)
    bad = numbers(DENSE, 0)
    bad[3, 5] = np.nan
    with pytest.raises(DataError, match="row 3, column 5: expected a finite 32-bit number, found nan"):
        network.predict_topk(DenseRows(bad), 1)
    with pytest.raises(ConfigError, match="hidden = none: is for rows of at most 65,536 features, not 65,537"):
        Network(Config(hidden=()), 65_537, LABELS)
    data = Dataset(DenseRows(numbers(DENSE, 0)), labels(0, False))
    with pytest.raises(ConfigError, match="prior_labels: a label prior is for sparse features"):
        resolve(Config(prior_labels=8), LABELS, data)


def test_rows_are_chosen_without_copies() -> None:
    values = numbers(DENSE, 0)
    data = Dataset(DenseRows(values), labels(0, False))
    train, held_out = data.split(0.2, seed=1)
    again = train.and_rows(held_out)
    for part in (train, held_out, again, data.take(np.array([5, 1]))):
        assert isinstance(part.x, DenseRows)
        assert part.x.values is values
    order = np.concatenate([train.x.numbers(), held_out.x.numbers()])
    assert_array_equal(again.x.matrix()[:, :DENSE], values[order])
    assert data.checksum == Dataset(DenseRows(values.copy()), labels(0, False)).checksum != train.checksum
    assert all(a.columns == b.columns for a, b in pairwise([data.x, train.x, again.x]))


@pytest.mark.parametrize(
    "options",
    [{}, {"hidden": ()}, {"hidden": (), "unit_length": "both", "temperature": 0.2, "output_bias": False}],
    ids=str,
)
def test_what_features_add_and_the_biases_are_the_score(options: dict[str, Any]) -> None:
    config = Config(**(BASE | {"activation": "linear"} | options))
    x, ids = 3 * numbers(DENSE, 1), np.arange(LABELS, dtype=np.int32)
    network = trained(config, [DenseRows(x)] * 3, [labels(1, False)] * 3, DENSE)
    row = DenseRows(x).part(4, 5)
    nothing = SparseRows(np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), DENSE)
    added, _, _ = contributions(network, as_sparse(row), ids)
    assert_allclose(added.sum(axis=0), (network.scores(row, ids) - network.scores(nothing, ids))[0], atol=1e-4)
