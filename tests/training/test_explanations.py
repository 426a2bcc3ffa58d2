"""What features add to a label's score: with the biases, the parts are the score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dslide
from dslide.data import SparseRows
from dslide.training.explanations import contributions, explain
from dslide.training.inference import Model


@pytest.fixture(scope="module", params=[("linear", (16,)), ("relu", (16,)), ("relu", (24, 12)), ("linear", (12, 8))])
def model(request, tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp("why")
    dslide.data.synthesize(folder / "toy", rows=600, features=120, labels=80, test_rows=20, seed=0)
    activation, hidden = request.param
    dslide.train(folder / "toy/train.txt", out=folder / "run", hidden=hidden, activation=activation, epochs=4,
                 threads=1, batch_size=32)  # fmt: skip
    return dslide.open_model(folder / "run", threads=1)


@pytest.fixture
def rows(model: Model) -> SparseRows:
    rng = np.random.default_rng(1)
    columns = np.sort(rng.permutation(120)[:7]).astype(np.int32)
    return SparseRows(np.array([0, 7]), columns, rng.uniform(0.2, 1, 7).astype(np.float32), 120)


def scores(model: Model, x: SparseRows, labels: np.ndarray) -> np.ndarray:
    """Scores before calibration, with the prior as in prediction."""
    network = model.network
    saved, network.calibration = network.calibration, type(network.calibration)(network.labels, False)
    try:
        return network.scores(x, labels)[0]
    finally:
        network.calibration = saved


def test_the_parts_and_the_biases_are_the_score(model: Model, rows: SparseRows) -> None:
    labels = np.array([3, 17, 60], np.int32)
    parts = contributions(model.network, rows, labels)
    assert np.abs(parts[0]).max() > 0
    assert model.network.prior is not None
    nothing = SparseRows(np.array([0, 0]), rows.indices[:0], rows.values[:0], 120)
    if model.network.config.activation == "linear":  # what is left without features are biases
        assert_allclose(sum(parts).sum(axis=0), scores(model, rows, labels) - scores(model, nothing, labels), atol=1e-4)
    else:  # half the values, the same active neurons: half of what features add
        few = SparseRows(rows.indptr, rows.indices, 0.999 * rows.values, 120)
        change = scores(model, rows, labels) - scores(model, few, labels)
        assert_allclose(parts[0].sum(axis=0), change / 0.001, rtol=0.05, atol=0.05)  # the others are scaled to length 1


def test_reasons_are_the_largest_and_have_names(model: Model, rows: SparseRows) -> None:
    reasons = explain(model, rows, [3, 17], 4)
    assert [len(each) for each in reasons] == [4, 4]
    sizes = [abs(reason.score) for reason in reasons[0]]
    assert sizes == sorted(sizes, reverse=True)
    base = model.saved.base
    assert {int(reason.feature) - base for reason in reasons[0]} <= set(rows.indices.tolist())
    first = reasons[0][0]
    assert first.score == pytest.approx(first.hidden + first.prior + first.linear, abs=1e-4)


def test_predictions_are_explained_on_request(model: Model, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("0 3:1.0 9:0.5\n")
    found = next(iter(dslide.predict(model, tmp_path / "rows.txt", k=2, why=2, format="libsvm")))
    assert found.why is not None
    assert [len(each) for each in found.why] == [2, 2]
    assert found.to_dict()["labels"][0]["why"][0].keys() == {"feature", "score", "hidden", "prior", "linear"}


def test_a_threshold_leaves_out_what_is_less_likely(model: Model, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("0 3:1.0 9:0.5\n")

    def predicted(threshold: float) -> dslide.Prediction:
        found = dslide.predict(
            model, tmp_path / "rows.txt", k=5, threshold=threshold, probabilities=True, format="libsvm"
        )
        return next(iter(found))

    every = predicted(0)
    assert every.probabilities is not None
    assert predicted(every.probabilities[2]).labels == every.labels[:3]
    with pytest.raises(dslide.UserError, match="0 to 1"):
        predicted(2)
