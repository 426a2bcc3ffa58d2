"""Text tables and units."""

from __future__ import annotations

import pytest

from dslide.util.tables import plain_table
from dslide.util.units import counted


def test_columns_are_aligned_left_or_right():
    rows = [["phase", "ms", "bound"], ["all", "10.25", ""], ["hidden forward", "7", "memory"]]
    assert plain_table(rows, "<><") == [
        "phase              ms  bound",
        "all             10.25",
        "hidden forward      7  memory",
    ]


def test_the_last_alignment_holds_for_further_columns():
    assert plain_table([["a", "b", "c"], ["1", "22", "333"]], "<>") == ["a   b    c", "1  22  333"]


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        plain_table([["a", "b"], ["1"]])


def test_counts_have_plurals():
    assert [counted(n, "node") for n in (0, 1, 2, 4096)] == ["0 nodes", "1 node", "2 nodes", "4,096 nodes"]
