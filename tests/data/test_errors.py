"""Bad input: one sentence each, naming file, line and value."""

from __future__ import annotations

import gzip
import lzma
import os
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from dslide.data import Dataset, SparseRows, files, load
from dslide.data.formats.svm_text import read_svm_text
from dslide.errors import ConfigError, DataError


def refused(path: Path, *words: str, error: type[Exception] = DataError, **options) -> None:
    """Loading fails with one sentence that names the path and holds the words."""
    with pytest.raises(error) as caught:
        load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in (str(path) if error is DataError else "", *words):
        assert word in message, message


@pytest.mark.parametrize(
    ("text", "format", "words"),
    [
        ("2 3 4\n0 1:1\n1 3:1\n0 0:1\n", "xmc", ["line 4", "more rows than the 2"]),
        ("2 3 4\n0 1:1\n", "xmc", ["line 1", "promises 2 rows", "there are 1"]),
        ("1 3 4\n0 0:1 4:1\n", "xmc", ["line 2", "feature '4:1' is out of range", "0 to 2"]),
        ("2 3 4\n0 0:1\n1 1:1 3:1\n", "xmc", ["line 3", "feature 3 is out of range", "0 to 2"]),
        ("2 3 4\n0 0:1\n1,4 1:1\n", "xmc", ["line 3", "label 4 is out of range", "0 to 3"]),
        ("1 3 4\n0,9 0:1\n", "xmc", ["line 2", "label '9' is out of range"]),
        ("1 3 4\n0 -1:1\n", "xmc", ["line 2", "feature '-1:1' is out of range"]),
        ("1 3 4\n-2 1:1\n", "xmc", ["line 2", "label '-2' is out of range"]),
        ("1 3 4\n0 99999999999999999999999:1\n", "xmc", ["line 2", "99999999999999999999999:1"]),
        ("1 3 4\n0 x:1\n", "xmc", ["line 2", "'x:1' is not a feature"]),
        ("1 3 4\n0 1:1 # no\n", "xmc", ["line 2", "'#' is not a feature"]),
        ("1 3 4\n0 1:1x\n", "xmc", ["line 2", "'1:1x' has a value that is not a number"]),
        ("1 3 4\n0 1:\n", "xmc", ["line 2", "'1:' has a value"]),
        ("1 3 4\n0 1:1:1\n", "xmc", ["line 2", "'1:1:1'"]),
        ("1 3 4\n0 1:1e\n", "xmc", ["line 2", "'1:1e'"]),
        ("1 3 4\n0 1:nan\n", "xmc", ["line 2", "'1:nan' has a value that is not a finite"]),
        ("1 3 4\n0 1:-Infinity\n", "xmc", ["line 2", "'1:-Infinity' has a value that is not a finite"]),
        ("1 3 4\n0 1:1e39\n", "xmc", ["line 2", "'1:1e39' has a value that is not a finite"]),
        ("1 3 4\n0 1:1e99999999999\n", "xmc", ["line 2", "not a finite"]),
        ("1 3 4\n0 1:3e38 1:3e38\n", "xmc", ["line 2", "sum that is not finite"]),
        ("1 3 4\n0:-1 1:1\n", "xmc", ["line 2", "label '0:-1' has a negative weight"]),
        ("1 3 4\n0,,1 1:1\n", "xmc", ["line 2", "is not a label"]),
        ("1 3 4\n1.5 1:1\n", "xmc", ["line 2", "'1.5' is not a label"]),
        ("1 3 4\n0:inf 1:1\n", "xmc", ["line 2", "'0:inf' has a value that is not a finite"]),
        ("0 1:1\n1 2:1\n", "xmc", ["line 1", "three numbers", "'0 1:1'"]),
        ("3 4\n", "xmc", ["line 1", "three numbers", "'3 4'"]),
        ("-1 3 4\n", "xmc", ["line 1", "three numbers"]),
        ("0 3 4\n", "xmc", ["line 1", "number of rows", "not 0"]),
        ("1 2147483648 4\n0 1\n", "xmc", ["line 1", "number of features", "2147483648"]),
        ("1 3 99999999999999999999\n0 1\n", "xmc", ["line 1", "number of labels", "99999999999999999999"]),
        ("2000000000 3 4\n0 1\n", "xmc", ["line 1", "promises 2000000000 rows", "19 bytes"]),
        ("0 1:1\n0 2147483648:1\n", "libsvm", ["line 2", "2147483648:1"]),
        ("0 1:1\n0 2147483647:1\n", "libsvm", ["line 2", "2147483647", "0 to 2147483646"]),
        ("# nothing\n\n", "libsvm", ["there are no rows"]),
        ("0 1:1\n1 qid:3 1:1\n", "libsvm", ["line 2", "'qid:3'"]),
        ("0 1:1\r1 2:1\r", "libsvm", ["line 1", "'1:1\\r1'"]),
        ("a b\n", "tsv", ["line 1", "two columns between tabs, found 1"]),
        ("a\tb\nc\td\te\n", "tsv", ["line 2", "expected 2 columns as in line 1, found 3"]),
        ("a\tone two\n\nb\ttwo one\n", "tsv", ["line 2", "blank"]),
        ("\n\n", "tsv", ["there are no rows"]),
        ("a\tone\nb\ttwo\n", "tsv", ["no word", "2 rows"]),
    ],
)
def test_text(tmp_path: Path, text: str, format: str, words: list[str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode())
    refused(path, *words, format=format)
    path.write_bytes(gzip.compress(text.encode()))
    if "bytes" not in words[-1]:  # the rows of a compressed file can't be bounded by its size
        refused(path, *words, format=format)


def test_line_numbers_count_over_blocks_and_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 777)
    monkeypatch.setattr("dslide.data.formats.svm_text.CHUNK_BYTES", 50)
    path = tmp_path / "file"
    lines = ["0 1:1"] * 5000
    lines[4321] = "0 1:x"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=re.escape(f"{path}, line 4322: '1:x'")):
        read_svm_text(path, header=False, threads=3)


def test_the_first_of_several_faults_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("0 1:1\n" * 40000 + "0 bad\n" + "0 1:1\n" * 40000 + "0 worse\n")
    refused(path, "line 40001", "'bad'", threads=4)


def test_stated_base_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1 1:1\n1 0:1\n")
    refused(path, "line 2", "feature '0:1'", "1 to 2147483647", base=1)
    path.write_text("1 1:1\n1 4:1\n")
    refused(path, "line 2", "feature '4:1'", "0 to 3", base=0, features=4)
    for bad in ({"base": 7}, {"threads": 0}, {"threads": 5000}, {"features": -1}, {"labels": 2**31}):
        refused(path, next(iter(bad)), str(next(iter(bad.values()))), error=ConfigError, **bad)


def test_unexpected_sizes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1 3 4\n0 1:1\n")
    refused(path, "line 1", "3 features", "5 are expected", features=5)
    refused(path, "line 1", "4 labels", "5 are expected", labels=5)
    refused(path, "4 labels", "1 label names", label_names=["one"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for format in ("auto", "xmc", "libsvm", "tsv", "npz"):
        refused(tmp_path / "missing", "no such file", format=format)
        (tmp_path / "empty").write_bytes(b"")
        refused(tmp_path / "empty", "empty", format=format)
    refused(tmp_path, "folder", "no dataset")
    refused(tmp_path, "is a folder", format="xmc")
    refused(tmp_path, "neither X.npz", format="npz")
    (tmp_path / "loop").symlink_to("loop")
    refused(tmp_path / "loop", "can't be read")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")
    refused(tmp_path / "empty", "format", error=ConfigError, format="svm")


def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("1 1:1\n")
    path.chmod(0)
    me = os.geteuid()
    if me == 0:  # root may read everything: switch to nobody
        os.seteuid(65534)
    try:
        refused(path, "can't be read", "Permission denied")
    finally:
        os.seteuid(me)


def test_compressed_empty_file(tmp_path: Path) -> None:
    (tmp_path / "none.gz").write_bytes(gzip.compress(b""))
    refused(tmp_path / "none.gz", "empty")


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_damaged_compression(tmp_path: Path, compress) -> None:
    whole = compress(b"0 1:1\n1 2:0.5\n" * 1000)
    path = tmp_path / "file"
    path.write_bytes(whole[:-20])
    refused(path, "cut off", format="libsvm")
    path.write_bytes(whole[:30] + b"\xff\x00\xff" + whole[33:])
    refused(path, "damaged", format="libsvm")


def test_unclear_and_binary_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("books\tA text about books\n")
    refused(path, "can't tell the format", "'books\\tA text")
    path.write_bytes(b"\x7fELF\x02\x01\x00\xff\xfe" * 50)
    refused(path, "can't tell the format", "\\x7fELF")
    refused(path, "line 1", "\\x7fELF", format="libsvm")
    refused(path, "y:", error=ConfigError, format="xmc", y="other")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "file.tsv"
    path.write_bytes(b"a\tone two\nb\tone \xff two\n")
    refused(path, "line 2", "UTF-8", "0xff", "if it is CP1252, iconv -f CP1252 -t UTF-8 converts it")


def test_endless_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "file"
    line = b"0 " + b"1:1 " * ((1 << 20) // 4 - 1)
    for end in (b"", b"\n"):
        path.write_bytes(b"0 1:1\n" + line + b"1:1" + end)
        with pytest.raises(DataError, match=re.escape(f"{path}, line 2: the line is longer than 1 MB")):
            list(files.line_blocks(path, block_bytes=1 << 14))
        path.write_bytes(b"0 1:1\n" + line[:-4] + end)
        assert sum(block.count(b"\n") for _, block in files.line_blocks(path, block_bytes=1 << 14)) == 2


def test_npz(tmp_path: Path) -> None:
    x, y = tmp_path / "X.npz", tmp_path / "Y.npz"
    sp.save_npz(x, sp.csr_matrix(np.eye(3)))
    with pytest.raises(DataError, match=r"Y\.npz: there is no such file"):
        load(x)
    sp.save_npz(y, sp.csr_matrix(np.eye(2)))
    refused(x, "3 rows of features but 2 rows of labels")
    sp.save_npz(y, sp.csr_matrix(-np.eye(3)))
    refused(x, "row 0, label 0", "-1")
    bad = np.eye(3)
    bad[1, 2] = np.nan
    sp.save_npz(y, sp.csr_matrix(bad))
    with pytest.raises(DataError, match=r"Y\.npz: row 1, column 2: .* found nan"):
        load(x)
    np.savez(y, a=np.arange(3))
    with pytest.raises(DataError, match=r"Y\.npz: not a sparse matrix"):
        load(x)
    np.savez(y, a=np.array([object()]))
    with pytest.raises(DataError, match=r"Y\.npz: not a sparse matrix"):
        load(x)
    y.write_bytes(x.read_bytes()[:100])
    with pytest.raises(DataError, match=r"Y\.npz: not a sparse matrix"):
        load(x)
    matrix = sp.csr_matrix(np.eye(3))
    matrix.indices[1] = 77
    np.savez(y, indices=matrix.indices, indptr=matrix.indptr, data=matrix.data, shape=(3, 3), format=b"csr")
    with pytest.raises(DataError, match=r"Y\.npz: "):
        load(x)
    (tmp_path / "other.npz").write_bytes(x.read_bytes())
    refused(tmp_path / "other.npz", "give it as y")


def test_a_dataset_of_unequal_parts() -> None:
    x, y = SparseRows.from_scipy(np.eye(3)), SparseRows.from_scipy(np.eye(2))
    with pytest.raises(DataError, match="3 rows of features but 2 rows of labels"):
        Dataset(x, y)
    with pytest.raises(DataError, match="3 features but 1 feature names"):
        Dataset(x, x, feature_names=["a"])
