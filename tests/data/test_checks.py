"""Warnings about data that can be read but looks wrong, and none about data that looks as most does."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from dslide.cli import main
from dslide.data import Dataset, load
from dslide.data.checks import check_features, check_training_data

ROWS = 200


def lines(seed: int = 0) -> list[tuple[str, str]]:
    """Labels and texts of twelve words, in which each label has a word of its own."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(ROWS):
        label = int(rng.integers(20))
        words = [f"word{label}", *(f"other{n}" for n in rng.integers(300, size=11))]
        made.append((f"label{label}", " ".join(words)))
    return made


def write(path: Path, rows: list[tuple[str, str]], before: str = "") -> Path:
    path.write_text(before + "".join(f"{first}\t{second}\n" for first, second in rows))
    return path


def said(path: Path) -> list[str]:
    data = load(path)
    assert isinstance(data, Dataset)
    return check_training_data(data)


def test_data_as_it_should_be_gets_no_warning(tmp_path: Path) -> None:
    assert said(write(tmp_path / "rows.tsv", lines())) == []
    (tmp_path / "rows.txt").write_text("".join(f"{n % 7} {n % 5}:1 {5 + n % 3}:1\n" for n in range(60)))
    assert said(tmp_path / "rows.txt") == []


def test_a_header_is_suspected(tmp_path: Path) -> None:
    (warning,) = said(write(tmp_path / "rows.tsv", lines(), "labels\twords\n"))
    assert warning.startswith(f"{tmp_path / 'rows.tsv'}: the first line has the label labels, which no other line has")


def test_a_label_with_the_name_of_a_header_that_others_have_is_none(tmp_path: Path) -> None:
    rows = lines()
    rows[0] = rows[5] = ("tags", rows[0][1])
    assert said(write(tmp_path / "rows.tsv", rows)) == []


def test_swapped_columns_are_suspected_with_figures_and_options(tmp_path: Path) -> None:
    (warning,) = said(write(tmp_path / "rows.tsv", [(text, labels) for labels, text in lines()]))
    assert "a row has 11.9 labels and 1.0 words on average: are the columns swapped?" in warning
    assert warning.endswith("(label_column says which column has the labels)")
    wide = load(write(tmp_path / "wide.tsv", [(labels, f"{text}\t{labels}") for labels, text in lines()]),
                label_column=2, text_column=3)  # fmt: skip
    assert isinstance(wide, Dataset)
    assert check_training_data(wide)[0].endswith("(label_column, now 2, says which column has the labels)")


def test_labels_of_one_row_each_are_counted(tmp_path: Path) -> None:
    rows = [(f"one{n} two{n}", text) for n, (_, text) in enumerate(lines())]
    (warning,) = said(write(tmp_path / "rows.tsv", rows))
    assert "there are 400 labels in 200 rows, and 400 of them are in one row only" in warning


def test_row_numbers_as_labels_are_suspected(tmp_path: Path) -> None:
    rows = [(str(n), text) for n, (_, text) in enumerate(lines())]
    (warning,) = said(write(tmp_path / "rows.tsv", rows))
    assert "there are 200 labels in 200 rows, and 200 of them are in one row only" in warning


def test_labels_with_blanks_are_suspected_and_can_be_read(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32))
    (tmp_path / "labels.txt").write_text("".join(f"class {n % 5}\n" for n in range(60)))
    data = load(tmp_path / "X.npy", y=tmp_path / "labels.txt")
    assert isinstance(data, Dataset)
    (warning,) = check_training_data(data)
    assert "all 60 rows have the label 'class', which says nothing: do labels have blanks?" in warning
    data = load(tmp_path / "X.npy", y=tmp_path / "labels.txt", label_separator=";")
    assert isinstance(data, Dataset)
    assert check_training_data(data) == []
    assert data.label_names is not None
    assert [*data.label_names] == [f"class {n}" for n in range(5)]


def test_columns_of_interactions_that_look_wrong(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    rows = [(f"u{n % 40}", f"i{n % 7}", n) for n in range(100)]
    path.write_text("userId,itemId,stamp\n" + "".join(f"{user},{item},{n}\n" for user, item, n in rows))
    said_of = {}
    for user, item in (("userId", "itemId"), ("itemId", "userId"), ("stamp", "itemId")):
        data = load(path, user_column=user, item_column=item)
        assert isinstance(data, Dataset)
        said_of[user] = " ".join(check_training_data(data))
    assert said_of["userId"] == ""
    assert "users are in column itemId, items in userId: are user_column and item_column swapped?" in said_of["itemId"]
    assert "100 of 100 users have one item only, and nothing can be learned from these" in said_of["stamp"]


def test_rows_without_a_known_word_are_counted(tmp_path: Path) -> None:
    data = load(write(tmp_path / "rows.tsv", lines()))
    strange = [("label0", f"never{n} seen{n}") for n in range(30)]
    other = load(write(tmp_path / "new.tsv", [*lines(1), *strange]), vectorizer=data.vectorizer)
    assert isinstance(other, Dataset)
    (warning,) = check_features(other)
    assert "30 of 230 rows have no word that the model knows, and all of these get the same labels" in warning
    assert warning.endswith("(text_column says which column has the text)")
    few = load(write(tmp_path / "few.tsv", [*lines(1), *strange[:10]]), vectorizer=data.vectorizer)
    assert isinstance(few, Dataset)
    assert check_features(few) == []


def run_in(folder: Path, *arguments: str) -> str:
    before = os.getcwd()
    os.chdir(folder)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
            assert main(list(arguments)) == 0, errors.getvalue()
    finally:
        os.chdir(before)
    return errors.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checks")
    write(made / "train.tsv", lines())
    write(made / "swapped.tsv", [(text, labels) for labels, text in lines()])
    assert "warning" not in run_in(made, "train", "train.tsv", "--out", "run", "--epochs", "1", "--threads", "1")
    return made


def test_training_with_swapped_columns_warns(folder: Path) -> None:
    errors = run_in(folder, "train", "swapped.tsv", "--out", "swapped", "--epochs", "1", "--threads", "1")
    assert "warning: swapped.tsv: a row has 11.9 labels and 1.0 words on average" in errors


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_predicting_from_the_wrong_column_warns(folder: Path, command: str) -> None:
    errors = run_in(folder, command, "run", "swapped.tsv")
    assert "warning: swapped.tsv: 200 of 200 rows have no word that the model knows" in errors
    assert ("labels are none that the model knows, and count as missed" in errors) == (command == "evaluate")
    assert "warning" not in run_in(folder, command, "run", "train.tsv")
