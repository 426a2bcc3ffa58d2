"""Snapshots: arrays are read as they were, whatever changes meanwhile, and the buffer stays bounded."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dslide.checkpoint.snapshot
from dslide.checkpoint.snapshot import Cancelled, Snapshot

LARGE = 1 << 40


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(dslide.checkpoint.snapshot, "BLOCK", 64)  # bytes


def an_array(rows: int, width: int, dtype: str = "float32") -> np.ndarray:
    numbers = np.arange(rows * width).astype(dtype)
    return numbers.reshape((rows, width) if width > 1 else rows)


@given(
    rows=st.integers(0, 60),
    width=st.integers(1, 40),
    dtype=st.sampled_from(["float32", "uint16", "bool"]),
    apart=st.booleans(),
    events=st.lists(st.one_of(st.none(), st.lists(st.integers(0, 59), max_size=9), st.just("all"))),
)
def test_a_snapshot_is_read_as_it_was_taken(rows, width, dtype, apart, events):
    """An event is a block that is read, rows that change, or a change of all rows. Rows may lie apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dslide.checkpoint.snapshot, "BLOCK", 64)
        array = an_array(rows, 2 * width, dtype)[:, width:] if apart else an_array(rows, width, dtype)
        before = array.copy()
        snapshot = Snapshot({"a": array}, LARGE)
        pieces, found = snapshot.read("a"), []
        for event in events:
            if event is None:
                found += [piece for piece in [next(pieces, None)] if piece is not None]
            else:
                changed = None if event == "all" else np.array([r for r in event if r < rows], np.int32)
                snapshot.before_change("a", changed)
                array[slice(None) if changed is None else changed] = 77
        found += list(pieces)
        np.testing.assert_array_equal(np.concatenate([*found, before.reshape(-1)[:0]]), before.reshape(-1))


def test_pieces_are_copies():
    array = an_array(4, 4)
    piece = next(Snapshot({"a": array}, LARGE).read("a"))
    array[:] = -1
    assert piece.tolist() == list(range(16))


def test_training_waits_while_the_buffer_is_full():
    array = an_array(64, 16)  # a row is a block of 64 bytes
    before = array.copy()
    snapshot = Snapshot({"a": array}, limit=10 * 64)
    snapshot.before_change("a", np.arange(50, 60))
    done = threading.Event()

    def change() -> None:
        snapshot.before_change("a", np.arange(40, 50))
        array[40:60] = -1
        done.set()

    thread = threading.Thread(target=change)
    thread.start()
    assert not done.wait(0.2)  # the buffer is full
    pieces = snapshot.read("a")
    found = [next(pieces) for _ in range(51)]  # rows 40 to 49 are read, and one of the buffered ones
    assert done.wait(10)
    thread.join()
    np.testing.assert_array_equal(np.concatenate([*found, *pieces]), before.reshape(-1))


def test_a_change_larger_than_the_buffer_waits_for_the_reader():
    array = an_array(64, 16)
    before = array.copy()
    snapshot = Snapshot({"a": array}, limit=64)
    found = []
    reader = threading.Thread(target=lambda: found.extend(_slowly(snapshot.read("a"))))
    reader.start()
    snapshot.before_change("a")
    array[:] = -1
    reader.join()
    np.testing.assert_array_equal(np.concatenate(found), before.reshape(-1))


def _slowly(pieces):
    for piece in pieces:
        time.sleep(0.001)
        yield piece


def test_a_closed_snapshot_ends_its_reader_and_training_continues():
    snapshot = Snapshot({"a": an_array(64, 16)}, limit=64)
    pieces = snapshot.read("a")
    next(pieces)
    waiting = threading.Thread(target=lambda: snapshot.before_change("a"))
    waiting.start()
    snapshot.close()
    waiting.join(10)
    assert not waiting.is_alive()
    with pytest.raises(Cancelled):
        next(pieces)
