"""Interactions: lines of a user and items, and held-out items joined with their history."""

from __future__ import annotations

import lzma
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from dslide.data import Dataset, convert, detect_format, for_items, load
from dslide.data.formats.interactions import read_interactions
from dslide.errors import ConfigError, DataError

LINES = "7 2 0 4\n3\n0 4 4 1 4\n"


def read(folder: Path, text: str, name: str = "file", **options) -> Dataset:
    (folder / name).write_bytes(text.encode())
    return load(folder / name, format="interactions", **options)


def lists(rows) -> list[list[int]]:
    return [part.tolist() for part in np.split(rows.indices, rows.indptr[1:-1])]


def test_features_and_labels_are_the_items(tmp_path: Path) -> None:
    data = read(tmp_path, LINES)
    assert data.users.tolist() == [7, 3, 0]
    assert lists(data.x) == lists(data.y) == [[0, 2, 4], [], [1, 4]]  # duplicates count once
    assert (data.features, data.labels, data.unknown_labels) == (5, 5, 0)
    # Item 4 occurs twice and counts 1 / sqrt(3), the others 1 / sqrt(2); rows have length 1.
    np.testing.assert_allclose(data.x.values**2, [3 / 8, 3 / 8, 2 / 8, 3 / 5, 2 / 5], rtol=1e-6)
    assert data.y.values.tolist() == [1] * 5
    assert data.seen is data.x


def test_sizes_may_be_given(tmp_path: Path) -> None:
    for sizes in ({"features": 9}, {"labels": 9}, {"features": 9, "labels": 9}):
        data = read(tmp_path, LINES, **sizes)
        assert (data.features, data.labels) == (9, 9)
    with pytest.raises(ConfigError, match="labels: interactions have as many labels as features, not 8 and 9"):
        read(tmp_path, LINES, features=9, labels=8)


@given(
    st.lists(st.lists(st.integers(0, 50), max_size=6), min_size=1, max_size=12),
    st.sampled_from([" ", "  ", "\t"]),
    st.sampled_from(["\n", " \n", "\r\n"]),
    st.integers(0, 3),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_reading_is_splitting_lines(tmp_path_factory, rows, blank, end, blank_lines, block_bytes, random) -> None:
    users = random.sample(range(2**31 - 1), len(rows))
    lines = [blank.join(map(str, [user, *items])) + end for user, items in zip(users, rows, strict=True)]
    path = tmp_path_factory.mktemp("read") / "file.xz"
    path.write_bytes(lzma.compress(("".join(lines) + "\n" * blank_lines).encode(), preset=0))
    with mock.patch("dslide.data.files.BLOCK_BYTES", block_bytes):
        data = read_interactions(path, threads=1)
    assert data.users.tolist() == users
    assert lists(data.y) == [sorted(set(items)) for items in rows]
    assert data.labels == max((item for items in rows for item in items), default=-1) + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n3 x4 5\n", "line 2: 'x4' is not a user or an item, expected a whole number, 0 to 2147483646"),
        ("1 2\n3 -4\n", "line 2: '-4' is not a user or an item, expected a whole number, 0 to 2147483646"),
        ("1 2:0.5\n", "line 1: '2:0.5' is not a user or an item, expected a whole number, 0 to 2147483646"),
        ("1 2 # no\n", "line 1: '#' is not a user or an item, expected a whole number, 0 to 2147483646"),
        ("1 2\v\n", r"line 1: '2\x0b' is not a user or an item, expected a whole number, 0 to 2147483646"),
        ("1 2\r3\n", r"line 1: '2\r3' is not an item, expected a whole number, 0 to 2147483646"),
        ("1 2\n3 2147483647\n", "line 2: '2147483647' is not an item, expected a whole number, 0 to 2147483646"),
        ("2147483647 1\n", "line 1: '2147483647' is not a user, expected a whole number, 0 to 2147483646"),
        ("1 2\n\n3 4\n", "line 2: expected a user at its beginning, followed by items"),
        ("1 2\n 3 4\n", "line 2: expected a user at its beginning, followed by items"),
        (
            "5 1\n6 1\n7 1\n6 2\n5 2\n",
            "line 4: user 6 has a line already, line 2; expected one for each, "
            "or a table, which it is if a separator is given",
        ),
    ],
)
def test_errors_name_line_and_word(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    assert str(caught.value) == f"{tmp_path / 'file'}, {message}"


def test_other_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="file: there are no rows"):
        read(tmp_path, "\n \n")
    with pytest.raises(DataError, match="line 1: '4' is not an item, expected a whole number, 0 to 3"):
        read(tmp_path, LINES, features=4)
    with pytest.raises(ConfigError, match="base: interactions data always counts from 0"):
        read(tmp_path, LINES, base=1)
    with pytest.raises(
        DataError, match="file: interactions can't be written as a dataset folder, read their text instead"
    ):
        convert(tmp_path / "file", tmp_path / "folder", format="interactions")
    with pytest.raises(ConfigError, match="history: only interactions have one, not libsvm data"):
        load(tmp_path / "file", format="libsvm", history=tmp_path / "file")
    with pytest.raises(DataError, match="expected interactions as history"):
        read(tmp_path, LINES, history=load(tmp_path / "file", format="libsvm"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_interactions_are_never_detected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(LINES)
    assert detect_format(tmp_path / "file") == "libsvm"


def test_held_out_items_come_with_the_users_history(tmp_path: Path) -> None:
    history = read(tmp_path, LINES, "history")
    # user 0 on another line, user 5 unknown, user 3 without items; item 6 is not in the history
    text = "0 2 6\n5 1\n3 0\n7 4 1\n"
    for given_as in (history, tmp_path / "history", str(tmp_path / "history")):
        data = read(tmp_path, text, history=given_as)
        assert data.users.tolist() == [0, 5, 3, 7]
        assert lists(data.x) == lists(data.seen) == [[1, 4], [], [], [0, 2, 4]]
        # counted in the history: held-out items change no weight
        np.testing.assert_allclose(data.x.values**2, [3 / 5, 2 / 5, 3 / 8, 3 / 8, 2 / 8], rtol=1e-6)
        assert lists(data.y) == [[2, 6], [1], [0], [1, 4]]
        assert (data.features, data.labels, data.unknown_labels) == (5, 7, 2)
    assert read(tmp_path, "0 1\n", history=history).labels == 5
    assert read(tmp_path, text, history=tmp_path / "history", labels=8).unknown_labels == 0
    with pytest.raises(DataError, match="has 5 labels, but 8 are expected"):
        read(tmp_path, text, history=history, labels=8)


@given(
    st.dictionaries(st.integers(0, 20), st.sets(st.integers(0, 9)), min_size=1),
    st.dictionaries(st.integers(0, 20), st.sets(st.integers(0, 12)), min_size=1),
)
def test_the_join_is_by_user(tmp_path_factory, history: dict[int, set[int]], held_out: dict[int, set[int]]) -> None:
    folder = tmp_path_factory.mktemp("join")
    texts = ["".join(" ".join(map(str, [u, *items])) + "\n" for u, items in d.items()) for d in (history, held_out)]
    data = read(folder, texts[1], history=read(folder, texts[0], "history"))
    assert data.users.tolist() == list(held_out)
    assert lists(data.x) == [sorted(history.get(user, ())) for user in held_out]
    assert lists(data.y) == [sorted(items) for items in held_out.values()]


def test_items_unknown_to_a_network_are_no_features(tmp_path: Path) -> None:
    data = for_items(read(tmp_path, LINES), 3, None)
    assert lists(data.x) == [[0, 2], [], [1]]
    np.testing.assert_allclose(data.x.values, [2**-0.5] * 2 + [1])
    assert lists(data.y) == [[0, 2, 4], [], [1, 4]]
    assert (data.features, data.labels, data.unknown_labels) == (3, 5, 2)
    more = for_items(read(tmp_path, LINES), 8, np.array([1, 1, 1, 0, 2, 0, 0, 0]))
    assert (more.features, more.labels, more.unknown_labels) == (8, 8, 0)
    assert more.checksum == read(tmp_path, LINES, features=8).checksum


def test_item_weights_follow_the_counts_in_training(tmp_path: Path) -> None:
    data = for_items(read(tmp_path, LINES), 5, np.array([0, 7, 8, 0, 0]))
    assert lists(data.x) == [[0, 2, 4], [], [1, 4]]  # weights, squared: 1, 1 / 9, 1 and 1 / 8, 1
    np.testing.assert_allclose(data.x.values**2, [9 / 19, 1 / 19, 9 / 19, 1 / 9, 8 / 9], rtol=1e-6)


@given(st.lists(st.sets(st.integers(0, 9), min_size=2), min_size=5, max_size=12), st.integers(0, 99))
def test_held_out_items_are_labels_and_kept_ones_features(tmp_path_factory, rows: list[set[int]], seed: int) -> None:
    folder = tmp_path_factory.mktemp("split")
    whole = read(folder, "".join(" ".join(map(str, [u, *items])) + "\n" for u, items in enumerate(rows)))
    try:
        train, test = whole.split(0.3, seed)
    except DataError:
        reject()  # all items on one side
    assert train.users.tolist() == list(range(len(rows)))
    kept = "".join(" ".join(map(str, [u, *items])) + "\n" for u, items in enumerate(lists(train.y)))
    alone = read(folder, kept, features=whole.features)  # held-out items change no weight
    for part in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(train.x, part), getattr(alone.x, part))
    held_out = dict(zip(test.users.tolist(), lists(test.y), strict=True))
    for user, (items, kept_items) in enumerate(zip(rows, lists(train.y), strict=True)):
        assert sorted(items) == sorted([*kept_items, *held_out.get(user, [])])  # none on both sides
    assert test.seen is test.x
    features = train.x.take(test.users)
    for part in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(test.x, part), getattr(features, part))
