"""Votes of neighbours, compared with a slow reference; wrong arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.neighbours import votes

from dslide import _core
from dslide.model.cells import centre_layer
from dslide.model.storage import rounded_to_int8
from dslide.util.csr import indptr_of

STRIDE, LABELS = 16, 12


def layer_of(vectors: np.ndarray) -> Any:
    """A layer of int8 whose neurons have these weights, and the weights as it has them."""
    none, clock = np.zeros((0, 0), np.float32), np.zeros(0, np.uint32)
    stored, scale = rounded_to_int8(vectors)
    rows = _core.Parameters(stored, none, none, clock, STRIDE, scale)
    layer = _core.DenseLayer(rows, _core.Parameters(np.zeros((len(vectors), 1), np.float32), none, none, clock, 1))
    return layer, stored * scale


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(0, 9), st.integers(1, 60), st.integers(1, 6), st.integers(1, 9),
    st.integers(1, 70), st.sampled_from([0.0, 1.0, 2.0, 16.0]),
)  # fmt: skip
def test_votes_are_those_of_the_reference(seed, queries, rows, cells, probes, count, power):
    rng = np.random.default_rng(seed)
    probes = min(probes, cells)
    vectors = rng.standard_normal((rows, STRIDE)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    centres = rng.standard_normal((cells, STRIDE)).astype(np.float32) / 4
    cell = np.sort(rng.integers(0, cells, rows))
    layer, vectors = layer_of(vectors)
    labels = [sorted(rng.choice(LABELS, rng.integers(0, 4), replace=False).tolist()) for _ in range(rows)]
    offsets = indptr_of([len(each) for each in labels])
    begins = indptr_of(np.bincount(cell, minlength=cells))
    used = np.bincount(cell, minlength=cells) > 0
    flat = np.array([label for each in labels for label in each], np.int32)
    index = _core.NeighbourIndex(centre_layer(centres, used), layer, begins, offsets, flat, LABELS)
    h = rng.standard_normal((queries, STRIDE)).astype(np.float32)
    h[rng.random(queries) < 0.1] = 0
    wanted = rng.integers(-1, LABELS, (queries, 7)).astype(np.int32)
    found = np.full(wanted.shape, np.nan, np.float32)
    index.votes(h, wanted, found, probes, count, power)
    expected = votes(h, wanted, vectors, cell, centres, labels, probes, count, power)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_wrong_arguments_are_refused():
    layer, _ = layer_of(np.eye(4, STRIDE, dtype=np.float32))
    centres = centre_layer(np.eye(2, STRIDE, dtype=np.float32), np.ones(2, bool))
    offsets, labels = np.arange(5, dtype=np.int64), np.zeros(4, np.int32)
    cells = np.array([0, 1, 4], np.int64)
    for changed, message in (
        ({"cells": np.array([0, 4], np.int64)}, "cells"),
        ({"cells": np.array([0, 1, 3], np.int64)}, "span"),
        ({"offsets": offsets[:-1]}, "offsets"),
        ({"labels": np.full(4, LABELS, np.int32)}, "out of range"),
        ({"centres": centre_layer(np.eye(2, 2 * STRIDE, dtype=np.float32), np.ones(2, bool))}, "stride"),
    ):
        given = {"centres": centres, "cells": cells, "offsets": offsets, "labels": labels} | changed
        with pytest.raises(ValueError, match=message):
            _core.NeighbourIndex(vectors=layer, all_labels=LABELS, **given)
    index = _core.NeighbourIndex(centres, layer, cells, offsets, labels, LABELS)
    h, wanted, found = np.ones((3, STRIDE), np.float32), np.zeros((3, 2), np.int32), np.zeros((3, 2), np.float32)
    for arguments in ((h[:, :8].copy(), wanted, found), (h, wanted[:2], found), (h, wanted, found[:, :1].copy())):
        with pytest.raises(ValueError, match=r"stride|as many labels"):
            index.votes(*arguments, 1, 5, 1.0)
