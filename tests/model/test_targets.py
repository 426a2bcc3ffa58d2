"""The targets that training makes of label weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslide import _core
from dslide.data import SparseRows
from dslide.model.output_losses import SigmoidLoss, SoftmaxLoss

WEIGHTS = st.lists(st.lists(st.floats(2.0**-20, 1000, width=32), max_size=5), max_size=8)  # of each row's labels


def rows_of(weights: list[list[float]]) -> SparseRows:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in weights])]).astype(np.int64)
    values = np.array([weight for row in weights for weight in row], np.float32)
    return SparseRows(offsets, np.arange(len(values), dtype=np.int32), values, max(1, len(values)))


@given(WEIGHTS)
def test_softmax_wants_shares_of_each_row(weights):
    expected = [weight / sum(row) for row in weights for weight in row]
    np.testing.assert_allclose(SoftmaxLoss.targets(rows_of(weights)).values, expected, rtol=1e-6)


def test_sigmoid_wants_weights_as_they_are():
    assert SigmoidLoss.targets(rows_of([[2.0, 3.0], [], [0.5]])).values.tolist() == [2.0, 3.0, 0.5]


@pytest.mark.parametrize("offsets", [[0, 1], [0, 3], [1, 2], [0, 2, 1, 2], []])
def test_offsets_that_do_not_fit_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets"):
        _core.row_shares(np.array(offsets, np.int64), np.ones(2, np.float32))
