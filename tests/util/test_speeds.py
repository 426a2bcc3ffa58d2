"""The measured speeds of the machine, and the kernel they are measured with."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dslide import _core
from dslide.util.threads import measure_speeds


def sums_of(kernels):
    return np.linspace(-2, 2, kernels.chains * kernels.lanes, dtype=np.float32)


@pytest.mark.parametrize("level", _core.isa_levels())
@pytest.mark.parametrize("rounds", [0, 1, 3, 4, 9])
def test_multiply_add_updates_every_chain_in_every_round(level, rounds):
    kernels = _core.Kernels(level)
    sums = sums_of(kernels)
    expected = sums.astype(float)
    for _ in range(rounds):
        expected = expected * 0.75 + 0.5
    kernels.multiply_add(rounds, 0.75, 0.5, sums)
    assert_allclose(sums, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_speeds_are_positive_and_possible(threads):
    speeds = measure_speeds(threads)
    assert 0.01 < speeds.gflops < 1000 * threads  # no core does more; less would be a wrong unit
    assert 0.01 < speeds.copy_gigabytes < 1000 * threads
    assert 0.001 < _core.product_speed_now(threads) < 1000 * threads


def test_speeds_of_no_thread_are_refused():
    with pytest.raises(ValueError, match="at least one thread"):
        measure_speeds(0)
    with pytest.raises(ValueError, match="at least one thread"):
        _core.product_speed_now(0)
