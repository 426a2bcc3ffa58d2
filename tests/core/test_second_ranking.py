"""Candidates that linear classifiers rank again, compared with NumPy; predictions from many threads at once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide import Config, Network, SparseRows, _core
from dslide.model.calibration import Calibration
from dslide.model.linear import LinearClassifiers
from dslide.model.sharding import Shard

FEATURES = 30


def rows_of(rng: np.random.Generator, rows: int, columns: int, share: float) -> SparseRows:
    return SparseRows.from_scipy(rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < share))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(1, 9), st.integers(1, 12), st.integers(0, 9))
def test_candidates_are_ranked_by_score_and_ties_by_label(seed, rows, count, ranked, k):
    rng = np.random.default_rng(seed)
    ids = np.array([rng.permutation(20)[:count] for _ in range(rows)], np.int32).reshape(rows, count)
    ids[rng.random(ids.shape) < 0.2] = -1
    scores = rng.integers(-3, 3, ids.shape).astype(np.float32)
    k = min(k, count)
    best = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
    _core.rank_again(ids, scores, ranked, *best)
    known = np.where(ids >= 0, scores, -np.inf)
    order = np.tile(np.arange(count), (rows, 1))
    order[:, :ranked] = np.lexsort((ids[:, :ranked], -known[:, :ranked]), axis=1)
    np.testing.assert_array_equal(best[0], np.take_along_axis(ids, order, axis=1)[:, :k])
    expected = np.minimum.accumulate(np.take_along_axis(known, order, axis=1), axis=1)[:, :k]
    np.testing.assert_array_equal(best[1], expected)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 4, 9, 30]),
    st.integers(1, 70),
    st.sampled_from([Shard(), Shard(1, 3), Shard(1, 2, (1, 3))]),
    st.sampled_from([(FEATURES, 0.5, 0.3), (200, 0.08, 0.3), (200, 0.9, 0.3), (200, 0.9, 0.02), (3, 0.1, 0.3)]),
)
def test_mixed_scores_are_calibrated_sums(seed, rows, count, shard, shape):
    """Of few rows, which are scored one by one, and of many, which are scored label by label."""
    rng = np.random.default_rng(seed)
    labels, (features, share, share_of_rows) = 40, shape
    *_, last, beyond = shard.numbers(labels + 1).tolist()
    weights, x = rows_of(rng, labels, features, share), rows_of(rng, rows, features, share_of_rows)
    bias = rng.standard_normal(labels).astype(np.float32)
    arrays = {"begin": weights.indptr, "feature": weights.indices, "weight": weights.values, "bias": bias}
    linear = LinearClassifiers(arrays | {"factor": np.ones(labels, np.float32)}, features)
    calibration = Calibration(labels, exclusive=False)
    calibration.set_lines(rng.uniform(0.1, 2, (labels, 5)))
    ids = rng.integers(-1, last + 1, (rows, count)).astype(np.int32)
    logits, found = rng.standard_normal(ids.shape).astype(np.float32), np.empty(ids.shape, np.float32)
    csr = x.indptr, x.indices, x.values, _core.row_norms(x.indptr, x.values)
    linear._native.mixed_scores(*csr, ids, logits, found, *calibration.native, shard.stripe)
    is_own = (ids >= 0) & shard.owns(ids)
    own = np.where(is_own, shard.to_local(ids), -1)
    lengths = np.sqrt(np.asarray(x.to_scipy().power(2).sum(axis=1)).reshape(-1, 1))
    unit = x.to_scipy().toarray() / np.where(lengths > 0, lengths, 1)
    np.testing.assert_allclose(
        linear.scores(x, own),
        np.where(is_own, np.take_along_axis(unit @ weights.to_scipy().toarray().T + bias, own, axis=1), 0),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip
    scores = linear.scores(x, own)
    for row in range(rows):
        np.testing.assert_array_equal(scores[row : row + 1], linear.scores(x.part(row, row + 1), own[row : row + 1]))
    mixed = logits + scores
    for row, place in zip(*np.nonzero(is_own), strict=True):
        label = own[row, place]
        expected = calibration.scores(mixed[row : row + 1, place : place + 1], np.array([label]))[0, 0]
        np.testing.assert_allclose(found[row, place], expected, rtol=1e-4, atol=1e-4)
    assert (found[~is_own] == 0).all()
    wrong = np.full((rows, count), beyond, np.int32)
    with pytest.raises(ValueError, match="out of range"):
        linear._native.mixed_scores(*csr, wrong, logits, found, *calibration.native, shard.stripe)


def test_one_network_predicts_alike_from_many_threads_at_once() -> None:
    """With a label prior and an index, row by row and in batches."""
    rng = np.random.default_rng(5)
    labels = 600
    x, y = rows_of(rng, 200, FEATURES, 0.3), rows_of(rng, 200, labels, 0.01)
    network = Network(Config(hidden=(16,), output="cells", seed=1), FEATURES, labels)
    network.set_label_prior(x, y, same=False)
    network.recent.add(rng.standard_normal((300, 16)).astype(np.float32))  # type: ignore[union-attr]
    network.prediction_index()
    _core.set_threads(2)
    expected = [predict(x, 5) for predict in (network.predict_topk, network.predict_topk_approximate)]
    failures: list[str] = []

    def work(number: int) -> None:
        for row in range(number, 200, 8):
            one = x.part(row, row + 1)
            for predict, best in zip((network.predict_topk, network.predict_topk_approximate), expected, strict=True):
                if not np.array_equal(predict(one, 5)[0][0], best[0][row]):
                    failures.append(f"row {row}")
        if not np.array_equal(network.predict_topk_approximate(x, 5)[0], expected[1][0]):
            failures.append("batch")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
