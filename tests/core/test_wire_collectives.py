"""What ranks make of each other's messages, against slow references; and damaged messages."""

from __future__ import annotations

import numpy as np
import pytest
import reference.collectives as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide import _core

few = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def some_hits(rng: np.random.Generator, rows: int, want: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(offsets, ids, ranking): up to `want` hits in a row, with rankings of which some are equal."""
    lengths = rng.integers(0, want + 1, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(0, 1000, offsets[-1]).astype(np.int32)
    return offsets, ids, rng.choice([3, 7, 2**31, 2**32 - 1, *range(10, 40)], offsets[-1]).astype(np.uint32)


@few
@given(rows=st.integers(0, 9), want=st.integers(1, 6), ranks=st.integers(1, 5), seed=seeds)
def test_each_rank_keeps_its_hits_that_are_among_the_best_of_all(rows: int, want: int, ranks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    hits = [some_hits(rng, rows, want) for _ in range(ranks)]
    tables = [_core.ranking_table(offsets, ranking, want) for offsets, _, ranking in hits]
    assert tables == [reference.ranking_table(offsets, ranking, want) for offsets, _, ranking in hits]
    for offsets, ids, ranking in hits:
        got = _core.best_hits(offsets, ids, ranking, tables, want)
        expected = reference.best_hits(offsets, ids, ranking, tables, want)
        assert [part.tolist() for part in got] == [part.tolist() for part in expected]


@few
@given(rows=st.integers(0, 40), ranks=st.integers(1, 5), seed=seeds, unaligned=st.booleans())
def test_the_normaliser_is_that_of_all_ranks(rows: int, ranks: int, seed: int, unaligned: bool) -> None:
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal((ranks, 2, rows)).astype(np.float32) * 30
    parts[:, 1] = np.abs(parts[:, 1]) + 0.1
    without = rng.random((ranks, rows)) < 0.3  # ranks without active neurons, but one has some
    without[0] = False
    parts[:, 0][without], parts[:, 1][without] = -np.inf, 0
    messages = [memoryview(b"x" + part.tobytes())[1:] if unaligned else part.tobytes() for part in parts]
    got, expected = np.empty((2, rows), np.float32)
    _core.log_normaliser(messages, got)
    reference.log_normaliser(messages, expected)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)


@few
@given(
    rows=st.integers(0, 5), width=st.integers(1, 70), shares=st.lists(st.integers(1, 5), min_size=1, max_size=7),
    seed=seeds, format=st.sampled_from(["float32", "bf16", "int8"]),
)  # fmt: skip
def test_shares_are_the_messages_of_single_ranks(
    rows: int, width: int, shares: list[int], seed: int, format: str
) -> None:
    x = np.random.default_rng(seed).standard_normal((rows, width + 3)).astype(np.float32)
    owner = np.repeat(np.arange(len(shares)), shares)[np.arange(width) % sum(shares)]
    counts = [int((owner == rank).sum()) for rank in range(len(shares))]
    own = [np.ascontiguousarray(x[:, :width][:, owner == rank]) for rank in range(len(shares))]
    messages = _core.wire_encode_shares(x, shares, width, format)
    assert messages == [_core.wire_encode(part, 0, 1, part.shape[1], format) for part in own]
    out, expected = np.zeros((2, *x.shape), np.float32)
    _core.wire_decode_shares(messages, out, shares, width)
    for rank, message in enumerate(messages):
        decoded = np.zeros_like(own[rank])
        _core.wire_decode(message, decoded, 0, 1, counts[rank], False)
        expected[:, :width][:, owner == rank] = decoded
    assert np.array_equal(out, expected)
    total, expected = np.ones((2, rows, counts[0]), np.float32)
    same = [messages[0]] * len(shares)
    _core.wire_decode_sum(same, total, counts[0])
    for message in same:
        _core.wire_decode(message, expected, 0, 1, counts[0], True)
    assert np.array_equal(total, expected)


def test_messages_of_wrong_sizes_are_refused() -> None:
    offsets, ids, ranking = np.array([0, 2]), np.array([4, 5], np.int32), np.array([9, 8], np.uint32)
    with pytest.raises(ValueError, match="row 0 has 2 hits, more than 1"):
        _core.ranking_table(offsets, ranking, 1)
    with pytest.raises(ValueError, match="a message has 7 bytes, not 8"):
        _core.best_hits(offsets, ids, ranking, [bytes(8), bytes(7)], 2)
    with pytest.raises(ValueError, match="there are no messages"):
        _core.best_hits(offsets, ids, ranking, [], 2)
    with pytest.raises(ValueError, match="as many rankings as hits are needed"):
        _core.best_hits(offsets, ids, ranking[:1], [bytes(8)], 2)
    with pytest.raises(ValueError, match="a message has 12 bytes, not 8"):
        _core.log_normaliser([bytes(8), bytes(12)], np.empty(1, np.float32))
    one_row = _core.wire_encode(np.ones((1, 2), np.float32), 0, 1, 2, "bf16")
    with pytest.raises(ValueError, match="the message has 1 rows"):
        _core.wire_decode_sum([one_row], np.ones((2, 2), np.float32), 2)
