"""Messages between ranks: against a slow reference, their precision, and damaged ones."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import reference.wire as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide import _core

FORMATS = list(reference.FORMATS)
SPECIAL = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, -np.nan, 3.4028235e38, -3.4028235e38, 3.39e38, 1e-38, 1e-40, -1e-45,
           2.0**-126, 2.0**-118, 2.0**-119, 1.00390625, 1.01171875, 0.5, -126.5, 127.0]  # fmt: skip
formats = st.sampled_from(FORMATS)
seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(0, 40) | st.sampled_from([63, 64, 65, 127, 128, 129, 200])
few = settings(max_examples=100, deadline=None)


@st.composite
def matrices(draw, special=True):
    """(x, first, step, columns): random numbers with a share of zeros and, if wanted, of special values."""
    rows, columns = draw(st.integers(0, 6)), draw(lengths)
    first, step = draw(st.integers(0, 5)), draw(st.integers(1, 5))
    stride = first + max(0, columns - 1) * step + draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(seeds))
    x = (draw(st.sampled_from([1.0, 1e-3, 1e30])) * rng.standard_normal((rows, stride))).astype(np.float32)
    x[rng.random(x.shape) < draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))] = 0
    if special and draw(st.booleans()):
        odd = rng.random(x.shape) < draw(st.sampled_from([0.02, 0.5]))
        x[odd] = rng.choice(np.array(SPECIAL, np.float32), odd.sum())
    return x, first, step, columns


def bits(x):
    """Bits of the values, to compare: NaN equals itself, and 0 is not -0."""
    return x.view(np.uint32).tolist()


def there_and_back(x, format):
    out = np.full_like(x, 7)
    _core.wire_decode(_core.wire_encode(x, 0, 1, x.shape[1], format), out, 0, 1, x.shape[1], False)
    return out


def decode_or_message(decode, message, out, *rest):
    try:
        decode(message, out, *rest)
    except ValueError as error:
        return str(error)
    return None


@few
@given(case=matrices(), format=formats)
def test_messages_are_those_of_the_reference(case, format):
    x, *where = case
    message = _core.wire_encode(x, *where, format)
    assert message == reference.wire_encode(x, *where, format)
    assert len(message) <= _core.wire_size(len(x), where[2], format) == reference.wire_size(len(x), where[2], format)


@few
@given(case=matrices(), format=formats, kind=st.sampled_from([bytes, bytearray, memoryview]), seed=seeds)
def test_decoding_writes_what_the_reference_writes(case, format, kind, seed):
    x, *where = case
    message = reference.wire_encode(x, *where, format)
    got = np.random.default_rng(seed).standard_normal(x.shape).astype(np.float32)
    expected = got.copy()
    with np.errstate(all="ignore"):
        reference.wire_decode(message, expected, *where, False)
    _core.wire_decode(kind(message), got, *where, False)
    assert bits(got) == bits(expected)  # columns between the chosen ones included


@few
@given(case=matrices(special=False), format=formats, seed=seeds)
def test_decoding_adds_what_the_reference_adds(case, format, seed):
    x, *where = case
    message = reference.wire_encode(x, *where, format)
    got = np.random.default_rng(seed).standard_normal(x.shape).astype(np.float32)
    expected = got.copy()
    reference.wire_decode(message, expected, *where, True)
    _core.wire_decode(message, got, *where, True)
    assert bits(got) == bits(expected)


@few
@given(case=matrices(special=False))
def test_errors_are_no_larger_than_the_format_allows(case):
    x = case[0]
    assert np.array_equal(there_and_back(x, "float32"), x)
    assert (np.abs(there_and_back(x, "bf16") - x) <= np.abs(x) * 2.0**-8).all()
    largest = np.abs(x).max(axis=1, keepdims=True)
    assert (np.abs(there_and_back(x, "int8") - x) <= largest * (0.5001 / 127)).all()


@settings(max_examples=300, deadline=None)
@given(upper=st.sampled_from([0, 1, 0x7F7F, 0x7F80, 0xFF7F, 0xFF80]) | st.integers(0, 0xFFFF),
       lower=st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001]) | st.integers(0, 0xFFFF))  # fmt: skip
def test_bf16_is_the_nearest_even(upper, lower):
    """Against the two neighbours a float32 lies between, by exact arithmetic in double."""
    x = np.array([[upper << 16 | lower]], np.uint32).view(np.float32)
    got = there_and_back(x, "bf16")[0, 0]
    if not np.isfinite(x[0, 0]):
        assert np.isnan(got) if np.isnan(x[0, 0]) else got == x[0, 0]
        return
    pair = np.array([upper << 16, (upper + 1) << 16], np.uint32).view(np.float32)  # towards zero, and away from it
    # the latter may be infinite: for rounding it is the next power of two
    values = [float(v) if np.isfinite(v) else math.copysign(2.0**128, v) for v in pair]
    errors = [abs(float(x[0, 0]) - v) for v in values]
    even = upper % 2
    nearest = even if errors[0] == errors[1] else int(np.argmin(errors))
    assert got == pair[nearest]


@few
@given(format=formats, columns=st.integers(1, 150), zeros=st.sampled_from([0.0, 0.95]), data=st.data())
def test_values_that_are_not_finite_are_not_hidden(format, columns, zeros, data):
    x = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    x[np.random.default_rng(1).random(x.shape) < zeros] = 0
    at, value = data.draw(st.integers(0, columns - 1)), data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    x[1, at] = value
    out = there_and_back(x, format)
    assert np.isfinite(out[[0, 2]]).all()
    assert not np.isfinite(out[1, at])
    if format == "int8":
        assert np.isnan(out[1]).all()
    else:
        assert str(out[1, at]) == str(np.float32(value))
    total = np.ones_like(x)
    _core.wire_decode(_core.wire_encode(x, 0, 1, columns, format), total, 0, 1, columns, True)
    assert not np.isfinite(total[1, at])


def test_tiny_rows_are_zeros_in_int8_and_larger_ones_are_not():
    tiny, least = np.nextafter(np.float32(2.0**-118), np.float32(0)), np.float32(2.0**-118)
    denormal = np.nextafter(np.float32(2.0**-126), np.float32(0))
    x = np.array([[tiny, -tiny, denormal], [least, -least / 127, denormal]], np.float32)
    assert _core.wire_encode(x, 0, 1, 3, "int8") == reference.wire_encode(x, 0, 1, 3, "int8")
    out = there_and_back(x, "int8")
    assert (out[0] == 0).all()
    np.testing.assert_allclose(out[1], [least, -least / 127, 0], rtol=1e-6)


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_are_left_out_where_that_is_shorter(format):
    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    full = _core.wire_size(64, 128, format)
    assert len(_core.wire_encode(x, 0, 1, 128, format)) == full
    halved = len(_core.wire_encode(np.maximum(x, 0), 0, 1, 128, format))
    assert halved < {"float32": 0.56, "bf16": 0.6, "int8": 0.7}[format] * full
    rows_only = 12 + 64 * (16 + (4 if format == "int8" else 0))
    assert len(_core.wire_encode(np.zeros_like(x), 0, 1, 128, format)) == rows_only


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_threads_change_nothing(format, share):
    """A message large enough for threads, more threads than rows too; and each row alone, without threads."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((67, 6003)).astype(np.float32)
    x[rng.random(x.shape) >= share] = 0
    x[0] *= 2e-36  # many denormals, which the pool's threads flush
    before = _core.threads()
    results = []
    try:
        for threads in (1, 3, 100):
            _core.set_threads(threads)
            message = _core.wire_encode(x, 2, 2, 3000, format)
            out = np.ones_like(x)
            _core.wire_decode(message, out, 2, 2, 3000, True)
            results.append((message, out.tobytes()))
    finally:
        _core.set_threads(before)
    assert results[0] == results[1] == results[2]
    out = np.ones_like(x)
    for i in range(len(x)):
        _core.wire_decode(_core.wire_encode(x[i : i + 1], 2, 2, 3000, format), out[i : i + 1], 2, 2, 3000, True)
    assert out.tobytes() == results[0][1]
    assert results[0][0] == reference.wire_encode(x, 2, 2, 3000, format)


@pytest.mark.parametrize("format", FORMATS)
def test_ranks_shares_add_up_to_the_whole(format):
    """The parts of a layer that ranks send, joined by a rank that knows only the senders."""
    x = np.maximum(np.random.default_rng(0).standard_normal((5, 11)), 0).astype(np.float32)
    ranks, out = 4, np.full((5, 11), 9, np.float32)
    for rank in range(ranks):
        count = len(range(rank, 11, ranks))
        share = np.ascontiguousarray(x[:, rank::ranks])
        assert _core.wire_encode(x, rank, ranks, count, format) == _core.wire_encode(share, 0, 1, count, format)
        _core.wire_decode(_core.wire_encode(share, 0, 1, count, format), out, rank, ranks, count, False)
    np.testing.assert_allclose(out, x, atol=0.02)
    assert 9 not in out


@settings(max_examples=400, deadline=None)
@given(case=matrices(), format=formats, data=st.data())
def test_damaged_messages_are_refused_or_as_the_reference_reads_them(case, format, data):
    x, *where = case
    message = bytearray(_core.wire_encode(x, *where, format))
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "flip", "cut", "grow"]))
        begin = data.draw(st.sampled_from([0, 12, 12, 12]))  # mostly after the header
        at = data.draw(st.integers(min(begin, len(message)), len(message)))
        if kind == "flip" and at < len(message):
            message[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del message[at : at + data.draw(st.integers(1, 9))]
        elif kind == "grow":
            message[at:at] = data.draw(st.binary(max_size=9))
    check_against_reference(message, x.shape, where)


@settings(max_examples=400, deadline=None)
@given(number=st.integers(0, 2), sparse=st.integers(0, 1), rows=st.integers(0, 4), columns=st.integers(0, 20),
       extra=st.integers(0, 3), honest=st.sampled_from([12] * 20 + list(range(12))),
       missing=st.sampled_from([0, 0, 0, 1, 2, 9]), seed=seeds)  # fmt: skip
def test_random_bytes_are_refused_or_as_the_reference_reads_them(
    number, sparse, rows, columns, extra, honest, missing, seed
):
    """After a header whose first `honest` bytes are valid; often as many bytes as header and mask require."""
    header = struct.pack("<2sBBII", b"DW", number, sparse, rows, columns)[:honest]
    scale_bytes, value_bytes = (4 * rows, 1) if number == 2 else (0, 4 if number == 0 else 2)
    rng = np.random.default_rng(seed)
    mask = rng.random((rows, columns)) < rng.choice([0.1, 0.3, 0.9])
    values = np.count_nonzero(mask) if sparse else mask.size
    packed = np.packbits(mask, axis=1, bitorder="little").tobytes() if sparse else b""
    random = rng.bytes(scale_bytes + values * value_bytes)
    message = header + random[:scale_bytes] + packed + random[scale_bytes:]
    check_against_reference(message[: max(0, len(message) - missing)], (rows, columns + extra), (extra, 1, columns))


def check_against_reference(message, shape, where):
    got, expected = np.ones(shape, np.float32), np.ones(shape, np.float32)
    refused = decode_or_message(_core.wire_decode, message, got, *where, False)
    with np.errstate(all="ignore"):
        should = decode_or_message(reference.wire_decode, bytes(message), expected, *where, False)
    assert (refused is None) == (should is None), (refused, should)
    if refused is not None:
        assert (got == 1).all()  # untouched
        return
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))  # a NaN from a damaged scale may have any bits
    assert same.all()


@pytest.mark.parametrize(("rows", "columns"), [(2**31 - 1, 2**31 - 1), (0, 2**31 - 1), (2**31 - 1, 0)])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("sparse", [0, 1])
def test_headers_of_huge_messages_allocate_nothing(number, sparse, rows, columns):
    message = struct.pack("<2sBBII", b"DW", number, sparse, rows, columns) + bytes(50)
    with pytest.raises(ValueError, match=f"{rows} rows of {columns} numbers, not 3 of 4"):
        _core.wire_decode(message, np.zeros((3, 4), np.float32), 0, 1, 4, False)


def test_each_fault_has_its_message():
    x = np.arange(1, 21, dtype=np.float32).reshape(2, 10)
    x[:, 3:] = 0
    out = np.zeros_like(x)
    dense, sparse = _core.wire_encode(x + 1, 0, 1, 10, "bf16"), _core.wire_encode(x, 0, 1, 10, "bf16")
    assert (dense[3], sparse[3]) == (0, 1)
    beyond = bytearray(sparse)
    beyond[13] |= 0x80
    fewer = bytearray(sparse)
    fewer[12] &= 0xFE
    padded = struct.pack("<2sBBII", b"DW", 1, 1, 2, 10) + b"\xff\x03" * 2 + bytes(40)
    for message, sentence in [
        (b"", "message too short: a header has 12 bytes, the message only 0"),
        (dense[:11], "message too short: a header has 12 bytes, the message only 11"),
        (b"X" + dense[1:], "unknown message header: bytes 88 87 1 0"),
        (dense[:2] + b"\3" + dense[3:], "unknown message header: bytes 68 87 3 0"),
        (dense[:3] + b"\2" + dense[4:], "unknown message header: bytes 68 87 1 2"),
        (_core.wire_encode(x[:1], 0, 1, 10, "int8"), "the message has 1 rows of 10 numbers, not 2 of 10"),
        (_core.wire_encode(x, 0, 1, 9, "int8"), "the message has 2 rows of 9 numbers, not 2 of 10"),
        (dense[:-1], "the message has 51 bytes, its header and mask say 52"),
        (dense + b"\0", "the message has 53 bytes, its header and mask say 52"),
        (sparse[:14], "the message has 14 bytes, its header and mask say 16"),
        (sparse[:-2], "the message has 26 bytes, its header and mask say 28"),
        (bytes(fewer), "the message has 28 bytes, its header and mask say 26"),
        (bytes(beyond), "the mask of row 0 has bits beyond its 10 columns"),
        (padded, "the sparse message is not shorter than a dense one by an eighth: 56 bytes, dense 52"),
    ]:
        with pytest.raises(ValueError) as error:  # noqa: PT011
            _core.wire_decode(message, out, 0, 1, 10, False)
        assert str(error.value) == sentence


def test_arguments_are_checked():
    x = np.zeros((3, 8), np.float32)
    message = _core.wire_encode(x, 0, 1, 8, "bf16")
    with pytest.raises(ValueError, match="there is no wire format 'fp8': float32, bf16 or int8"):
        _core.wire_encode(x, 0, 1, 8, "fp8")
    with pytest.raises(ValueError, match="there is no wire format"):
        _core.wire_size(1, 1, "fp8")
    for first, step, columns in [(0, 1, 9), (1, 1, 8), (8, 1, 1), (0, 2, 5), (2**63, 1, 1), (0, 2**31 - 1, 2)]:
        with pytest.raises(ValueError, match=f"there are no {columns} columns from {first} in steps of {step} among 8"):
            _core.wire_encode(x, first, step, columns, "bf16")
        with pytest.raises(ValueError, match="there are no"):
            _core.wire_decode(message, x, first, step, columns, False)
    for bad in [(0, 0, 8), (0, 1, 2**31), (0, 2**31, 1)]:
        with pytest.raises(ValueError, match="must be"):
            _core.wire_encode(x, *bad, "bf16")
    with pytest.raises(ValueError, match="rows must be 0 to 2147483647"):
        _core.wire_size(2**31, 1, "bf16")
    assert _core.wire_size(2**31 - 1, 2**31 - 1, "float32") == 12 + 4 * (2**31 - 1) ** 2


def test_only_memory_that_can_be_written_in_place_is_taken():
    x = np.zeros((3, 8), np.float32)
    message = _core.wire_encode(x, 0, 1, 4, "bf16")
    frozen = x.copy()
    frozen.setflags(write=False)
    for out in (frozen, x.astype(np.float64), np.zeros((3, 16), np.float32)[:, ::2], x[0], x.tolist()):
        with pytest.raises(TypeError):
            _core.wire_decode(message, out, 0, 1, 4, False)
    for wrong in (None, "text", np.zeros(20, np.float32), memoryview(message).cast("b")[::2]):
        with pytest.raises(TypeError):
            _core.wire_decode(wrong, x, 0, 1, 4, False)
