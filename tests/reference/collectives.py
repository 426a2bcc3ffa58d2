"""Slow, obvious versions of what ranks make of each other's messages, with the signatures of the core."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ranking_table(offsets: np.ndarray, ranking: np.ndarray, want: int) -> bytes:
    table = np.zeros((len(offsets) - 1, want), np.uint32)
    for row in range(len(table)):
        found = ranking[offsets[row] : offsets[row + 1]]
        table[row, : len(found)] = found
    return table.tobytes()


def best_hits(
    offsets: np.ndarray, ids: np.ndarray, ranking: np.ndarray, tables: Sequence[bytes], want: int
) -> tuple[np.ndarray, np.ndarray]:
    rows = len(offsets) - 1
    of_ranks = [np.frombuffer(table, np.uint32).reshape(rows, want) for table in tables]
    kept = []
    for row in range(rows):
        best = sorted((value for table in of_ranks for value in table[row].tolist()), reverse=True)[:want]
        kept.append([ids[e] for e in range(offsets[row], offsets[row + 1]) if ranking[e] >= best[-1]])
    begin = np.cumsum([0, *map(len, kept)]).astype(np.int64)
    return begin, np.array([neuron for each in kept for neuron in each], np.int32)


def log_normaliser(messages: Sequence[bytes], result: np.ndarray) -> None:
    parts = np.array([np.frombuffer(message, np.float32).reshape(2, -1) for message in messages], np.float64)
    with np.errstate(divide="ignore"):
        result[:] = np.logaddexp.reduce(parts[:, 0] + np.log(parts[:, 1]), axis=0)
