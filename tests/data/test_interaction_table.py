"""Interactions as a table of names: read as lines of numbers are, from any of the usual kinds of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide.data import Dataset, load
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
        ("user,item\nanna\n", "line 2: expected 2 columns as in the header, found 1"),
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
    (tmp_path / "numbers.txt").write_text("0 1 2\n")
    with pytest.raises(ConfigError, match=r"item_column: .*numbers.txt has no header that names columns"):
        read(tmp_path / "numbers.txt", item_column="item")
    (tmp_path / "rows.txt").write_text("0 1:1\n")
    with pytest.raises(ConfigError, match=r"user_column: only interactions have users and items, not libsvm data"):
        load(tmp_path / "rows.txt", user_column="user")
    (tmp_path / "table.csv").write_text("user,item\nanna,pen\n")
    with pytest.raises(DataError, match=r"expected a table with a header if the history, .*table.csv, is one"):
        read(tmp_path / "numbers.txt", history=tmp_path / "table.csv")
