"""Rows of words with one label each, made here: every label has words of its own, and labels are as unequally frequent
as in real catalogues. Labels are numbered by frequency, as adaptive softmax needs them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OWN_WORDS, SHOWN, NOISE = 12, 6, 6  # words of a label, those of them in a row, and words of any kind in a row
ROW = SHOWN + NOISE
ZIPF = 0.8  # the chance of label number i is proportional to (i + 10) ** -ZIPF


@dataclass(frozen=True)
class Words:
    """Rows: words (rows, ROW) and labels (rows)."""

    words: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


def make_words(vocabulary: int, labels: int, rows: int, seed: int) -> Words:
    """Rows of so many; the same words belong to a label whatever the seed."""
    random = np.random.default_rng([seed, 1])
    own = np.random.default_rng(0).integers(0, vocabulary, (labels, OWN_WORDS))
    chance = (np.arange(labels) + 10.0) ** -ZIPF
    chosen = random.choice(labels, rows, p=chance / chance.sum())
    which = random.permuted(np.tile(np.arange(OWN_WORDS), (rows, 1)), axis=1)[:, :SHOWN]
    words = np.concatenate([own[chosen[:, None], which], random.integers(0, vocabulary, (rows, NOISE))], axis=1)
    return Words(words, chosen.astype(np.int64))
