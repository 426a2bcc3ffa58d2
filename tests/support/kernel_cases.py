"""Strategies for tests of kernels."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from dslide import _core

REFERENCE = _core.Kernels("reference")
lengths = st.integers(0, 70) | st.sampled_from([127, 128, 129, 200, 257])
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=60, deadline=None)
