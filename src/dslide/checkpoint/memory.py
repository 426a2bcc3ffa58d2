"""What writing a checkpoint takes in memory while training goes on."""

from __future__ import annotations

from dslide.checkpoint.tensor_file import BLOCK

LEAST_ASIDE = 32 << 20  # bytes


def room(state_bytes: int) -> int:
    """Bytes of arrays that may be put aside until they are written: a tenth of them, or some more."""
    return min(state_bytes, max(LEAST_ASIDE, state_bytes // 10))


def checkpoint_memory(state_bytes: int) -> int:
    """All of it, at most: also a block that is being written, its check, and about one that was let go but is not given
    back to the system."""
    return room(state_bytes) + 3 * min(state_bytes, BLOCK)
