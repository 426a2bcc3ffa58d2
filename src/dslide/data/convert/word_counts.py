"""Counts of very many words, most of which are rare: what does not fit into memory waits on disk, sorted."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

MOST_WORDS = 1 << 19  # in memory
BYTES_PER_WORD = 200  # of memory, in a Counter, and as much again while it is sorted
MOST_FILES = 64  # merged at a time


class WordCounts:
    """Exact sums of counts, of which at most `most` are in memory at a time; others are in files of `folder`."""

    def __init__(self, folder: Path, most: int = MOST_WORDS) -> None:
        self._folder, self._most = folder, most
        self._counts: Counter[str] = Counter()
        self._files: list[Path] = []
        self._written = 0

    def add(self, counts: Mapping[str, int]) -> None:
        """Adds to the counts of words."""
        self._counts.update(counts)
        if len(self._counts) > self._most:
            self._write(sorted(self._counts.items()))
            self._counts = Counter()
            if len(self._files) == MOST_FILES:
                merged, self._files = self._files, []
                self._write(_summed(map(_read, merged)))
                for file in merged:
                    file.unlink()

    def sums(self) -> Iterator[tuple[str, int]]:
        """Every word with its count, each once."""
        if not self._files:
            return iter(self._counts.items())
        return _summed([*map(_read, self._files), iter(sorted(self._counts.items()))])

    def _write(self, counts: Iterable[tuple[str, int]]) -> None:
        path = self._folder / f"words-{self._written}"
        self._written += 1
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{count}\t{word}\n" for word, count in counts)
        self._files.append(path)


def _read(path: Path) -> Iterator[tuple[str, int]]:
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            count, _, word = line[:-1].partition("\t")
            yield word, int(count)


def _summed(streams: Iterable[Iterator[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    """The sums of sorted streams, sorted."""
    for word, group in groupby(heapq.merge(*streams), itemgetter(0)):
        yield word, sum(count for _, count in group)
