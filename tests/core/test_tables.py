"""Hash tables: every neuron is in the buckets of its codes unless the bound dropped it, also after a rebuild."""

from __future__ import annotations

import numpy as np
import pytest
import reference.hashing as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dslide import _core


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def random_codes(count: int, tables: int, table_bits: int, seed: int) -> np.ndarray:
    """Skewed, so that some buckets are full and some empty."""
    rng = np.random.default_rng(seed)
    return (rng.random((count, tables)) ** 3 * 2**table_bits).astype(np.uint32)


def contents(tables: _core.Tables, count: int, table_bits: int) -> list[list[list[int]]]:
    return [[tables.bucket(t, b).tolist() for b in range(2**table_bits)] for t in range(count)]


@settings(max_examples=60, deadline=None)
@given(
    neurons=st.integers(1, 80),
    tables=st.integers(1, 6),
    table_bits=st.integers(1, 6),
    bound=st.sampled_from([0, 1, 2, 5, 100]),
    policy=st.sampled_from(["fifo", "reservoir"]),
    seed=st.integers(0, 2**64 - 1),
    threads=st.sampled_from([1, 2, 5]),
    data=st.data(),
)
def test_buckets_are_those_of_the_reference_also_after_changes(
    neurons, tables, table_bits, bound, policy, seed, threads, data
):
    _core.set_threads(threads)
    table = _core.Tables(neurons, tables, table_bits, bound, policy, seed)
    codes: dict[int, np.ndarray] = {}
    for change in range(3):  # with some neurons still absent, and some set again
        chosen = data.draw(st.lists(st.integers(0, neurons - 1), unique=True))
        new = random_codes(len(chosen), tables, table_bits, change)
        table.set_codes(np.array(chosen, dtype=np.int32), new)
        table.rebuild()
        codes.update(zip(chosen, new, strict=True))
        expected = reference.buckets(codes, neurons, tables, table_bits, bound, policy, seed)
        assert contents(table, tables, table_bits) == expected
        unbounded = reference.buckets(codes, neurons, tables, table_bits, 0, policy, seed)
        sizes, before = ([len(b) for t in found for b in t] for found in (expected, unbounded))
        occupancy = table.occupancy()
        assert occupancy.dropped == sum(before) - sum(sizes)
        by_size = np.zeros(max(sizes).bit_length(), np.int64)
        for size in filter(None, sizes):
            by_size[int(np.log2(size))] += size
        assert occupancy.by_size == by_size.tolist()
        assert occupancy.max == max(sizes)
        assert occupancy.mean == pytest.approx(np.mean(sizes))
        assert occupancy.empty_share == pytest.approx(sizes.count(0) / len(sizes))


@pytest.mark.parametrize("policy", ["fifo", "reservoir"])
@pytest.mark.parametrize("bound", [0, 20])
def test_rebuilding_after_changes_equals_building_from_scratch(policy, bound):
    neurons, tables, bits = 20_000, 7, 9
    rng = np.random.default_rng(1)
    codes = random_codes(neurons, tables, bits, 1)
    table = _core.Tables(neurons, tables, bits, bound, policy, 5)
    table.set_codes(np.arange(neurons, dtype=np.int32), codes)
    table.rebuild()
    for change in range(3):
        moved = rng.permutation(neurons)[:3000].astype(np.int32)
        codes[moved] = random_codes(3000, tables, bits, 10 + change)
        table.set_codes(moved, codes[moved])
        table.rebuild()
    _core.set_threads(5)
    scratch = _core.Tables(neurons, tables, bits, bound, policy, 5)
    scratch.set_codes(np.arange(neurons, dtype=np.int32), codes)
    scratch.rebuild()
    assert contents(table, tables, bits) == contents(scratch, tables, bits)
    assert table.occupancy().dropped == scratch.occupancy().dropped
    assert (table.occupancy().dropped > 0) == (bound > 0)


def test_without_a_bound_every_neuron_is_found_by_its_own_codes():
    neurons, tables, bits = 5000, 6, 8
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((neurons, 24), dtype=np.float32)
    codes = _core.HashFunctions("simhash", 24, bits, tables, bits, 3).dense(weights)
    table = _core.Tables(neurons, tables, bits, 0, "reservoir", 4)
    table.set_codes(np.arange(neurons, dtype=np.int32), codes)
    table.rebuild()
    assert all(neuron in table.bucket(t, codes[neuron, t]) for neuron in range(0, neurons, 7) for t in range(tables))
    assert table.occupancy().mean == neurons / 2**bits
    assert table.occupancy().dropped == 0


def test_reservoir_keeps_a_uniform_sample():
    neurons, bound, seeds = 40, 10, 2000
    kept = np.zeros(neurons)
    for seed in range(seeds):
        table = _core.Tables(neurons, 2, 1, bound, "reservoir", seed)
        table.set_codes(np.arange(neurons, dtype=np.int32), np.zeros((neurons, 2), dtype=np.uint32))
        table.rebuild()
        kept[table.bucket(1, 0)] += 1
    assert kept.sum() == seeds * bound
    # Drawn without replacement, so the statistic is smaller than a chi-square by the share not drawn.
    statistic = ((kept - kept.mean()) ** 2).sum() / kept.mean() / (1 - bound / neurons)
    assert 0.0005 < stats.chi2.sf(statistic, neurons - 1) < 0.9995


def test_reservoirs_of_two_tables_are_independent():
    neurons, bound = 4000, 1000
    table = _core.Tables(neurons, 2, 1, bound, "reservoir", 1)
    table.set_codes(np.arange(neurons, dtype=np.int32), np.zeros((neurons, 2), dtype=np.uint32))
    table.rebuild()
    both = len(np.intersect1d(table.bucket(0, 0), table.bucket(1, 0)))
    assert abs(both - bound * bound / neurons) < 5 * np.sqrt(bound * bound / neurons)


def test_fifo_keeps_the_newest_and_favours_no_neuron_number():
    neurons, bound, tables = 100, 10, 64
    table = _core.Tables(neurons, tables, 1, bound, "fifo", 1)
    table.set_codes(np.arange(neurons, dtype=np.int32), np.zeros((neurons, tables), dtype=np.uint32))
    table.rebuild()
    kept = np.zeros(neurons)
    for t in range(tables):
        newest = (reference.below(reference.mix(1, t), neurons) - 1) % neurons
        expected = sorted((newest - i) % neurons for i in range(bound))
        assert table.bucket(t, 0).tolist() == expected
        kept[expected] += 1
    assert (kept > 0).mean() > 0.95


def test_tables_that_were_never_built_are_empty():
    table = _core.Tables(10, 2, 3, 0, "fifo", 0)
    assert contents(table, 2, 3) == [[[]] * 8] * 2
    table.rebuild()  # no neuron has codes yet
    assert contents(table, 2, 3) == [[[]] * 8] * 2
    assert table.occupancy().empty_share == 1


def test_memory_is_eight_bytes_for_neuron_and_table_plus_offsets():
    assert _core.Tables(1000, 5, 4, 3, "fifo", 0).bytes() == 1000 * 5 * 8 + 5 * (2**4 + 1) * 4


def test_bad_arguments_are_refused_with_their_name():
    good = {"neurons": 8, "tables": 3, "table_bits": 4, "bucket_size": 0, "policy": "fifo", "seed": 0}
    for name, value, message in [
        ("neurons", 0, "neurons must be 1 to 2147483647, not 0"),
        ("tables", 1025, "tables must be 1 to 1024, not 1025"),
        ("table_bits", 0, "table_bits must be 1 to 24, not 0"),
        ("policy", "lifo", "policy must be fifo or reservoir, not lifo"),
    ]:
        with pytest.raises(ValueError, match=f"^{message}$"):
            _core.Tables(**{**good, name: value})
    table = _core.Tables(**good)
    codes = np.zeros((1, 3), dtype=np.uint32)
    for neuron in -1, 8:
        with pytest.raises(ValueError, match=f"neuron numbers must be below 8, not {neuron}"):
            table.set_codes(np.array([neuron], dtype=np.int32), codes)
    with pytest.raises(ValueError, match="codes must be below 16, not 16"):
        table.set_codes(np.array([0], dtype=np.int32), codes + np.uint32(16))
    with pytest.raises(ValueError, match="the number of columns of codes must be 3, not 2"):
        table.set_codes(np.array([0], dtype=np.int32), codes[:, :2].copy())
    with pytest.raises(ValueError, match="the number of rows of codes must be 2, not 1"):
        table.set_codes(np.array([0, 1], dtype=np.int32), codes)
    with pytest.raises(ValueError, match="table must be 0 to 2, not 3"):
        table.bucket(3, 0)
    with pytest.raises(ValueError, match="code must be 0 to 15, not 16"):
        table.bucket(0, 16)


def test_marks_of_some_ids_are_set_and_no_others():
    marks = np.array([False, True, False, False, False])
    _core.mark(marks, np.array([3, 0, 3], np.int32))
    assert marks.tolist() == [True, True, False, True, False]
    for bad in (-1, 5):
        with pytest.raises(ValueError, match="out of range"):
            _core.mark(marks, np.array([bad], np.int32))
