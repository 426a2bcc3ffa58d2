"""Parquet files are read as the same rows in other formats are."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dslide
from dslide.data import convert, detect_format, load
from dslide.errors import DataError, UserError

ROWS = [(["New York", "b"], "red fish"), ([], "red house"), (None, None), (["b"], "blue fish"), (["b", "b"], "fish")]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    table = pa.table({"id": range(5), "text": [text for _, text in ROWS], "tags": [labels for labels, _ in ROWS]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=2)
    return tmp_path / "rows.parquet"


def written(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "f.parquet", **options)
    return folder / "f.parquet"


def test_texts_with_lists_of_labels(tmp_path: Path, parquet: Path) -> None:
    lines = [json.dumps({"text": text or "", "labels": labels or []}) for labels, text in ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    expected = load(tmp_path / "rows.jsonl")
    assert detect_format(parquet) == "parquet"
    found = load(parquet)
    assert (found.checksum, found.label_names) == (expected.checksum, ["b", "New York"])
    convert(parquet, tmp_path / "out", threads=1)
    assert load(tmp_path / "out").checksum == expected.checksum
    convert([parquet, parquet], tmp_path / "two", threads=2)
    assert len(load(tmp_path / "two")) == 10


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (["a b;c", "", None, "c"], {"label_separator": ";"}),
        ([["a b", "c"], [], None, ["c"]], {}),
        (pa.array(["a b;c", "", None, "c"]).dictionary_encode(), {"label_separator": ";"}),
    ],
)
def test_labels_between_separators_and_of_other_types(tmp_path: Path, labels: Any, options: dict) -> None:
    path = written(tmp_path, {"subject": labels, "body": ["red", "red", "red", "red"]})
    data = load(path, label_column="subject", **options)
    assert data.label_names == ["c", "a b"]
    assert data.y.to_scipy().toarray().tolist() == [[1, 1], [0, 0], [0, 0], [1, 0]]


def test_several_columns_of_text_and_numbers_as_labels(tmp_path: Path) -> None:
    path = written(tmp_path, {"class": [3, 3, 7], "title": ["red", "red", None], "abstract": ["blue", "blue", "red"]})
    (tmp_path / "f.tsv").write_text("3\tred red blue\n3\tred red blue\n7\tred\n")
    assert load(path, text_column="title:2,abstract").checksum == load(tmp_path / "f.tsv").checksum


def test_a_model_of_parquet_predicts_parquet_without_labels(tmp_path: Path, parquet: Path) -> None:
    run = dslide.train(parquet, out=tmp_path / "run", test=parquet, epochs=1, threads=1)
    path = written(tmp_path, {"more": [1, 2], "text": ["red fish", "blue house"]})
    assert len(list(dslide.predict(run.folder, path, k=1))) == 2


def test_interactions(tmp_path: Path) -> None:
    when = [datetime.datetime(2024, 5, day, tzinfo=datetime.timezone.utc) for day in (3, 1, 2, 4)]
    columns = {
        "when": pa.array(when, pa.timestamp("ns", "UTC")), "user_id": [7, 7, 8, 8], "item": list("abba"),
        "rating": [1.5, 2.0, 0.0, 4.0],
    }  # fmt: skip
    path = written(tmp_path, columns, row_group_size=3)
    text = "".join(
        f"{t.isoformat()},{u},{i},{r}\n" for t, u, i, r in zip(when, *list(columns.values())[1:], strict=True)
    )
    (tmp_path / "f.csv").write_text("when,user_id,item,rating\n" + text)
    options = {"weight_column": "rating", "time_column": "when"}
    assert detect_format(path) == "interactions"
    expected, found = (load(file, **options) for file in (tmp_path / "f.csv", path))  # type: ignore[arg-type]
    assert found.checksum == expected.checksum
    assert found.user_names == expected.user_names == ["7", "8"]
    assert found.times.tolist() == expected.times.tolist()
    path = written(tmp_path, {"user": ["u", None], "item": ["i", "i"]})
    with pytest.raises(DataError, match=r"f\.parquet, row 2: expected a user and an item"):
        load(path)


def test_wrong_files_are_refused(tmp_path: Path, parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = parquet.read_bytes()
    for damaged in (content[:-20], content[:200] + bytes(200) + content[400:], b"PAR1"):
        (tmp_path / "bad").write_bytes(damaged)
        with pytest.raises(DataError, match="bad: can't be read as Parquet: "):
            load(tmp_path / "bad", text_column="text", label_column="tags")
    for columns, message in (
        ({"a": ["x"], "b": ["y"], "c": ["z"]}, "has the columns a, b, c; give label_column and text_column"),
        ({"labels": ["x"], "text": [5]}, "row 1: text: expected a text, not int"),
        ({"labels": [[1.5]], "text": ["x"]}, "row 1: labels: expected a list of texts or whole numbers"),
        ({"labels": pa.array([], pa.string()), "text": pa.array([], pa.string())}, "there are no rows"),
    ):
        with pytest.raises(DataError) as caught:
            load(written(tmp_path, columns))
        assert message in str(caught.value)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"Parquet files need pyarrow: pip install 'dslide\[parquet\]'"):
        load(parquet)
