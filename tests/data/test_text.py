"""The text vectorizer against a slow reference."""

from __future__ import annotations

import json
import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslide.data import TextOptions, TextVectorizer
from dslide.data import text as text_module
from dslide.errors import ConfigError, DataError, UserError


def slow_words(text: str, options: TextOptions) -> list[str]:
    if options.lowercase:
        text = text.lower()
    words, word = [], ""
    for letter in text + " ":
        if re.match(r"\w", letter) and letter != "_":
            word += letter
        else:
            words += [word] if len(word) >= 2 else []
            word = ""
    stop = {word.lower() if options.lowercase else word for word in options.stop_words}
    words = [word for word in words if word not in stop]
    runs = [" ".join(words[i : i + n]) for n in range(1, options.ngrams + 1) for i in range(len(words) - n + 1)]
    marked = [f"<{word}>" for word in words]
    parts = [word[i:j] for word in marked for i in range(len(word)) for j in range(i + 3, len(word) + 1)]
    return runs + [f"~{part}" for part in parts if len(part) <= options.characters and part not in marked]


def slow_fit(texts: list[str], options: TextOptions) -> dict[str, int]:
    df = Counter(word for text in texts for word in set(slow_words(text, options)))
    kept = sorted((word for word in df if df[word] >= options.min_df), key=lambda word: (-df[word], word))
    return {word: df[word] for word in kept[: options.max_features or None]}


def slow_row(text: str, df: dict[str, int], rows: int, options: TextOptions) -> dict[int, float]:
    counts = Counter(word for word in slow_words(text, options) if word in df)
    column = {word: i for i, word in enumerate(df)}
    row = {
        column[word]: (1 + math.log(tf) if options.sublinear else tf) * (math.log(rows / df[word]) + 1)
        for word, tf in counts.items()
    }
    length = math.sqrt(sum(value**2 for value in row.values())) if options.normalize else 1
    return {i: row[i] / length for i in sorted(row)}


texts_strategy = st.lists(
    st.lists(
        st.sampled_from(["ab", "Ab", "a_b", "xyz", "12", "1", "é", "ÉÉ", "ж", "жж", "fish-Fish", "\t"]),
        max_size=12,
    ).map(" ".join),
    min_size=1,
    max_size=10,
)
options_strategy = st.builds(
    TextOptions,
    min_df=st.integers(1, 3),
    max_features=st.integers(0, 4),
    sublinear=st.booleans(),
    lowercase=st.booleans(),
    normalize=st.booleans(),
    ngrams=st.integers(1, 3),
    characters=st.sampled_from([0, 3, 4, 5]),
    stop_words=st.sampled_from([(), ("Ab",), ("fish", "zz")]),
)


@given(texts=texts_strategy, others=texts_strategy, options=options_strategy, block=st.integers(1, 5))
@settings(deadline=None)
def test_equals_the_reference(texts: list[str], others: list[str], options: TextOptions, block: int) -> None:
    vectorizer = TextVectorizer(options)
    df = slow_fit(texts, options)
    normal_block, text_module._BLOCK_ROWS = text_module._BLOCK_ROWS, block
    try:
        if not df:
            with pytest.raises(DataError, match=f"occurs in {options.min_df} rows"):
                vectorizer.fit_transform_rows(texts)
            return
        fitted = vectorizer.fit_transform_rows(texts)
        saved = TextVectorizer.from_dict(json.loads(json.dumps(vectorizer.to_dict())))
        assert saved == vectorizer
        results = [(texts, fitted), (texts, saved.transform_rows(texts)), (others, saved.transform_rows(others))]
    finally:
        text_module._BLOCK_ROWS = normal_block
    assert vectorizer.words == list(df)
    assert vectorizer.df.tolist() == list(df.values())
    for given_texts, rows in results:
        assert len(rows) == len(given_texts)
        assert rows.columns == len(df)
        for i, text in enumerate(given_texts):
            expected = slow_row(text, df, len(texts), options)
            row = rows.part(i, i + 1)
            assert row.indices.tolist() == list(expected)
            np.testing.assert_allclose(row.values, list(expected.values()), rtol=1e-6)


def test_values_by_hand() -> None:
    vectorizer = TextVectorizer()
    rows = vectorizer.fit_transform_rows(["cat cat dog", "cat dog", "cat", "bird"])
    assert vectorizer.words == ["cat", "dog"]
    cat, dog = (1 + math.log(2)) * (math.log(4 / 3) + 1), math.log(4 / 2) + 1
    np.testing.assert_allclose(rows.part(0, 1).values, np.array([cat, dog]) / math.hypot(cat, dog), rtol=1e-6)
    assert rows.empty_rows() == 1


def test_refusals() -> None:
    with pytest.raises(UserError, match="not learned"):
        TextVectorizer().transform(["a"])
    with pytest.raises(ConfigError, match="min_df: expected a whole number, at least 1, not 0"):
        TextOptions(min_df=0)
    with pytest.raises(ConfigError, match="lowercase: expected true or false, not 1"):
        TextOptions(lowercase=1)  # type: ignore[arg-type]
    vectorizer = TextVectorizer()
    vectorizer.fit_transform(["one two", "one two"])
    good = vectorizer.to_dict()
    for bad in (
        {},
        {**good, "df": [1]},
        {**good, "df": [0, 1]},
        {**good, "options": {"x": 1}},
        {**good, "rows": "x"},
    ):
        with pytest.raises(DataError, match="not a saved vectorizer"):
            TextVectorizer.from_dict(bad)
