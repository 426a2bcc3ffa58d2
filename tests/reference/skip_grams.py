"""Reference of skip-gram rows: a walk from word to word."""

from __future__ import annotations

from collections import Counter
from math import sqrt

import numpy as np

Row = tuple[int, dict[int, int]]  # a word, and the counts of the words around it


def parse(text: str, min_count: int) -> tuple[list[str], list[list[int]]]:
    """Words by falling frequency, then by name, and the sentences of words that are frequent enough."""
    counts = Counter(text.split())
    names = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
    sentences = [[names.index(word) for word in line.split() if word in names] for line in text.split("\n")]
    return names, [sentence for sentence in sentences if sentence]


def epoch(sentences: list[list[int]], window: int, subsample: float, number: int, seed: int) -> list[Row]:
    """The rows of an epoch; random numbers are drawn in the order of the stream."""
    counts = Counter(word for sentence in sentences for word in sentence)
    total = sum(counts.values())
    random = np.random.default_rng([seed, number, 1])
    kept = sentences
    if subsample > 0:
        draws = iter(random.random(total, np.float32).tolist())
        chance = {word: np.float32(min(1.0, sqrt(subsample / (counts[word] / total)))) for word in counts}
        kept = [[word for word in sentence if next(draws) < chance[word]] for sentence in sentences]
    reach = iter(random.integers(1, window, sum(map(len, kept)), np.uint8, endpoint=True).tolist())
    return [row for sentence in kept if sentence for row in windows(sentence, [next(reach) for _ in sentence])]


def windows(sentence: list[int], reach: list[int]) -> list[Row]:
    """A row for each word of a sentence."""
    rows = []
    for at, word in enumerate(sentence):
        around = Counter()
        for place in range(at - reach[at], at + reach[at] + 1):
            if place != at and 0 <= place < len(sentence):
                around[sentence[place]] += 1
        rows.append((word, dict(around)))
    return rows
