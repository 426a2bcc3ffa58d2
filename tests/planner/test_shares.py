"""Shares of unequal machines: whole numbers near measured speeds, and within memory."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inprocess import run_ranks

from dslide.comm import Communicator
from dslide.config import Config
from dslide.errors import ConfigError
from dslide.planner.shares import job_shares, measured_shares, nearest_shares, shares_in_memory


@pytest.mark.parametrize(
    ("speeds", "shares"),
    [
        ([1, 1], ()), ([1, 1, 1, 1.001], ()), ([2, 1], (2, 1)), ([1, 3], (1, 3)), ([1.5, 1.5, 1], (3, 3, 2)),
        ([1000, 1], (15, 1)),
    ],
)  # fmt: skip
def test_shares_are_small_numbers_near_the_speeds(speeds: list[float], shares: tuple[int, ...]) -> None:
    assert nearest_shares(np.array(speeds) / sum(speeds)) == shares


@given(st.lists(st.floats(0.2, 1), min_size=2, max_size=12))
def test_no_rank_takes_much_longer_than_if_speeds_were_met_exactly(speeds: list[float]) -> None:
    fractions = np.array(speeds) / sum(speeds)
    shares = np.array(nearest_shares(fractions) or [1] * len(speeds))
    assert (shares / shares.sum() / fractions).max() < 1.35
    assert shares.max() <= 64


def test_shares_are_those_given_or_equal() -> None:
    def work(comm: Communicator) -> list[tuple[int, ...]]:
        with pytest.raises(ConfigError, match="3 are given for 2 ranks"):
            job_shares(comm, Config(shares=(3, 1, 1)))
        return [
            job_shares(comm, Config()),
            job_shares(comm, Config(shares=(3, 1))),
            job_shares(comm, Config(shares=(3, 1, 1)), may_differ=True),
        ]

    assert run_ranks(2, work) == [[(), (3, 1), ()]] * 2
    assert run_ranks(1, lambda comm: job_shares(comm, Config(shares=(-1,)))) == [()]


def test_measured_shares_are_the_same_on_every_rank() -> None:
    def work(comm: Communicator) -> tuple[tuple[int, ...], tuple[int, ...]]:
        comm.shares = (5, 1)
        shape = {"features": 300, "labels": 500, "features_per_row": 5, "labels_per_row": 2}
        return measured_shares(comm, Config(hidden=(16,), threads=1), shape), comm.shares

    first, second = run_ranks(2, work)
    assert first == second
    assert first[1] == (5, 1)  # as before
    assert len(first[0]) in (0, 2)


@pytest.mark.parametrize(
    ("shares", "free", "expected"),
    [
        ((), [100, 100], ()),
        ((3, 1), [100, 100], (3, 1)),
        ((3, 1), [60, 100], (1, 1)),  # the first has room for a half
        ((), [35, 100], (1, 3)),  # for a quarter
        ((2, 1, 1), [35, 100, 100], (2, 3, 3)),
        ((3, 1), [20, 20], (3, 1)),  # too little for all shares: said later, with what is needed
    ],
)
def test_a_share_is_no_larger_than_memory_allows(
    shares: tuple[int, ...], free: list[int], expected: tuple[int, ...]
) -> None:
    """The program takes 10 bytes, and the whole network 100."""

    def work(comm: Communicator) -> tuple[int, ...]:
        return shares_in_memory(comm, shares, lambda part: 10 + int(100 * part), free[comm.rank])

    found = run_ranks(len(free), work)
    assert found == [found[0]] * len(free)
    whole = found[0] or (1,) * len(free)
    assert [Fraction(share, sum(whole)) for share in whole] == [
        Fraction(share, sum(expected or (1,) * len(free))) for share in expected or (1,) * len(free)
    ]
