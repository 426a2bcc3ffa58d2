"""Automatic hash parameters: within bounds for every size, and good enough to find what they are for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslide import _core
from dslide.errors import ConfigError
from dslide.model.hash_parameters import CODE_BITS, automatic

FAMILIES = list(CODE_BITS)


@given(neurons=st.integers(1, 10**8), dimension=st.integers(1, 10**6), family=st.sampled_from(FAMILIES))
def test_parameters_are_valid_and_buckets_neither_crowded_nor_deserted(neurons, dimension, family):
    k, tables, table_bits = automatic(neurons, dimension, family)
    assert 1 <= k <= 64
    assert 16 <= tables <= 32
    assert 1 <= table_bits <= 24
    if dimension >= 32:
        assert neurons / 2**table_bits <= 100
        assert neurons < 200 or neurons / 2**table_bits > 100 / 2 ** CODE_BITS[family]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dimension", [1, 2, 8])
def test_they_are_accepted_for_tiny_layers(family, dimension):
    k, tables, table_bits = automatic(1, dimension, family)
    _core.HashFunctions(family, dimension, k, tables, table_bits, 0).dense(np.ones((1, dimension), dtype=np.float32))


@pytest.mark.parametrize("family", FAMILIES)
def test_neurons_are_found_by_noisy_rectified_copies_of_them(family):
    rng = np.random.default_rng(1)
    neurons, dimension, count = 20_000, 128, 500
    weights = rng.standard_normal((neurons, dimension), dtype=np.float32)
    sources = rng.permutation(neurons)[:count]
    rows = np.maximum(weights[sources] + 0.3 * rng.standard_normal((count, dimension), dtype=np.float32), 0)
    k, tables, table_bits = automatic(neurons, dimension, family)
    functions = _core.HashFunctions(family, dimension, k, tables, table_bits, 2)
    table = _core.Tables(neurons, tables, table_bits, 128, "reservoir", 3)
    table.set_codes(np.arange(neurons, dtype=np.int32), functions.dense(weights))
    table.rebuild()
    offsets, ids, *_ = _core.Query(table).topk(functions.dense(rows), 20, 4, 5)
    found = np.mean([sources[row] in ids[offsets[row] : offsets[row + 1]] for row in range(count)])
    assert found > 0.3  # by chance: 0.001


def test_bad_arguments_are_refused_with_their_name():
    with pytest.raises(ConfigError, match="family: expected one of simhash, wta, dwta, minhash, not 'md5'"):
        automatic(10, 10, "md5")
    with pytest.raises(ConfigError, match="neurons: expected at least 1, not 0"):
        automatic(0, 10, "wta")
    with pytest.raises(ConfigError, match="dimension: expected at least 1, not 0"):
        automatic(10, 0, "wta")
