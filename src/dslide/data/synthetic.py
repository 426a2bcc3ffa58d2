"""Synthetic datasets of any size with planted labels that a network can learn.

Every label has a signature of a few words. A row has labels from a Zipf-Mandelbrot distribution; most of its words
are from their signatures, the rest are background words from a Zipf distribution. Label 0 is the most frequent one.
Signatures are functions of (seed, label): the only array of the size of the label set is its distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dslide.data.rows import MAX_COLUMNS
from dslide.errors import ConfigError
from dslide.util.atomic import new_folder
from dslide.util.csr import scale_rows

_SIGNATURE_SHARE = 0.7  # of a row's words
_PRESENT = 0.8  # probability that a word of a signature is in a row with its label
_FLATTEN = 20.0  # q in p(rank) ~ 1 / (rank + q): even label 0 is only in a few percent of the rows
_BLOCK_ROWS = 8192
_TRAIN, _TEST = 0, 1  # random streams


def synthesize(
    folder: str | Path, rows: int, features: int, labels: int, test_rows: int, seed: int,
    labels_per_row: float = 5, words_per_row: float = 75,
) -> None:  # fmt: skip
    """Writes random rows with planted labels, which can be learned: train.txt and test.txt (xmc text), labels.txt and
    features.txt (names).

    Parameters
    ----------
    folder : path
        Folder to make.
    rows, features, labels, test_rows : int
        Sizes of the data.
    seed : int
        The same seed gives the same data.
    labels_per_row, words_per_row : float
        Means, reached if there are many more labels and features.
    """
    for name, value, low in (
        ("rows", rows, 1), ("features", features, 1), ("labels", labels, 1), ("test_rows", test_rows, 0),
        ("seed", seed, 0), ("labels_per_row", labels_per_row, 1), ("words_per_row", words_per_row, 1),
    ):  # fmt: skip
        if not low <= value <= MAX_COLUMNS:
            raise ConfigError(f"{name}: expected a number, {low} to {MAX_COLUMNS}, not {value}")
    source = _Source(features, labels, seed, labels_per_row, words_per_row)
    with new_folder(folder) as partial:
        (partial / "labels.txt").write_bytes(_names(labels, capital=True))
        (partial / "features.txt").write_bytes(_names(features, capital=False))
        for name, part, count in (("train.txt", _TRAIN, rows), ("test.txt", _TEST, test_rows)):
            if count:
                with open(partial / name, "w", encoding="ascii", newline="\n") as file:
                    file.write(f"{count} {features} {labels}\n")
                    file.writelines(source.lines(part, count))


class _Source:
    def __init__(self, features: int, labels: int, seed: int, labels_per_row: float, words_per_row: float) -> None:
        self.features, self.seed, self.labels_per_row = features, seed, labels_per_row
        planted = _SIGNATURE_SHARE * words_per_row / labels_per_row  # words a label puts into a row
        self.signature = max(2, math.ceil(planted / _PRESENT))
        self.background = (1 - _SIGNATURE_SHARE) * words_per_row
        self.label_law = _cumulative(1 / (np.arange(labels) + _FLATTEN))
        word_law = 1 / (np.arange(features) + 3.0)
        word_law /= word_law.sum()
        self.word_law = _cumulative(word_law)
        # the expected number of occurrences of a word in a row, from which its idf follows
        expected = self.background * word_law + labels_per_row * self.signature * _PRESENT / features
        self.idf = 1 - np.log(-np.expm1(-expected))

    def lines(self, part: int, rows: int) -> Iterator[str]:
        for block, begin in enumerate(range(0, rows, _BLOCK_ROWS)):
            random = np.random.default_rng([self.seed, part, block])
            yield from self._block(random, min(_BLOCK_ROWS, rows - begin))

    def _block(self, random: np.random.Generator, rows: int) -> Iterator[str]:
        label_rows = np.repeat(np.arange(rows), 1 + random.poisson(self.labels_per_row - 1, rows))
        labels = np.searchsorted(self.label_law, random.random(len(label_rows)))
        y = _summed(label_rows, labels, np.ones(len(labels)), (rows, len(self.label_law)))
        word_rows = np.repeat(np.arange(rows), np.diff(y.indptr) * self.signature)
        words = self._signature_words(y.indices).ravel()
        present = random.random(len(words)) < _PRESENT
        word_rows, words = word_rows[present], words[present]
        counts = 1.0 + random.poisson(1.0, len(words))
        other_rows = np.repeat(np.arange(rows), random.poisson(self.background, rows))
        other_words = np.searchsorted(self.word_law, random.random(len(other_rows)))
        x = _summed(
            np.concatenate([word_rows, other_rows]),
            np.concatenate([words, other_words]),
            np.concatenate([counts, np.ones(len(other_rows))]),
            (rows, self.features),
        )
        values = (1 + np.log(x.data)) * self.idf[x.indices]
        scale_rows(x.indptr, values)

        value_texts = [f":{n / 10_000:.4f}" for n in range(10_001)]
        rounded = np.clip(np.rint(values * 10_000), 1, 10_000).astype(np.int64)
        word_texts = [f"{word}{value_texts[n]}" for word, n in zip(x.indices.tolist(), rounded.tolist(), strict=True)]
        label_texts = list(map(str, y.indices.tolist()))
        for of_labels, of_words in zip(pairwise(y.indptr.tolist()), pairwise(x.indptr.tolist()), strict=True):
            yield f"{','.join(label_texts[slice(*of_labels)])} {' '.join(word_texts[slice(*of_words)])}\n"

    def _signature_words(self, labels: NDArray[np.integer]) -> NDArray[np.int64]:
        """The words of each label: [labels, signature]."""
        key = labels.astype(np.uint64)[:, None] * np.uint64(self.signature) + np.arange(self.signature, dtype=np.uint64)
        random = _mix(_mix(key) ^ _mix(np.array([self.seed], np.uint64)))
        return np.asarray(random % np.uint64(self.features), np.int64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of splitmix64, as in the native core."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _cumulative(law: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cumulative distribution, for sampling by binary search; its end, 1, is above all random numbers."""
    total = np.cumsum(law)
    total /= total[-1]
    return total


def _summed(
    rows: NDArray[np.int64], columns: NDArray[np.int64], counts: NDArray[np.float64], shape: tuple[int, int]
) -> sp.csr_matrix:
    """A matrix with the counts of equal pairs summed; columns increase within a row."""
    matrix = sp.csr_matrix((counts, (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    return matrix


def _names(count: int, capital: bool) -> bytes:
    """Distinct pronounceable names, one per line: scrambled numbers with syllables as digits."""
    consonants, vowels = b"bdfghjklmnprstvz", b"aeiou"
    syllables = np.array([[c, v] for c in consonants for v in vowels], np.uint8)  # [80, 2]
    length = 3
    while len(syllables) ** length < count:
        length += 1
    space = len(syllables) ** length
    step = int(space * 0.381966) | 1  # odd and not a multiple of 5: coprime to 80
    step += 2 * (step % 5 == 0)
    numbers = np.arange(count, dtype=np.uint64) * np.uint64(step) % np.uint64(space)
    text = np.full((count, 2 * length + 1), ord("\n"), np.uint8)
    for digit in range(length):
        text[:, 2 * digit : 2 * digit + 2] = syllables[numbers % np.uint64(len(syllables))]
        numbers //= np.uint64(len(syllables))
    if capital:
        text[:, 0] -= ord("a") - ord("A")
    return text.tobytes()
