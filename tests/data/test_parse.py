"""The parser of xmc and libsvm text: against a reference, and on arbitrary bytes."""

from __future__ import annotations

import gzip
import lzma
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from reference.parse import nearest_float32, slow_parse

from dslide import _core
from dslide.data import SparseRows, load
from dslide.data.formats.svm_text import read_svm_text
from dslide.errors import DataError

FEATURES, LABELS = 12, 7
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def dicts(rows: SparseRows) -> list[dict[int, float]]:
    ends = rows.indptr.tolist()
    pairs = list(zip(rows.indices.tolist(), rows.values.tolist(), strict=True))
    return [dict(pairs[a:b]) for a, b in pairwise(ends)]


def core_parse(text: bytes, threads: int = 1, comments: bool = False) -> dict:
    return _core.parse_rows(text, (0, 2**31), (0, 2**31), comments, threads=threads)


decimals = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000).map(lambda d: f"{d:f}"),
    st.from_regex(r"[+-]?[0-9]{0,25}[0-9](\.[0-9]{0,25})?([eE][+-]?[0-9]{1,2})?", fullmatch=True).filter(
        lambda text: abs(float(text)) < 1e30
    ),
    st.sampled_from(["1", "0", "-0", ".5", "5.", "+2", "1e-50", "0e99", "1E2", "0.0001", "-3.25"]),
)
spaces = st.sampled_from([" ", " ", " ", "  ", "\t", " \t "])


@st.composite
def lines(draw: st.DrawFn, first: int, shift: int) -> str:
    def words(count: int, most: int, values: st.SearchStrategy[str]) -> list[str]:
        numbers = draw(st.lists(st.integers(first, count - 1 + shift), max_size=most))
        return [f"{i}:{draw(values)}" if draw(st.booleans()) else str(i) for i in numbers]

    weights = decimals.map(lambda text: text.lstrip("-"))
    features = "".join(draw(spaces) + word for word in words(FEATURES, 5, decimals))
    return ",".join(words(LABELS, 4, weights)) + features + draw(st.sampled_from(["", "", " ", "\t"]))


@st.composite
def files(draw: st.DrawFn, header: bool) -> str:
    shift = draw(st.integers(0, 1))
    rows = draw(st.lists(lines(draw(st.integers(0, 2)) if not shift else 1, shift), min_size=1, max_size=8))
    if not header:
        rows = [row + draw(st.sampled_from(["", "", " # 1:2,x\u00e9"])) for row in rows]
        rows = [row for row in rows if not row or row[0] not in ":"]
        rows.insert(draw(st.integers(0, len(rows))), "# a comment, no row")
        if not any(row.split("#")[0].strip() for row in rows):
            rows.append("1 1:1")
    end = draw(st.sampled_from(["\n", "\r\n"]))
    text = end.join([f"{len(rows)} {FEATURES} {LABELS}", *rows] if header else rows)
    # a last row that is blank needs its newline to exist
    return text + end * draw(st.integers(1 if not rows[-1] else 0, 3))


@pytest.mark.parametrize("header", [True, False])
@given(data=st.data())
@same_folder
def test_equals_the_reference_parser(tmp_path: Path, header: bool, data: st.DataObject) -> None:
    text = data.draw(files(header))
    path = tmp_path / "file.txt"
    path.write_bytes(text.encode())
    expected = slow_parse(text, header)
    block_bytes = data.draw(st.sampled_from([1, 7, 64, 1000]))
    chunk_bytes = data.draw(st.sampled_from([1, 5, 40, 1000]))
    for threads in (1, 2, 5):
        with (
            mock.patch("dslide.data.files.BLOCK_BYTES", block_bytes),
            mock.patch("dslide.data.formats.svm_text.CHUNK_BYTES", chunk_bytes),
        ):
            found = read_svm_text(path, header=header, threads=threads)
        assert dicts(found.x) == expected.x
        assert dicts(found.y) == expected.y
        assert found.base == expected.base
        for rows in (found.x, found.y):
            for row in dicts(rows):
                assert list(row) == sorted(row)
        if header:
            assert (found.features, found.labels) == (FEATURES, LABELS)
        else:
            assert found.features == max((i for row in expected.x for i in row), default=-1) + 1


@given(
    st.one_of(
        decimals,
        # close to the midpoint of two floats, where double rounding is wrong
        st.integers(0x00800000, 0x7E000000)
        .map(lambda bits: np.float64(np.uint32(bits).view(np.float32)) * (1 + 2.0**-24))
        .map(lambda value: f"{value:.17e}"),
    )
)
@settings(deadline=None)
def test_values_are_rounded_correctly(text: str) -> None:
    out = core_parse(f"1 2:{text}\n".encode())
    assert out["x"][2][0] == np.float32(nearest_float32(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0." + "0" * 60 + "1", 0.0),
        ("1" + "0" * 30 + "e-30", 1.0),
        ("0" * 50 + "7", 7.0),
        ("1e-99999999999999999999", 0.0),
        ("0e99999999999999999999", 0.0),
        ("0.000001e6", 1.0),
        ("16777217", 16777216.0),  # the midpoint of two floats: ties to even
        ("16777219", 16777220.0),
        ("16777217.000000001", 16777218.0),
        ("1.00000005960464477539062500001", 1.0000001192092896),  # just above the midpoint
    ],
)
def test_unusual_numbers(text: str, value: float) -> None:
    assert core_parse(f"1 2:{text}\n".encode())["x"][2].tolist() == [value]


@given(st.binary(max_size=300), st.sampled_from([1, 3]))
@settings(deadline=None)
def test_core_survives_any_bytes(junk: bytes, threads: int) -> None:
    for comments in (False, True):
        out = _core.parse_rows(junk + b"\n", (0, 99), (0, 99), comments, 8, threads)
        assert out["fault"] is None or out["fault"][1] <= junk.count(b"\n")


@given(junk=st.one_of(st.binary(max_size=300), st.text("0123456789:,. \t\r\n-e#", max_size=200).map(str.encode)))
@example(junk=b"\xef\xbb\xbf")  # a byte order mark and nothing else
@same_folder
def test_any_file_loads_or_is_a_data_error(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "junk"
    path.write_bytes(junk)
    for format in ("auto", "xmc", "libsvm", "tsv", "npz", "csr"):
        try:
            assert len(load(path, format=format)) > 0
        except DataError as error:
            assert str(path) in str(error)  # noqa: PT017


def test_a_line_of_ten_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    count = 1_000_000
    path.write_text("3 " + " ".join(f"{i}:0.25" for i in range(count)) + "\n4 5:1\n")
    assert path.stat().st_size > 10e6
    found = load(path, format="libsvm", base=0)
    assert np.diff(found.x.indptr).tolist() == [count, 1]
    assert found.y.indices.tolist() == [3, 4]


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_compression_is_detected_by_magic_bytes(tmp_path: Path, compress) -> None:
    text = b"2 5 3\n0,2 1:2 4:0.5\n1 0\n"
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "packed.txt").write_bytes(compress(text[:9]) + compress(text[9:]))  # two members are one file
    plain, packed = load(tmp_path / "plain"), load(tmp_path / "packed.txt")
    assert plain.checksum == packed.checksum
    assert (plain.features, plain.labels, len(plain)) == (5, 3, 2)


def test_label_weights_and_zero_weights(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("3:0.5,7,1:0 12:1\n")
    found = load(tmp_path / "f", base=0)
    assert dicts(found.y) == [{3: 0.5, 7: 1.0}]
    assert found.labels == 8


@pytest.mark.parametrize(
    ("text", "format", "base"),
    [
        ("1 1:1\n2 3:1\n", "libsvm", 1),  # no 0 anywhere
        ("0 1:1\n2 3:1\n", "libsvm", 0),  # a label 0
        ("2 4 3\n1 1:1\n2 3:1\n", "xmc", 0),  # no index beyond the header's sizes
        ("2 4 3\n1 1:1\n2 4:1\n", "xmc", 1),  # feature 4 of 4
        ("2 4 3\n1 1:1\n3 3:1\n", "xmc", 1),  # label 3 of 3
    ],
)
def test_base_is_found(tmp_path: Path, text: str, format: str, base: int) -> None:
    (tmp_path / "f").write_text(text)
    found = load(tmp_path / "f")
    assert found.base == base
    assert int(found.x.indices[0]) == 1 - base
    stated = load(tmp_path / "f", format=format, base=base)
    assert stated.checksum == found.checksum


def test_sizes_given_for_libsvm(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("0 1:1\n")
    found = load(tmp_path / "f", features=10, labels=20)
    assert (found.features, found.labels) == (10, 20)


def test_blank_lines_are_rows_but_not_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("0 1:1\n\n \n1 2\n\n \n")
    found = load(tmp_path / "f", format="libsvm")
    assert np.diff(found.x.indptr).tolist() == [1, 0, 0, 1]
    assert found.y.empty_rows() == 2
    (tmp_path / "g").write_text("3 4 2\n0 1:1\n\n\n\n\n")
    assert len(load(tmp_path / "g")) == 3


def test_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf1 3 2\n0 1:1\n")
    assert len(load(tmp_path / "f")) == 1
