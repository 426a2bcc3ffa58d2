"""The arrays of saved runs, and whether two runs ended with the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dslide import load_model


def state(run: Path) -> dict[str, Any]:
    """All arrays of a run, optimizer state included."""
    return {name: np.array(array) for name, array in load_model(run, optimizer=True).state.items()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
