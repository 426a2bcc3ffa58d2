"""Interactions as a table of names: read as lines of numbers are, from any of the usual kinds of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide.data import Dataset, detect_format, load
from dslide.errors import ConfigError, DataError


def read(path: Path, **options: object) -> Dataset:
    data = load(path, format="interactions", **options)  # type: ignore[arg-type]
    assert isinstance(data, Dataset)
    return data


def has(data: Dataset) -> dict[str, set[str]]:
    """The items of each user, by name."""
    assert data.users is not None
    assert data.user_names is not None
    assert data.label_names is not None
    names, y = data.label_names, data.y
    return {
        data.user_names[user]: {names[item] for item in y.indices[y.indptr[row] : y.indptr[row + 1]]}
        for row, user in enumerate(data.users)
    }


@given(pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=60))
@settings(deadline=None, max_examples=40)
def test_users_have_the_items_of_their_lines(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("table") / "ratings.csv"
    path.write_text("user,item,rating\n" + "".join(f"u{user},i {item},3.5\n" for user, item in pairs))
    data = read(path)
    expected: dict[str, set[str]] = {}
    for user, item in pairs:
        expected.setdefault(f"u{user}", set()).add(f"i {item}")
    assert has(data) == expected
    assert list(has(data)) == list(expected)  # in the order of the file
    assert data.feature_names == data.label_names
    counts = data.label_counts
    assert len(set(pairs)) < len(pairs) or (np.diff(counts) <= 0).all()  # frequent items first
    lengths = np.sqrt([(data.x.values[a:b] ** 2).sum() for a, b in zip(data.x.indptr, data.x.indptr[1:], strict=False)])
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "user_id:token\titem_id:token\ttimestamp:float\nanna\tbook, red\t1\nbert\tpen\t2\n",  # RecBole
        "userId;itemId\nanna;book, red\n\nbert;pen\n",
        'rating,item,user\n5,"book, red",anna\n4,pen,bert\n',
        'customer,product\r\nanna,"book, red"\r\nbert,pen\r\n',
        '\ufeffuser,item\nanna,"book,\nred"\nbert,pen\n',
    ],
)
def test_the_usual_kinds_of_tables(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ratings"
    path.write_text(text, newline="")
    assert has(read(path)) == {"anna": {"book, red"}, "bert": {"pen"}}


def test_columns_by_name(tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("day,product,customer\n1,pen,anna\n2,book,anna\n")
    assert has(read(path, user_column="customer", item_column="product")) == {"anna": {"pen", "book"}}
    with pytest.raises(
        ConfigError, match=r"user_column: .*sales.csv has no column 'buyer', only day, product, customer"
    ):
        read(path, user_column="buyer")
    path.write_text("day,item,day\n1,pen,anna\n")
    with pytest.raises(ConfigError, match=r"user_column: .*sales.csv has 2 columns 'day'; give a number, from 1"):
        read(path, user_column="day", item_column="item")
    path.write_text("day,product,customer\n1,pen,anna\n2,book,anna\n")
    with pytest.raises(ConfigError, match=r"users and items can't both be in column 'product'"):
        read(path, user_column="product")


def test_a_history_knows_users_and_items_by_name(tmp_path: Path) -> None:
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    before.write_text("user,item\nanna,pen\nbert,book\nbert,pen\n")
    after.write_text("user,item\nbert,lamp\ncarl,pen\nanna,book\n")
    history = read(before)
    for given_history in (history, before):
        data = read(after, history=given_history)
        assert has(data) == {"bert": {"lamp"}, "carl": {"pen"}, "anna": {"book"}}
        assert data.unknown_labels == 1  # lamp
        assert np.diff(data.x.indptr).tolist() == [2, 0, 1]  # carl is new
        assert data.x.columns == history.labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,item\nanna\n", "line 2: expected 2 columns as in line 1, found 1"),
        ("user,item\nanna,pen\nbert,\n", "line 3: expected a user and an item, but one of them is empty"),
        ("user,item\n", ": there are no interactions after the header"),
        ('user,item\nanna,"pen\n', "line 2: can't be read as a table: unexpected end of data"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read(path)
    assert message in str(caught.value)


def test_options_of_tables_are_refused_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("0 1:1\n")
    with pytest.raises(ConfigError, match=r"user_column: has no use with libsvm data, only with interactions"):
        load(tmp_path / "rows.txt", format="libsvm", user_column="user")
    (tmp_path / "numbers.txt").write_text("0 1 2\n")
    (tmp_path / "table.csv").write_text("user,item\nanna,pen\n")
    with pytest.raises(DataError, match=r"expected a table of users and items if the history, .*table.csv, is one"):
        read(tmp_path / "numbers.txt", history=tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("1,31,2.5,1260759144\n2,31,3,7\n", {}),  # numbers, so no header
        ("1::31::5::978300760\n2::31::3::7\n", {}),  # as MovieLens-1M
        ("1\t31\t5\t881250949\n2\t31\t3\t7\n", {"separator": "tab"}),  # lines of numbers, but for the option
        ("1 31\n2 31\n", {"separator": "blank"}),
        ("x,31,1\nx,31,2\n", {"user_column": 3, "item_column": 2}),
    ],
)
def test_tables_without_a_header(tmp_path: Path, text: str, options: dict[str, object]) -> None:
    path = tmp_path / "ratings"
    path.write_text(text)
    assert has(read(path, **options)) == {"1": {"31"}, "2": {"31"}}


def test_a_first_line_of_names_is_a_header_unless_they_occur_again(tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("anna,pen\nbert,pen\n")
    with pytest.raises(DataError, match=r"line 1: 'pen' is in other lines too: say with header whether"):
        read(path)
    assert has(read(path, header=False)) == {"anna": {"pen"}, "bert": {"pen"}}
    assert has(read(path, header=True)) == {"bert": {"pen"}}


def test_interactions_are_detected_by_their_header(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for text in ("userId,movieId,rating,timestamp\n1,2,3,4\n", "user_id:token\titem_id:token\n1\t2\n"):
        path.write_text(text)
        assert detect_format(path) == "interactions"


def test_weights_are_those_of_labels_and_summed(tmp_path: Path) -> None:
    path = tmp_path / "plays.csv"
    path.write_text("user,item,plays\nanna,pen,2\nanna,pen,3\nanna,book,1\nbert,book,0\ncarl,lamp,4\n")
    data = read(path, weight_column="plays")
    assert data.label_names is not None
    found = {data.label_names[i]: v for i, v in zip(data.y.indices.tolist(), data.y.values.tolist(), strict=True)}
    assert found == {"pen": 5, "book": 1, "lamp": 4}
    assert set(has(data)) == {"anna", "carl"}  # 0: no interaction
    for bad in ("-1", "nan", "much"):
        path.write_text(f"user,item,plays\nanna,pen,{bad}\n")
        with pytest.raises(DataError, match=f"line 2: expected a weight, a number from 0 on, not '{bad}'"):
            read(path, weight_column="plays")


def test_splits_by_time(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    lines = ["anna,a,5", "anna,b,9", "anna,c,9", "bert,a,1", "bert,b,2", "carl,c,7", "anna,a,10"]
    path.write_text("user,item,day\n" + "\n".join(lines) + "\n")
    train, test = read(path, time_column="day").split(0, 0, "last")
    assert has(test) == {"anna": {"a"}, "bert": {"b"}}  # carl has only one; a was met again last
    assert has(train) == {"anna": {"b", "c"}, "bert": {"a"}, "carl": {"c"}}
    assert test.seen is not None
    assert np.diff(test.seen.indptr).tolist() == [2, 1]
    train, test = read(path, time_column="day").split(0.4, 0, "time")  # of six pairs
    assert has(test) == {"anna": {"a", "c"}}  # of equal times, the later line is newer
    assert has(train) == {"anna": {"b"}, "bert": {"a", "b"}, "carl": {"c"}}
    path.write_text("user,item,when\nanna,a,2024-05-31\nanna,b,2024-05-30T23:59:59Z\nanna,c,2024-05-31 01:00\n")
    assert has(read(path, time_column="when").split(0, 0, "last")[1]) == {"anna": {"c"}}
    with pytest.raises(DataError, match="split = last needs interactions with times, in the column that time_column"):
        read(path).split(0, 0, "last")
    path.write_text("user,item,when\nanna,a,May\n")
    with pytest.raises(DataError, match="line 2: expected a number or a date like 2024-05-31, not 'May'"):
        read(path, time_column="when")
