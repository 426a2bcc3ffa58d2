"""Streams of words: reading them, and their skip-gram rows against a reference."""

from __future__ import annotations

import dataclasses
import gzip
import lzma
import re
from unittest import mock

import numpy as np
import pytest
import reference.skip_grams as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide.data import TokenOptions, convert, load, load_tokens, tokens
from dslide.errors import ConfigError, DataError

EVERYTHING = TokenOptions(min_count=1, subsample=0)
LINES = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=12), min_size=1, max_size=8)


def stream(folder, text, options=EVERYTHING, names=None, block_bytes=1 << 20):
    path = folder / "text.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with mock.patch("dslide.data.formats.tokens.READ_BYTES", block_bytes):
        return load_tokens(path, options, names)


def sentences(data):
    return [part.tolist() for part in np.split(data.words, data.offsets[1:-1])]


def as_rows(x, y):
    """Features and labels as the reference has them."""
    assert np.diff(x.indptr).tolist() == [1] * len(x)
    assert (x.values == 1).all()
    cuts = zip(y.indptr[:-1], y.indptr[1:], strict=True)
    labels = [dict(zip(y.indices[a:b].tolist(), y.values[a:b].tolist(), strict=True)) for a, b in cuts]
    for a, b in zip(y.indptr[:-1], y.indptr[1:], strict=True):
        assert (np.diff(y.indices[a:b]) > 0).all()  # as SparseRows promises
    return list(zip(x.indices.tolist(), labels, strict=True))


# ---- reading --------------------------------------------------------------------------------------------------------


def test_words_are_numbered_by_falling_frequency_and_rare_ones_left_out(tmp_path):
    data = stream(tmp_path, "b a c a\n\n  rare b\ta \r\nb\n", TokenOptions(min_count=2))
    assert list(data.names) == ["a", "b"]
    assert sentences(data) == [[1, 0, 0], [1, 0], [1]]
    assert data.left_out == 2
    assert data.label_counts.tolist() == [3, 3]
    assert (data.features, data.labels, len(data)) == (2, 2, 6)
    assert data.in_words() == "6 words in 3 lines, 2 different ones; 2 more that are rare or unknown were left out"


@settings(deadline=None, max_examples=60)
@given(
    text=st.text(st.sampled_from("abé \t\n\r\v\f"), min_size=1, max_size=60),
    min_count=st.integers(1, 3),
    block=st.integers(1, 70),
)
def test_any_text_in_blocks_of_any_size(tmp_path_factory, text, min_count, block):
    names, expected = reference.parse(text, min_count)
    make = lambda: stream(tmp_path_factory.mktemp("t"), text, TokenOptions(min_count=min_count), block_bytes=block)  # noqa: E731
    if not names:
        with pytest.raises(DataError, match=f"no word of it occurs {min_count} times or more"):
            make()
        return
    data = make()
    assert list(data.names) == names
    assert sentences(data) == expected


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress])
def test_a_line_far_longer_than_a_block_is_one_sentence(tmp_path, compress):
    words = [f"w{i * i % 97}" for i in range(30_000)]
    data = stream(tmp_path, compress(" ".join(words).encode()), block_bytes=1000)
    assert data.offsets.tolist() == [0, 30_000]
    assert [data.names[i] for i in data.words] == words
    assert data.words.dtype == np.int32


def test_with_names_given_others_are_dropped(tmp_path):
    data = stream(tmp_path, "new a b new a\nnew\n", TokenOptions(min_count=2), names=["b", "a", "c"])
    assert list(data.names) == ["b", "a", "c"]
    assert sentences(data) == [[1, 0, 1]]
    assert data.left_out == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the file is empty"),
        (b" \n \n", "no word of it occurs 2 times or more"),
        (b"a b c", "no word of it occurs 2 times or more"),
        (
            b"fine\nfine \xff fine",
            "line 2: not UTF-8 text, found 0xff; if it is CP1252, iconv -f CP1252 -t UTF-8 converts",
        ),
        ("fine\nfine".encode("utf-16"), "line 1: not UTF-8 text, found 0xff; if it is UTF-16, iconv -f UTF-16 -t"),
        ("fine é".encode("utf-16-be"), "line 1: not UTF-8 text, found 0xe9; if it is UTF-16BE, iconv -f UTF-16BE"),
        (b"\x1f\x8bnot gzip", "the compressed data is damaged"),
    ],
)
def test_messages_for_bad_files(tmp_path, text, message):
    with pytest.raises(DataError, match=re.escape(message)) as error:
        stream(tmp_path, text, TokenOptions())
    assert str(error.value).startswith(str(tmp_path / "text.txt"))
    assert "\n" not in str(error.value)


def test_no_word_known_to_the_model(tmp_path):
    with pytest.raises(DataError, match="no word of it is known to the model"):
        stream(tmp_path, "a a a", names=["b"])


def test_an_endless_word_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dslide.data.files.MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(DataError, match="line 2: the word is longer than 1 MB"):
        stream(tmp_path, b"a\n" + b"x" * (3 << 20), block_bytes=1 << 18)


def test_a_stream_is_neither_loaded_nor_converted(tmp_path):
    (tmp_path / "t").write_text("a b")
    for call in (lambda: load(tmp_path / "t", format="tokens"), lambda: convert(tmp_path / "t", tmp_path / "c",
                                                                                format="tokens")):  # fmt: skip
        with pytest.raises(ConfigError, match="load_tokens"):
            call()


@pytest.mark.parametrize(
    ("name", "value"), [("window", 0), ("window", 256), ("window", 2.5), ("min_count", 0), ("subsample", -1e-9),
                        ("subsample", float("nan")), ("subsample", 2)]
)  # fmt: skip
def test_options_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: expected"):
        TokenOptions(**{name: value})


# ---- rows -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(lines=LINES, window=st.integers(1, 6), subsample=st.sampled_from([0, 0.01, 0.1, 1]), number=st.integers(0, 3),
       seed=st.integers(0, 2**63 - 1), chunk=st.integers(1, 50), data=st.data())  # fmt: skip
def test_epochs_equal_the_reference(tmp_path_factory, lines, window, subsample, number, seed, chunk, data):
    text = "\n".join(map(" ".join, lines))
    _, kept = reference.parse(text, 1)
    if not kept:
        return
    options = TokenOptions(window=window, min_count=1, subsample=subsample)
    made = stream(tmp_path_factory.mktemp("t"), text, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "PIECE_WORDS", chunk)
        rows = made.epoch(number, seed)
    expected = reference.epoch(kept, window, subsample, number, seed)
    assert len(rows) == len(expected)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if expected else []
    assert as_rows(*rows.batch(np.array(chosen, np.int32))) == [expected[i] for i in chosen]
    assert rows.with_labels().tolist() == [i for i, (_, around) in enumerate(expected) if around]


@settings(deadline=None, max_examples=40)
@given(lines=LINES, window=st.integers(1, 6))
def test_rows_for_testing_have_full_windows_and_all_words(tmp_path_factory, lines, window):
    text = "\n".join(map(" ".join, lines))
    _, kept = reference.parse(text, 1)
    if not kept:
        return
    data = stream(tmp_path_factory.mktemp("t"), text, TokenOptions(window=window, min_count=1, subsample=1e-9))
    expected = [row for sentence in kept for row in reference.windows(sentence, [window] * len(sentence))]
    middle = len(data) // 2
    assert as_rows(*data.rows(0, middle)) + as_rows(*data.rows(middle, len(data))) == expected


def test_epochs_differ_and_are_reproducible(tmp_path):
    text = " ".join(np.random.default_rng(0).choice(list("abcde"), 2000))
    data = stream(tmp_path, text, TokenOptions(subsample=0.05))
    first, again, second, other = data.epoch(0, 7), data.epoch(0, 7), data.epoch(1, 7), data.epoch(0, 8)
    assert first.words.tolist() == again.words.tolist()
    assert first.reach.tolist() == again.reach.tolist()
    assert first.words.tolist() != second.words.tolist()
    assert first.words.tolist() != other.words.tolist()
    reach = np.bincount(first.reach, minlength=6)
    assert reach[0] == 0
    assert reach[1:].min() > 0.1 * len(first)  # uniform in 1 to 5
    # a share of a fifth each: kept with probability sqrt(0.05 / 0.2) = 1/2
    assert len(first) == pytest.approx(1000, rel=0.1)
    assert data.rows_per_epoch == pytest.approx(1000, rel=0.01)


def test_frequencies_are_those_of_an_epochs_labels(tmp_path):
    random = np.random.default_rng(0)
    data = stream(tmp_path, " ".join(random.choice(list("abcdef"), 4000, p=[0.5, 0.2, 0.1, 0.1, 0.06, 0.04])),
                  TokenOptions(subsample=0.02, window=3))  # fmt: skip
    rows = data.epoch(0, 0)
    _, y = rows.batch(np.arange(len(rows)))
    shares = np.bincount(y.indices, minlength=6) / len(rows)
    np.testing.assert_allclose(data.label_frequencies(), shares, rtol=0.12)
    assert data.values_per_row == (1, pytest.approx(y.values.sum() / len(rows), rel=0.05))


def test_data_bytes_are_those_of_the_arrays(tmp_path):
    data = stream(tmp_path, "a b c d e\n" * 2000, TokenOptions(subsample=0.05))
    rows = data.epoch(0, 0)
    arrays = [data.words, data.offsets, rows.words, rows.offsets, rows.reach, rows.with_labels(), rows.with_labels()]
    assert data.data_bytes == pytest.approx(sum(array.nbytes for array in arrays) + 500, rel=0.1)


def test_the_checksum_depends_on_stream_words_and_options(tmp_path):
    data = stream(tmp_path, "a b c\na b")
    assert stream(tmp_path, "a  b c \n\na b").checksum == data.checksum
    others = [stream(tmp_path, "a b c a b"), stream(tmp_path, "a b d\na b"), stream(tmp_path, "b a c\na b"),
              dataclasses.replace(data, options=TokenOptions(window=3))]  # fmt: skip
    assert len({data.checksum, *(other.checksum for other in others)}) == 5


# ---- splitting ------------------------------------------------------------------------------------------------------


def test_a_split_numbers_words_by_the_first_part_alone(tmp_path):
    text = "b b a c\nb a\n" + "a c c d d d"
    train, held_out = stream(tmp_path, text, TokenOptions(min_count=2)).split(0.5)
    assert list(train.names) == list(held_out.names) == ["b", "a"]  # c and d are not frequent enough in the first half
    assert sentences(train) == [[0, 0, 1], [0, 1]]
    assert sentences(held_out) == [[1]]
    assert (train.left_out, held_out.left_out) == (1, 5)


def test_a_split_cuts_a_long_line(tmp_path):
    words = np.random.default_rng(0).choice(list("abc"), 1000)
    data = stream(tmp_path, " ".join(words))
    train, held_out = data.split(0.1, seed=3)
    assert [len(train), len(held_out)] == [900, 100]
    assert [train.names[i] for i in train.words] + [train.names[i] for i in held_out.words] == words.tolist()
    assert held_out.offsets.tolist() == [0, 100]


def test_splits_that_leave_nothing_are_refused(tmp_path):
    data = stream(tmp_path, "a a b b")
    with pytest.raises(ConfigError, match="share: expected a number above 0 and below 1, not 1"):
        data.split(1)
    with pytest.raises(DataError, match="no words are left in the part held out, 2 of 4"):
        data.split(0.5)
    with pytest.raises(DataError, match="no words are left in the part to train on, 0 of 4"):
        data.split(0.99)
