"""Scores of the best labels as chances: scaled by what rows show that the lines were not fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from dslide.data import SparseRows
from dslide.model.calibration import BEND, IDENTITY, OFFSET, SLOPE
from dslide.training.calibration import GROUPS, Candidates, scaled, sureness

ROWS, CANDIDATES = 4000, 8


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (0.5, 0.3), (0.7, -1.0)])
def test_the_slope_and_offset_of_chances_are_found(slope: float, offset: float) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (ROWS, CANDIDATES))
    hits = (rng.random(logits.shape) < 1 / (1 + np.exp(-slope * logits - offset))).astype(float)
    ids = np.tile(np.arange(CANDIDATES, dtype=np.int32), (ROWS, 1))
    none = SparseRows(np.zeros(ROWS + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), CANDIDATES)
    found = Candidates(ids, np.zeros_like(ids, np.int64), logits, np.zeros_like(logits), hits, none)
    as_they_are = np.tile(IDENTITY, (GROUPS, 1))
    got = sureness(found, lambda _: [as_they_are], 0, 3)
    np.testing.assert_allclose(got, (slope, offset), atol=0.06)


def test_what_lines_give_is_scaled() -> None:
    lines = np.tile([2.0, 1.0, -50.0, 0.5, -0.5, 0.0], (GROUPS, 1))
    changed = scaled(lines, 0.5, 0.25)
    assert changed[0, [SLOPE, OFFSET, BEND]].tolist() == [1.0, 0.75, -0.25]
    assert (changed[:, [2, 3, 5]] == lines[:, [2, 3, 5]]).all()
