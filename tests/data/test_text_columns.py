"""Several columns of text in a row, whose words count more than once."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dslide
from dslide.data import TextOptions, TextVectorizer, convert, load
from dslide.data.layout import Layout
from dslide.errors import ConfigError, DataError

WORDS = st.lists(st.sampled_from(["red", "blue", "fish", "house"]), max_size=4).map(" ".join)
ROWS = [("red fish", "blue house", "a b"), ("blue", "red red", "b"), ("", "fish", "a"), ("house fish", "", "")]


def write(folder: Path, rows: list[tuple[str, str, str]]) -> tuple[Path, Path]:
    with open(folder / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([("title", "abstract", "tags"), *rows])
    lines = (json.dumps({"title": t, "abstract": a, "tags": y.split()}) for t, a, y in rows)
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder / "rows.csv", folder / "rows.jsonl"


@given(rows=st.lists(st.tuples(WORDS, WORDS, st.sampled_from(["", "a", "a b"])), max_size=6), weight=st.integers(1, 4))
@settings(deadline=None, max_examples=15)
def test_words_count_as_if_they_were_repeated(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], weight: int
) -> None:
    folder = tmp_path_factory.mktemp("columns")
    rows = [*ROWS, *rows]
    table, jsonl = write(folder, rows)
    repeated = "".join(f"{y}\t{f'{title} ' * weight}{abstract}\n" for title, abstract, y in rows)
    (folder / "repeated.tsv").write_text(repeated)
    expected = load(folder / "repeated.tsv")
    columns: list[Any] = [f"title:{weight},abstract", {"title": weight, "abstract": 1}]
    for column in columns if weight > 1 else [*columns, ["title", "abstract"], "title , abstract"]:
        found = load(table, text_column=column, label_column="tags")
        assert (found.checksum, found.feature_names) == (expected.checksum, expected.feature_names)
        assert load(jsonl, text_column=column, label_column="tags").checksum == expected.checksum
    assert load(table, text_column=f"1:{weight},2", label_column=3, header=True).checksum == expected.checksum
    convert(table, folder / "out", text_column=f"title:{weight},abstract", label_column="tags", threads=1)
    assert load(folder / "out").checksum == expected.checksum
    alone = load(table, text_column="title:2", label_column="tags")
    (folder / "twice.tsv").write_text("".join(f"{y}\t{title} {title}\n" for title, _, y in rows))
    assert alone.checksum == load(folder / "twice.tsv").checksum


def test_runs_of_words_do_not_cross_columns() -> None:
    vectorizer = TextVectorizer(TextOptions(min_df=1, ngrams=2))
    vectorizer.fit_transform_rows([(("red fish", 2), ("blue house", 1))])
    assert vectorizer.words == ["blue", "blue house", "fish", "house", "red", "red fish"]


def test_a_model_remembers_its_columns(tmp_path: Path) -> None:
    table, jsonl = write(tmp_path, ROWS * 10)
    columns = {"text_column": "title:3,abstract", "label_column": "tags"}
    run = dslide.train(table, out=tmp_path / "run", test=jsonl, epochs=1, threads=1, **columns)
    assert run.metrics["rows"] == 30  # those with labels
    expected = [row.names for row in dslide.predict(run.folder, table, k=2)]
    assert [row.names for row in dslide.predict(run.folder, jsonl, k=2)] == expected
    assert len(list(dslide.predict(run.folder, ["red fish"], k=2))) == 1


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("title:0,abstract", "text_column: the words of a column can count 1 to 1000 times, not 0"),
        ("title:1001", "text_column: the words of a column can count 1 to 1000 times, not 1001"),
        ("title,", "text_column: expected different columns, as title:3,abstract, not ''"),
        ("title:2,title", "text_column: expected different columns, as title:3,abstract, not 'title'"),
        ({"title": 0.5}, "text_column: expected columns, or a dict of these and whole numbers, not {'title': 0.5}"),
        ("title,body", "text_column: {} has no column 'body', only title, abstract, tags"),
        ("title,tags", "label_column, text_column: labels and text can't both be in column 3"),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, column: Any, message: str) -> None:
    table, _ = write(tmp_path, ROWS)
    with pytest.raises(ConfigError) as caught:
        load(table, text_column=column)
    assert str(caught.value) == message.replace("{}", str(table))


def test_rows_of_json_may_lack_a_key_but_not_all(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"title": "red", "abstract": null}\n{"abstract": "red"}\n')
    assert load(path, text_column="title,abstract").x.nnz == 2
    with pytest.raises(DataError, match="text_column: no line has the key 'body'"):
        load(path, text_column="title,abstract,body")
    path.write_text('{"title": "red", "abstract": "red"}\n{"abs": "red"}\n')
    with pytest.raises(DataError, match="line 2: title: expected a text, there is none"):
        load(path, text_column="title,abstract")


def test_layouts_keep_columns_as_one_option() -> None:
    layout = Layout(text_column=["title", 2])  # type: ignore[arg-type]
    assert Layout.from_dict(layout.to_dict()) == layout
    assert layout.text_columns() == [("title", 1), (2, 1)]
