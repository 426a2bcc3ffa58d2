"""Cells of hidden vectors, compared with slow versions, in training, in prediction and over ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference import retrieval
from support.inprocess import run_ranks
from support.plain import PLAIN

from dslide import Config, Network, SparseRows
from dslide.errors import ModelError
from dslide.model import cells
from dslide.model.activations import Dense
from dslide.model.cell_arrays import CELLS, SAMPLE, VALUES
from dslide.model.cells import RecentRows, k_means
from dslide.util.arrays import aligned_zeros, padded

HIDDEN, FEATURES, LABELS = 11, 30, 700  # more labels than a cell has
CONFIG = Config(**PLAIN | {"hidden": (HIDDEN,), "output": "cells", "hash_hits": 3, "random_negatives": 20, "seed": 3})


def vectors(rows: int, seed: int, groups: int = 400) -> np.ndarray:
    """Hidden vectors in groups, with padding."""
    rng = np.random.default_rng(seed)
    made = aligned_zeros(rows, padded(HIDDEN))
    made[:, :HIDDEN] = 3 * rng.standard_normal((groups, HIDDEN))[rng.integers(0, groups, rows)]
    made[:, :HIDDEN] += rng.standard_normal((rows, HIDDEN)) * 0.1
    return made


def inputs(rows: int, seed: int) -> SparseRows:
    rng = np.random.default_rng(seed)
    return SparseRows.from_scipy(rng.random((rows, FEATURES)) * (rng.random((rows, FEATURES)) < 0.2))


def network(comm=None, config: Config = CONFIG) -> Network:
    """One whose output weights and biases are random."""
    made = Network(config, FEATURES, LABELS, comm=comm)
    rng = np.random.default_rng(7)
    weights, bias = rng.standard_normal((LABELS, HIDDEN)), rng.standard_normal(LABELS).round(1)
    part = made.shard.part
    made.output.restart(part(weights).astype(np.float32), part(bias).astype(np.float32))
    return made


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 900), st.integers(0, 99), st.sampled_from([1, 3, 300]))
def test_centres_are_those_of_k_means(rows, seed, groups):
    values = vectors(rows, seed, groups)
    centres, sizes = k_means(values, None)
    expected = retrieval.k_means(values, CELLS, cells.ROUNDS)
    same = np.isclose(centres[: len(expected)], expected, atol=1e-3).all(axis=1)
    assert same.mean() >= 0.9  # a row half-way between two centres may go to either
    assert_array_equal(centres[len(expected) :], 0)
    assert sizes.sum() == rows
    cell = retrieval.nearest(values, centres[: len(expected)])
    assert_allclose(sizes[: len(expected)], np.bincount(cell, minlength=len(expected)), atol=2)


def test_a_cell_has_the_labels_with_the_largest_logits_at_its_centre():
    made = network()
    found = made.cells
    assert not found.built
    found.build(vectors(900, 1))
    assert found.built
    weights, bias = made.output.arrays["weights"], made.output.arrays["bias"][:, 0]
    used = found.state["labels"][:, 0] >= 0
    centres = found.state["centres"][used]
    expected = retrieval.best_labels(centres, weights, bias, 128)
    assert (found.state["labels"][used] == expected).mean() > 0.999  # sums in another order are rounded differently
    assert found.stats.cells == used.sum() == CELLS
    assert 0.5 < found.stats.recall <= 1


def test_rows_get_the_labels_of_their_cell_with_their_largest_logits():
    made = network()
    made.cells.build(vectors(900, 1))
    x = vectors(50, 2)
    weights, bias = made.output.arrays["weights"], made.output.arrays["bias"][:, 0]
    cell = retrieval.nearest(x, made.cells.state["centres"])
    hits = made.cells.look_up(Dense(x), 3, step=0)
    for i in range(len(x)):
        labels = np.sort(made.cells.state["labels"][cell[i]])
        expected = labels[retrieval.best_labels(x[i : i + 1], weights[labels], bias[labels], 3)[0]]
        row = slice(hits.lists.indptr[i], hits.lists.indptr[i + 1])
        assert_array_equal(hits.lists.indices[row], expected)
        assert (np.diff(hits.ranking[row].astype(np.float64)) < 0).all()
    candidates = made.cells.candidates(Dense(x))
    assert_array_equal(candidates.list_of, cell)
    assert set(candidates.lists.indices) <= set(made.cells.state["labels"].ravel())


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_find_together_what_one_finds(size):
    """700 labels, many with the same bias; output weights of a third are equal, so that many logits are."""

    def work(comm):
        made = network(comm)
        rows = made.shard.part(np.arange(LABELS))
        made.output.arrays["weights"][rows % 3 == 0] = 0
        made.cells.build(vectors(900, 1))
        best = made.collectives.best_hits(made.cells.look_up(Dense(vectors(50, 2)), 3, step=0), 3).wait()
        found = [set(made.shard.to_global(row).tolist()) for row in np.split(best.indices, best.indptr[1:-1])]
        return made.cells.state, found

    ((one, expected),) = run_ranks(1, work)
    assert {len(row) for row in expected} == {3}
    of_ranks = run_ranks(size, work)
    for state, _ in of_ranks:
        assert_array_equal(state["centres"], one["centres"])
        assert_array_equal(state["labels"], one["labels"])
    together = [set().union(*(found[i] for _, found in of_ranks)) for i in range(len(expected))]
    assert together == expected


def test_recent_rows_are_the_last_ones():
    recent = RecentRows(HIDDEN)
    assert len(recent.rows) == 0
    every = vectors(3 * SAMPLE, 4)
    done = 0
    for count in (100, SAMPLE - 200, 150, 300, SAMPLE + 5, 60):
        recent.add(every[done : done + count])
        done += count
        last = every[max(0, done - SAMPLE) : done]
        assert len(recent.rows) == len(last)
        assert {tuple(row) for row in recent.rows} == {tuple(row) for row in last}
    assert recent.state[VALUES].shape == (SAMPLE, padded(HIDDEN))


def test_prediction_makes_its_cells_once_and_again_when_weights_have_changed():
    made, x = network(), inputs(40, 5)
    assert_array_equal(made.predict_topk_approximate(x, 5)[0], made.predict_topk(x, 5)[0])  # nothing was trained on
    made.recent.add(vectors(900, 1))
    ids, scores = made.predict_topk_approximate(x, 5)
    index = made.prediction_index()
    assert index is made.index
    assert index.rebuilds == 1
    logits = made.scores(x, np.arange(LABELS, dtype=np.int32))
    assert_allclose(scores, np.take_along_axis(logits, ids, axis=1), rtol=1e-5)
    state = {name: array.copy() for name, array in made.state().items()}
    copy = Network(CONFIG, FEATURES, LABELS, trainable=False, weights=state)
    assert_array_equal(copy.predict_topk_approximate(x, 5)[0], ids)
    assert copy.index.rebuilds == 0
    made.begin_step(0, 0.1)
    assert not made.index.built
    made.predict_topk_approximate(x, 5)
    assert index.rebuilds == 2


def test_damaged_cells_are_refused():
    made = network()
    made.recent.add(vectors(300, 1))
    made.prediction_index()
    for name, value, message in (
        ("index.labels", LABELS, "label numbers must be below 700"),
        ("index.labels", -2, "label numbers must be below 700"),
        ("recent.seen", -1, "can't be below 0"),
    ):
        state = {name: array.copy() for name, array in made.state().items()}
        state[name].flat[0] = value
        with pytest.raises(ModelError, match=message):
            network().load_state(state)
