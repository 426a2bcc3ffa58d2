"""JSON Lines are read as the same rows in tsv are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide.data import Dataset, detect_format, load
from dslide.errors import DataError

WORDS = st.sampled_from(["red", "blue", "fish", "house", "tree"])


@given(
    rows=st.lists(
        st.tuples(st.lists(st.sampled_from("abcde"), max_size=3, unique=True), st.lists(WORDS, min_size=1, max_size=6)),
        min_size=4, max_size=20,
    )
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_rows_are_those_of_a_tsv_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[list[str], list[str]]]
) -> None:
    rows = [*rows, (["a"], ["red", "fish"]), (["b"], ["red", "fish"])]  # words in two rows
    folder = tmp_path_factory.mktemp("jsonl")
    tsv, jsonl = folder / "rows.tsv", folder / "rows.jsonl"
    tsv.write_text("".join(f"{' '.join(labels)}\t{' '.join(words)}\n" for labels, words in rows))
    jsonl.write_text("".join(json.dumps({"text": " ".join(words), "labels": labels}) + "\n" for labels, words in rows))
    expected, found = load(tsv), load(jsonl)
    assert found.checksum == expected.checksum
    assert (found.label_names, found.feature_names) == (expected.label_names, expected.feature_names)


def test_labels_may_have_blanks_be_numbers_or_one_only_or_none(tmp_path: Path) -> None:
    rows = [
        {"text": "red fish", "labels": ["New York", 7], "id": 1},
        {"text": "red fish", "labels": "New York"},
        {"text": "red fish", "labels": 7},
        {"text": "red fish"},
        {"text": "red fish", "labels": ["New York", "New York"]},
    ]
    path = tmp_path / "rows.data"
    path.write_bytes(gzip.compress("\n\n".join(map(json.dumps, rows)).encode()))
    assert detect_format(path) == "jsonl"
    data = load(path)
    assert isinstance(data, Dataset)
    assert data.label_names == ["New York", "7"]
    assert [data.y.indices[a:b].tolist() for a, b in zip(data.y.indptr, data.y.indptr[1:], strict=False)] == [
        [0, 1], [0], [1], [], [0]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 2: expected an object with text and labels, not list"),
        ('{"text": 3}', "line 2: text: expected a text, not int"),
        ('{"labels": ["a"]}', "line 2: text: expected a text, there is none"),
        ('{"text": "a b", "labels": [[1]]}', "line 2: labels: expected a list of texts or whole numbers"),
        ('{"text": "a b", "labels": {"a": 1}}', "line 2: labels: expected a list of texts or whole numbers"),
        ('{"text": "a', "line 2: not JSON: Unterminated string"),
        ("[" * 100_000, "line 2: not JSON: "),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "red fish", "labels": ["a"]}\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}, {message}")
