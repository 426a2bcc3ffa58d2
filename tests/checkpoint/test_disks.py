"""Which ranks share a disk, and who keeps whose files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inprocess import run_ranks

from dslide.checkpoint.disks import buddy, find_disks
from dslide.comm import Communicator
from dslide.errors import ModelError


@pytest.mark.parametrize("places", ["a", "aaa", "abc", "abab", "abbca"])
def test_ranks_find_those_that_share_their_disk(tmp_path: Path, places: str) -> None:
    for place in places:
        (tmp_path / place).mkdir(exist_ok=True)
    found = run_ranks(len(places), lambda comm: find_disks(tmp_path / places[comm.rank], comm))
    expected = [[rank for rank, place in enumerate(places) if place == disk] for disk in dict.fromkeys(places)]
    assert found == [expected] * len(places)
    for place in places:
        assert list((tmp_path / place).iterdir()) == []


def test_a_rank_that_can_leave_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    def work(comm: Communicator) -> str:
        with pytest.raises(ModelError) as error:
            find_disks(tmp_path / "ab"[comm.rank], comm)
        return str(error.value)

    said = f"rank 1: {tmp_path}/b: nothing can be written there: No such file or directory"
    assert run_ranks(2, work) == [said, said]
    assert list((tmp_path / "a").iterdir()) == []


@st.composite
def disks(draw: st.DrawFn) -> list[list[int]]:
    """Ranks on disks, as find_disks gives them."""
    of_rank = draw(st.lists(st.integers(0, 5), min_size=1, max_size=12))
    return [[rank for rank, disk in enumerate(of_rank) if disk == each] for each in dict.fromkeys(of_rank)]


@given(disks())
def test_a_buddy_is_on_another_disk(groups: list[list[int]]) -> None:
    disk_of = {rank: number for number, ranks in enumerate(groups) for rank in ranks}
    for rank in disk_of:
        other = buddy(rank, groups)
        if len(groups) == 1:
            assert other is None
        else:
            assert disk_of[other] != disk_of[rank]
    for ranks in groups if len(groups) > 1 else []:  # what a disk's ranks send is spread over the others
        kept = Counter(disk_of[buddy(rank, groups)] for rank in ranks)
        assert max(kept.values()) <= -(-len(ranks) // (len(groups) - 1))


@given(st.integers(2, 6), st.integers(1, 6))
def test_where_disks_have_as_many_ranks_each_keeps_one(count: int, ranks: int) -> None:
    groups = [list(range(disk, count * ranks, count)) for disk in range(count)]
    assert sorted(buddy(rank, groups) for rank in range(count * ranks)) == list(range(count * ranks))
