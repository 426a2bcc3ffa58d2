"""A stream of small batches: memory stays that of the network, and a batch costs what is in it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dslide.data import TextOptions, TextVectorizer

PROGRAM = """
import sys
import numpy as np
import scipy.sparse as sp
from dslide import SlideClassifier
from dslide.util.memory import rss_bytes

random, texts = np.random.default_rng(0), sys.argv[1] == "texts"
model = SlideClassifier(threads=1, hidden=(8,), epochs=1)

def batch(number, rows=32):
    labels = 50 + number // 20  # new ones come all the time
    y = random.integers(0, labels, rows)
    if texts:  # with new words, and names of labels
        words = random.integers(0, 300, (rows, 20))
        return [" ".join(f"w{i}" for i in row) + f" new{number // 40}" for row in words], [f"label {i}" for i in y]
    ones = np.ones(rows, np.float32)
    x = sp.random(rows, 1000 + number // 50, 0.02, "csr", np.float32, random)
    return x, sp.csr_matrix((ones, y, np.arange(rows + 1)), shape=(rows, labels))

if texts:
    model.fit(*batch(0, 500))
for number in range(500):
    model.partial_fit(*batch(number))
    if number == 100:
        before = rss_bytes()
print(rss_bytes() - before, len(model.classes_), model.n_features_in_)
"""


@pytest.mark.parametrize(("kind", "labels", "features"), [("rows", 70, 1009), ("texts", 70, 312)])
def test_memory_is_flat_over_very_many_batches(kind: str, labels: int, features: int) -> None:
    """400 batches of 5 KB each, while the network grows by a few labels and features: 50 KB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, check=True, timeout=200
    )
    growth, *sizes = map(int, done.stdout.split())
    assert growth < 1_200_000
    assert sizes[0] >= labels
    assert sizes[1] >= features


def test_words_that_come_batch_by_batch_are_those_that_come_at_once() -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in random.integers(0, 60, 8)) for _ in range(40)]
    options = TextOptions(min_df=1)
    whole, streamed = TextVectorizer(options), TextVectorizer(options)
    for vectorizer in (whole, streamed):
        vectorizer.fit_transform(texts[:10])
    before = streamed.words
    whole.grow(texts[10:])
    for begin in range(10, 40, 3):
        streamed.grow(texts[begin : begin + 3])
        number_of = {word: number for number, word in enumerate(streamed.words)}
        assert streamed.column_of() == number_of
    assert dict(zip(streamed.words, streamed.df, strict=True)) == dict(zip(whole.words, whole.df, strict=True))
    assert (streamed.rows, streamed.words[: len(before)]) == (40, before)
    assert len(before) < len(streamed.words)
