"""Conversion in bounded memory: the same rows as reading whole, from files of all formats, or nothing at all."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide.data import Dataset, TextOptions, TextVectorizer, convert, load, open_dataset
from dslide.data.convert import progress as progress_module
from dslide.data.convert import texts
from dslide.data.convert.processes import in_order
from dslide.data.convert.progress import Progress
from dslide.data.convert.word_counts import WordCounts
from dslide.errors import ConfigError, DataError

WORDS = ["red", "blue", "fish", "house", "tree", "café", "дом", "x1"]
Rows = list[tuple[list[str], list[str]]]


def same(found: Dataset, expected: Dataset) -> bool:
    def about(data: Dataset) -> tuple:
        names = data.label_names, data.feature_names, data.layout, data.unknown_labels, data.base
        return data.checksum, None if data.vectorizer is None else data.vectorizer.to_dict(), *map(_plain, names)

    return about(found) == about(expected)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, list) else value


def as_tsv(rows: Rows) -> bytes:
    return "".join(f"{' '.join(labels)}\t{' '.join(words)}\n" for labels, words in rows).encode()


def as_csv(rows: Rows) -> bytes:
    """Cells in quotes, some with a line end inside."""
    return "".join(f'"{" ".join(labels)}","{chr(10).join(words)}"\n' for labels, words in rows).encode()


def as_jsonl(rows: Rows) -> bytes:
    return "\n".join(json.dumps({"text": " ".join(words), "labels": labels}) for labels, words in rows).encode()


MAKERS: dict[str, Callable[[Rows], bytes]] = {"tsv": as_tsv, "csv": as_csv, "jsonl": as_jsonl}
rows_of_text = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcde"), max_size=3, unique=True),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=8),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@given(
    rows=rows_of_text, cuts=st.lists(st.integers(0, 25), max_size=2), kind=st.sampled_from(list(MAKERS)),
    piece=st.integers(1, 9), most=st.integers(1, 12), files=st.integers(2, 4), max_features=st.integers(0, 4),
    known=st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=25)
def test_text_is_converted_as_it_is_read_whole(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, cuts: list[int], kind: str, piece: int, most: int,
    files: int, max_features: int, known: bool,
) -> None:  # fmt: skip
    rows = [*rows, (["a"], ["red", "fish"]), (["b"], ["red", "fish"])]
    folder = tmp_path_factory.mktemp("text")
    places = sorted({0, *(cut for cut in cuts if cut < len(rows)), len(rows)})
    parts = []
    for begin, end in pairwise(places):
        parts.append(folder / f"part-{begin:02}.{kind}.gz")
        parts[-1].write_bytes(gzip.compress(MAKERS[kind](rows[begin:end]), 0))
    (folder / f"all.{kind}").write_bytes(MAKERS[kind](rows))
    options = TextOptions(max_features=max_features, ngrams=2)
    names = ["b"] if known else None
    whole = load(folder / f"all.{kind}", format="tsv" if kind == "csv" else "auto",
                 vectorizer=TextVectorizer(options), label_names=names)  # fmt: skip
    given_words = TextVectorizer.from_dict(whole.vectorizer.to_dict()) if known else TextVectorizer(options)
    with (
        mock.patch.object(texts, "PIECE_ROWS", piece),
        mock.patch.object(texts, "WordCounts", partial(WordCounts, most=most)),
        mock.patch("dslide.data.convert.word_counts.MOST_FILES", files),
    ):
        convert(
            str(folder / f"part-*.{kind}.gz"), folder / "out", format="tsv" if kind == "csv" else "auto", threads=1,
            vectorizer=given_words, label_names=names,
        )  # fmt: skip
    assert same(open_dataset(folder / "out", verify=True), whole)
    assert {path.name.split(".")[0] for path in (folder / "out").iterdir()} <= {
        "dataset", "vectorizer", "label_names", "feature_names", *(f"{a}_{b}" for a in "xy" for b in
                                                                  ("indptr", "indices", "values"))
    }  # fmt: skip


def test_several_processes_write_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [(["a", "b"][: random.integers(3)], random.choice(WORDS, 5).tolist()) for _ in range(500)]
    (tmp_path / "rows.tsv").write_bytes(as_tsv(rows))
    with mock.patch.object(texts, "PIECE_ROWS", 7):
        convert(tmp_path / "rows.tsv", tmp_path / "out", threads=3)
    assert same(open_dataset(tmp_path / "out", verify=True), load(tmp_path / "rows.tsv"))


def test_an_error_in_the_midst_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(as_jsonl([(["a"], ["red"])] * 40))
    (tmp_path / "b.jsonl").write_bytes(as_jsonl([(["a"], ["red"])] * 40) + b'\n{"text": 5}\n')
    for threads in (1, 3):
        with mock.patch.object(texts, "PIECE_ROWS", 3), pytest.raises(DataError, match=r"b\.jsonl, line 41: text: "):
            convert([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "out", threads=threads)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_errors_of_other_processes_are_raised() -> None:
    def work(number: int) -> int:
        if number == 5:
            raise DataError("five")
        return 2 * number

    assert list(in_order(work, range(4), 2)) == [0, 2, 4, 6]
    with pytest.raises(DataError, match="five"):
        list(in_order(work, range(100), 2))


def test_files_that_change_between_passes_are_refused(tmp_path: Path) -> None:
    def reader(*later: tuple[list[str], str]) -> Callable[..., Iterator[tuple[list[str], str]]]:
        passes = iter([[(["a"], "red fish"), (["b"], "red fish")], list(later)])
        return lambda *_: iter(next(passes))

    for later, message in (
        ([(["a"], "red fish")], "2 rows at first, 1 later"),
        ([(["a"], "red"), (["c"], "red")], "label 'c' was not there at first"),
    ):
        with mock.patch.dict("dslide.data.convert.TEXT_ROWS", tsv=reader(*later)):
            (tmp_path / "f.tsv").write_text("a\tb\n")
            with pytest.raises(DataError, match=message):
                convert(tmp_path / "f.tsv", tmp_path / "out", threads=1)


# ---- other formats --------------------------------------------------------------------------------------------------

lines_of_numbers = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=3), st.lists(st.integers(0, 4), max_size=4)), min_size=1, max_size=6
)


@given(
    files=st.lists(lines_of_numbers, min_size=2, max_size=3), header=st.booleans(), shift=st.integers(0, 1),
    blanks=st.integers(0, 2),
)  # fmt: skip
@settings(deadline=None, max_examples=25)
def test_files_of_features_follow_one_another(
    tmp_path_factory: pytest.TempPathFactory, files: list[Rows], header: bool, shift: int, blanks: int
) -> None:
    folder = tmp_path_factory.mktemp("svm")
    files = [[*rows, ([3], [4])] for rows in files]
    lines = [
        [",".join(str(i + shift) for i in y) + "".join(f" {i + shift}:{i + 0.5}" for i in x) for y, x in rows]
        for rows in files
    ]
    for number, part in enumerate(lines):
        top = [f"{len(part)} 5 4"] * header
        (folder / f"part{number}").write_text("\n".join([*top, *part]) + "\n" * (1 + blanks))
    every = [line for part in lines for line in part]
    (folder / "all").write_text("\n".join([*[f"{len(every)} 5 4"] * header, *every]) + "\n")
    format = "xmc" if header else "libsvm"
    convert(sorted(folder.glob("part*")), folder / "out", format=format)  # type: ignore[arg-type]
    assert same(open_dataset(folder / "out", verify=True), load(folder / "all", format=format))  # type: ignore[arg-type]


def test_headers_of_several_files_must_agree(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 5 4\n0 1:1\n")
    (tmp_path / "b").write_text("1 6 4\n0 1:1\n")
    with pytest.raises(DataError, match=r"b, line 1: has 6 features, but 5 are expected"):
        convert([tmp_path / "a", tmp_path / "b"], tmp_path / "out")


@given(
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=3), block=st.integers(1, 5), seed=st.integers(0, 99),
    dtype=st.sampled_from(["f4", "f8", "i8", "?"]), kind=st.sampled_from(["csr", "csc", "coo"]),
)  # fmt: skip
@settings(deadline=None, max_examples=25)
def test_matrices_are_converted_in_blocks(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], block: int, seed: int, dtype: str, kind: str
) -> None:
    folder, random = tmp_path_factory.mktemp("npz"), np.random.default_rng(seed)
    rows = [*rows, 2]
    both = []
    for name, columns in (("X", 6), ("Y", 4)):
        parts = [random.integers(0, 3, (count, columns)) for count in rows]
        for number, part in enumerate(parts):
            matrix = sp.csr_matrix(part.astype("f4"))
            if name == "X" and matrix.nnz:  # not in canonical form: an index twice, and out of order
                matrix = sp.csr_matrix(
                    (np.repeat(matrix.data, 2)[::-1], np.repeat(matrix.indices, 2)[::-1], 2 * matrix.indptr),
                    shape=matrix.shape,
                )
                matrix = matrix[::-1] if len(part) == 1 else matrix
            if matrix.nnz:
                matrix.data[0] = 0  # stored zeros: features keep them, labels do not
            sp.save_npz(folder / f"{name}.{number}.npz", matrix.asformat(kind).astype(dtype if kind == "csr" else "f4"))
        both.append(sp.vstack([sp.load_npz(folder / f"{name}.{n}.npz").tocsr() for n in range(len(rows))], "csr"))
    for name, matrix in zip("XY", both, strict=True):
        sp.save_npz(folder / f"{name}.npz", matrix)
    with mock.patch("dslide.data.convert.npz.BLOCK_ROWS", block):
        convert([folder / f"X.{n}.npz" for n in range(len(rows))], folder / "out")
        convert(folder / "X.npz", folder / "one")
    whole = load(folder / "X.npz")
    assert same(open_dataset(folder / "out", verify=True), whole)
    assert same(open_dataset(folder / "one", verify=True), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indptr": np.array([0, 2, 1, 3])}, "X.npz: damaged sparse matrix: "),
        ({"indptr": np.array([1, 2, 3, 3])}, "X.npz: not a sparse matrix"),
        ({"indptr": np.array([0, 1, 2, 2])}, "X.npz: not a sparse matrix"),
        ({"indices": np.array([0, 1, 7])}, "X.npz: damaged sparse matrix: indices must be < 3"),
        ({"indices": np.array([0, 1])}, "X.npz: not a sparse matrix"),
        ({"data": np.array([1, np.nan, 1])}, "X.npz: row 1, column 1: expected a finite 32-bit number"),
        ({"data": np.array(["a", "b", "c"])}, "X.npz: not a sparse matrix"),
        ({"shape": np.array([2, 3])}, "X.npz: not a sparse matrix"),
    ],
)
def test_damaged_matrices_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    eye = sp.eye(3, format="csr")
    about = {"data": eye.data, "indices": eye.indices, "indptr": eye.indptr, "shape": (3, 3), "format": b"csr"}
    np.savez(tmp_path / "X.npz", **(about | change))
    sp.save_npz(tmp_path / "Y.npz", eye)
    with pytest.raises(DataError, match=message):
        convert(tmp_path / "X.npz", tmp_path / "out")
    sp.save_npz(tmp_path / "X.npz", eye)
    sp.save_npz(tmp_path / "Y.npz", -eye)
    with pytest.raises(DataError, match=r"Y\.npz: row 0, label 0: a label's weight can't be negative"):
        convert(tmp_path / "X.npz", tmp_path / "out")
    sp.save_npz(tmp_path / "Y.npz", sp.eye(4, 3, format="csr"))
    with pytest.raises(DataError, match="3 rows of features but 4 rows of labels"):
        convert(tmp_path / "X.npz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inputs_that_can_not_be_joined_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item\nu,i\n")
    with pytest.raises(DataError, match=r"part-\*: no file matches"):
        convert(tmp_path / "part-*", tmp_path / "out")
    with pytest.raises(ConfigError, match="interactions data is converted from one file, not from 2"):
        convert([tmp_path / "a.csv", tmp_path / "a.csv"], tmp_path / "out")


# ---- memory and interruptions ---------------------------------------------------------------------------------------

PROGRAM = """
import sys
from dslide.data import convert, files, load
from dslide.util.memory import peak_rss_bytes
files.BLOCK_BYTES = 1 << 20
before = peak_rss_bytes()
if sys.argv[1] == "load":
    load(sys.argv[2])
else:
    convert(sys.argv[2], sys.argv[3], threads=1)
print(peak_rss_bytes() - before)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file of 48 MB with few and very long words, which take little time."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefgh"), 500)) for _ in range(100)]
    (tmp_path / "f.tsv").write_text("".join(f"a\t{' '.join(random.choice(words, 40))}\n" for _ in range(2400)))
    size = (tmp_path / "f.tsv").stat().st_size

    def growth(*arguments: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=100
        )
        return int(done.stdout)

    assert size > 45_000_000
    assert growth("convert", str(tmp_path / "f.tsv"), str(tmp_path / "out")) < 0.6 * size
    assert growth("load", str(tmp_path / "f.tsv")) > size
    assert same(open_dataset(tmp_path / "out"), load(tmp_path / "f.tsv"))


def test_an_interrupted_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another call of the same conversion, and of no other one; all is as if it had never stopped."""
    paths = [tmp_path / f"{i}.tsv" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(as_tsv([([f"label{row % 7}", f"of{i}"], [*WORDS, f"word{row % 50}"]) for row in range(9000)]))
    monkeypatch.setattr(progress_module, "PIECES", 2)
    out, said = tmp_path / "out", list[str]()

    def interrupted(after: int) -> None:
        """Ctrl-C at the note after so many pieces."""
        noted = Progress._note

        def note(self: Progress) -> None:
            noted(self)
            if self.pieces >= after:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Progress, "_note", note)
            with pytest.raises(KeyboardInterrupt):
                convert(paths, out, threads=2, progress=said.append)
        assert said.pop() == "interrupted: the same conversion goes on from here"

    interrupted(2)
    left = [*tmp_path.glob(".out.*.partial")]
    assert len(left) == 1
    with open(left[0] / "x_values.f32", "ab") as file:
        file.write(b"written after the last note")
    interrupted(4)
    assert [*tmp_path.glob(".out.*.partial")] == left
    convert(paths, out, threads=1, progress=said.append)
    assert "goes on with an interrupted conversion, of which 4 pieces are written" in said
    convert(paths, tmp_path / "whole")
    assert same(open_dataset(out, verify=True), open_dataset(tmp_path / "whole", verify=True))
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}
    assert not [*tmp_path.glob(".out.*.partial")]


@pytest.mark.parametrize("change", ["file", "options", "notes", "rows"])
def test_another_conversion_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    data, out, said = tmp_path / "f.tsv", tmp_path / "out", list[str]()
    data.write_bytes(as_tsv([(["a"], WORDS)] * 9000))
    monkeypatch.setattr(progress_module, "PIECES", 1)
    noted = Progress._note
    with monkeypatch.context() as patched:
        patched.setattr(
            Progress, "_note", lambda self: (noted(self), self.pieces and os.kill(os.getpid(), signal.SIGINT))
        )
        with pytest.raises(KeyboardInterrupt):
            convert(data, out, threads=1)
    left = next(tmp_path.glob(".out.*.partial"))
    how = {}
    if change == "file":
        data.write_bytes(as_tsv([(["b"], WORDS)] * 9000))
    elif change == "options":
        how = {"vectorizer": TextVectorizer(TextOptions(min_df=3))}
    elif change == "notes":
        (left / "progress.json").write_text("{}")
    else:
        (left / "x_indices.i32").write_bytes(b"")
    convert(data, out, threads=1, progress=said.append, **how)
    assert not [line for line in said if "goes on" in line]
    assert same(open_dataset(out, verify=True), load(data, **how))
    assert not left.exists()


def test_a_conversion_that_was_killed_leaves_nothing_to_open_and_starts_again(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_bytes(as_tsv([(["a"], WORDS)] * 20_000))
    program = f"from dslide.data import convert; convert({str(tmp_path / 'f.tsv')!r}, {str(tmp_path / 'out')!r})"
    started = subprocess.Popen([sys.executable, "-c", program])
    for _ in range(1000):
        if list(tmp_path.glob(".out.*.partial/x_indptr.i64")):
            break
        time.sleep(0.01)
    os.kill(started.pid, signal.SIGKILL)
    started.wait(10)
    left = list(tmp_path.glob(".out.*.partial"))
    assert len(left) == 1
    with pytest.raises(DataError):
        open_dataset(left[0])
    with pytest.raises(DataError):
        open_dataset(tmp_path / "out")
    (tmp_path / ".other.00000000.partial").mkdir()
    for _ in range(500):  # its processes end with it
        convert(tmp_path / "f.tsv", tmp_path / "out", threads=1)
        if not left[0].exists():
            break
        (tmp_path / "out" / "dataset.json").unlink()
        time.sleep(0.02)
        shutil.rmtree(tmp_path / "out")
    assert same(open_dataset(tmp_path / "out", verify=True), load(tmp_path / "f.tsv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.00000000.partial", "f.tsv", "out"]
