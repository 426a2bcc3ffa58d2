"""The communicator: what it promises (support/communicator_contract.py), kept by one rank alone, by ranks that are
threads, and by MPI ranks; and random programs of exchanges."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import communicator_contract
from support.communicator_contract import CONTRACT, LIMIT, all_to_all, same
from support.inprocess import run_ranks
from support.mpi_run import run_mpi

from dslide.comm import Communicator, ranks_in_words


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("promise", CONTRACT)
def test_ranks_as_threads(promise: str, size: int) -> None:
    run_ranks(size, CONTRACT[promise], LIMIT)


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def mpi_errors(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    """What went wrong on each MPI rank, by promise."""
    run = run_mpi(request.param, Path(communicator_contract.__file__))
    assert run.code == 0, run.stderr
    errors: list[dict[str, str]] = json.loads(run.stdout)
    assert len(errors) == request.param
    return errors


@pytest.mark.parametrize("promise", CONTRACT)
def test_ranks_over_mpi(promise: str, mpi_errors: list[dict[str, str]]) -> None:
    for rank, errors in enumerate(mpi_errors):
        assert promise not in errors, f"rank {rank}: {errors[promise]}"


@dataclass(frozen=True)
class Program:
    """Collectives to post, each with its size, and which of those in flight each rank then waits for, if any."""

    ranks: int
    sizes: list[int]
    waits: list[list[int]]  # [rank][exchange], index into those in flight; negative: for none


@st.composite
def programs(draw: st.DrawFn) -> Program:
    ranks = draw(st.integers(2, 4))
    sizes = draw(st.lists(st.sampled_from([0, 1, 17, 1000, 100_000]), min_size=1, max_size=12))
    some = st.lists(st.integers(-1, 3), min_size=len(sizes), max_size=len(sizes))
    return Program(ranks, sizes, [draw(some) for _ in range(ranks)])


@settings(max_examples=15, deadline=None)
@given(programs())
def test_random_programs(program: Program) -> None:
    def work(comm: Communicator) -> None:
        flying = []
        for number, (size, which) in enumerate(zip(program.sizes, program.waits[comm.rank], strict=True)):
            flying.append(all_to_all(comm, number, size))
            if which >= 0:
                exchange, want = flying.pop(which % len(flying))
                same(exchange.wait(), want)
        for exchange, want in flying:
            same(exchange.wait(), want)

    run_ranks(program.ranks, work)


def test_ranks_in_words() -> None:
    assert ranks_in_words([2]) == "rank 2"
    assert ranks_in_words([0, 3]) == "ranks 0 and 3"
    assert ranks_in_words([0, 3, 5]) == "ranks 0, 3 and 5"
