"""Labels and text among other columns of a tsv file, and rows held out of a dataset."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide.data import Dataset, SparseRows, convert, load, open_dataset
from dslide.data.layout import Layout
from dslide.errors import ConfigError, DataError

ROWS = [("a b", "red fish"), ("b", "red house"), ("", "blue fish red"), ("a", "")]


def write(path: Path, places: tuple[int, int], width: int) -> Path:
    """A file with labels and text in these columns, counted from 1, and words to be ignored in the others."""
    lines = []
    for labels, text in ROWS:
        cells = ["noise noise red"] * width
        cells[places[0] - 1], cells[places[1] - 1] = labels, text
        lines.append("\t".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def chosen(places: tuple[int, int]) -> dict[str, int]:
    return {"label_column": places[0], "text_column": places[1]}


@given(places=st.permutations([1, 2, 3, 4, 5]), extra=st.integers(0, 2), block=st.integers(1, 60))
@settings(deadline=None, max_examples=30)
def test_columns_anywhere_equal_a_file_of_two_columns(
    tmp_path_factory: pytest.TempPathFactory, places: list[int], extra: int, block: int
) -> None:
    folder = tmp_path_factory.mktemp("columns")
    plain = load(write(folder / "plain.tsv", (1, 2), 2))
    label, text = places[:2]
    file = write(folder / "wide.tsv", (label, text), max(label, text) + extra)
    wide = load(file, **chosen((label, text)))
    assert wide.checksum == plain.checksum
    assert (wide.label_names, wide.feature_names) == (plain.label_names, plain.feature_names)
    with mock.patch("dslide.data.files.BLOCK_BYTES", block):
        assert load(file, **chosen((label, text))).checksum == plain.checksum


def test_one_column_given_leaves_the_other_at_its_default(tmp_path: Path) -> None:
    plain = load(write(tmp_path / "plain.tsv", (1, 2), 2))
    assert load(write(tmp_path / "a.tsv", (1, 4), 4), text_column=4).checksum == plain.checksum
    assert load(write(tmp_path / "b.tsv", (3, 2), 3), label_column=3).checksum == plain.checksum


@pytest.mark.parametrize("header", ["title,subjects", "subjects,title", "title,topics,text", "tags,title"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_usual_names_of_columns_are_found(tmp_path: Path, header: str, end: str) -> None:
    """A text counts before a title."""
    names = header.split(",")
    text = "text" if "text" in names else "title"
    lines = [header]
    for label, words in (("a", "red fish"), ("b", "blue house")) * 2:
        lines.append(
            ",".join({"title": words if text == "title" else "noise", "text": words}.get(n, label) for n in names)
        )
    (tmp_path / "usual.csv").write_bytes("".join(line + end for line in lines).encode())
    found = load(tmp_path / "usual.csv")
    assert (found.label_names, found.feature_names) == (["a", "b"], ["blue", "fish", "house", "red"])


def test_a_layout_is_remembered_unless_other_columns_are_given(tmp_path: Path) -> None:
    train = load(write(tmp_path / "train.tsv", (2, 3), 3), **chosen((2, 3)))
    assert train.layout == Layout(label_column=2, text_column=3)
    known = {"vectorizer": train.vectorizer, "label_names": train.label_names, "layout": train.layout}
    assert load(write(tmp_path / "test.tsv", (2, 3), 4), **known).checksum == train.checksum
    assert load(write(tmp_path / "other.tsv", (1, 2), 2), **known, **chosen((1, 2))).checksum == train.checksum
    assert load(write(tmp_path / "moved.tsv", (4, 3), 4), **known, label_column=4).checksum == train.checksum
    convert(tmp_path / "train.tsv", tmp_path / "folder", **chosen((2, 3)))
    opened = load(tmp_path / "folder", vectorizer=train.vectorizer)
    assert opened.layout == train.layout
    plain = load(tmp_path / "other.tsv")  # the same words, from other columns, are the same vocabulary
    assert load(tmp_path / "folder", vectorizer=plain.vectorizer).checksum == train.checksum


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("i\ta\tone\n", {}, "line 1: expected labels and a text, two columns between tabs, found 3; choose among "
         "more columns with label_column and text_column"),
        ("i\ta\tone\nj\tb\n", chosen((2, 3)), "line 2: expected 3 columns as in line 1, found 2"),
        ("i\ta\tone\nj\tb\tone\t2\n", chosen((2, 3)), "line 2: expected 3 columns as in line 1, found 4"),
        ("i\ta\tone\n\nj\tb\tone\n", chosen((2, 3)), "line 2: the line is blank, expected 3 columns"),
        ("\n", chosen((2, 3)), "there are no rows"),
    ],
)  # fmt: skip
def test_files_with_other_columns_are_refused(tmp_path: Path, text: str, options: dict, message: str) -> None:
    path = tmp_path / "file.tsv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        load(path, **options)
    assert str(caught.value) in (f"{path}, {message}", f"{path}: {message}")


@pytest.mark.parametrize("read", ["load", "convert"])
@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("tsv", {"label_column": 0}, "label_column: columns are counted from 1, not 0"),
        ("tsv", {"text_column": -3}, "text_column: columns are counted from 1, not -3"),
        ("tsv", {"label_column": 2}, "label_column, text_column: labels and text can't both be in column 2"),
        ("libsvm", {"text_column": 2}, "text_column: has no use with libsvm data, only with tsv, jsonl and parquet"),
    ],
)
def test_invalid_columns_are_refused(tmp_path: Path, read: str, format: str, options: dict, message: str) -> None:
    (tmp_path / "file").write_text("1\t2\n")
    work = {"load": load, "convert": partial(convert, folder=tmp_path / "out")}[read]
    with pytest.raises(ConfigError) as caught:
        work(tmp_path / "file", format=format, **options)
    assert str(caught.value) == message


# ---- rows held out -------------------------------------------------------------------------------------------------


def numbered(rows: int) -> Dataset:
    """Row i has feature i and label i."""
    eye = SparseRows.from_scipy(np.eye(rows, dtype=np.float32))
    return Dataset(eye, eye, label_names=[f"l{i}" for i in range(rows)], source="numbered", base=1)


@given(rows=st.integers(2, 200), share=st.floats(0.01, 0.99), seed=st.integers(0, 2**63 - 1))
@settings(deadline=None)
def test_a_split_puts_every_row_into_one_part(rows: int, share: float, seed: int) -> None:
    whole, count = numbered(rows), round(share * rows)
    if count in (0, rows):
        with pytest.raises(DataError, match=f"numbered: a share of .* leaves one part of {rows} rows without any"):
            whole.split(share, seed)
        return
    parts = whole.split(share, seed)
    assert len(parts[1]) == count
    found = [part.x.indices.tolist() for part in parts]
    assert sorted(found[0] + found[1]) == list(range(rows))
    for part, ids in zip(parts, found, strict=True):
        assert ids == sorted(ids)
        assert part.y.indices.tolist() == ids  # features and labels stay together
        assert (part.label_names, part.features, part.labels, part.base) == (whole.label_names, rows, rows, 1)
        assert part.checksum != whole.checksum
    again = whole.split(share, seed)
    assert [part.checksum for part in again] == [part.checksum for part in parts]


def test_a_split_follows_the_seed_and_is_random() -> None:
    held = [set(numbered(1000).split(0.1, seed)[1].x.indices.tolist()) for seed in range(3)]
    assert len(set(map(frozenset, held))) == 3
    assert len(held[0] & held[1]) < 40  # 10 are expected of 100
    assert 400 < np.mean(list(held[0])) < 600


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5, float("nan")])
def test_invalid_shares_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="share: expected a number above 0 and below 1, not"):
        numbered(10).split(share, 0)


def test_a_mapped_dataset_can_be_split(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"{i % 7} {i}:1\n" for i in range(50)))
    convert(tmp_path / "f", tmp_path / "d")
    mapped = open_dataset(tmp_path / "d").split(0.2, 3)
    loaded = load(tmp_path / "f").split(0.2, 3)
    assert [part.checksum for part in mapped] == [part.checksum for part in loaded]
