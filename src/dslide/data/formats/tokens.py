"""Text files, plain, gzip or xz, as streams of words."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dslide.data.files import BLANKS, decode, word_blocks
from dslide.data.rows import join
from dslide.data.text import count_pieces, rank_words
from dslide.data.tokens import TokenOptions, Tokens, without_empty
from dslide.errors import DataError
from dslide.util.arrays import Ids, Offsets

READ_BYTES = 1 << 20  # text split at a time: its words take ten times the memory
MAX_WORDS = 2**31 - 1  # positions in a stream are int32
NOTHING, LINE_END = 0, 1  # numbers that are no words, while a file is read

_ONE_BLANK = bytes.maketrans(b"".join(BLANKS).replace(b"\n", b""), b" " * (len(BLANKS) - 1))


def load_tokens(
    path: str | Path, options: TokenOptions | None = None, names: Sequence[str] | None = None, more: bool = False
) -> Tokens:
    """Reads a text file, plain, gzip or xz, as a stream of words, separated by blanks. Each line, of any length, is a
    sentence. Without `names` words are numbered by falling frequency, then by name, and rare ones are left out. With
    `names`, the words of a model, all others are left out, or with `more` numbered in the same way after these.

    Parameters
    ----------
    path : path
        File of text.
    options : TokenOptions
        Window, subsampling and the least number of occurrences.
    names : list of str
        The words of a model.
    more : bool
        Whether there may be words beside these.

    Returns
    -------
    Tokens

    Raises
    ------
    DataError
        The file can't be read, or no word is left.
    """
    options = options or TokenOptions()
    number_of: defaultdict[bytes, int] = defaultdict()
    number_of.default_factory = number_of.__len__  # a new word gets the next number
    number_of[b""], number_of[b"\n"] = NOTHING, LINE_END
    blocks: deque[Ids] = deque()
    for line, block in word_blocks(path, READ_BYTES):
        decode(path, line, block)
        tokens = block.translate(_ONE_BLANK).replace(b"\n", b" \n ").split(b" ")
        numbers = np.fromiter(map(number_of.__getitem__, tokens), np.int32, len(tokens))
        blocks.append(numbers[numbers != NOTHING])
    counts = count_pieces(blocks, len(number_of))
    counts[LINE_END] = 0
    found = [word.decode() for word in number_of]
    if names is None:
        order, rank_of = rank_words(counts, found, options.min_count)
        names = [found[i] for i in order]
        expected = f"occurs {options.min_count} times or more"
    else:
        known = {name: rank for rank, name in enumerate(names)}
        rank_of = np.array([-1, -1, *(known.get(word, -1) for word in found[2:])], np.int32)
        expected = "is known to the model"
        if more:
            order, rank_of_new = rank_words(np.where(rank_of < 0, counts, 0), found, options.min_count)
            rank_of = np.where(rank_of_new < 0, rank_of, len(names) + rank_of_new).astype(np.int32)
            names = [*names, *(found[i] for i in order)]
            expected += f", or occurs {options.min_count} times or more"
    words, offsets = _ranked(blocks, rank_of)
    if len(words) == 0:
        raise DataError(f"{path}: no word of it {expected}")
    if len(words) > MAX_WORDS:
        raise DataError(f"{path}: has {len(words):,} words, more than {MAX_WORDS:,}")
    return Tokens(words, offsets, names, options, str(path), int(counts.sum()) - len(words))


def _ranked(blocks: deque[Ids], rank_of: Ids) -> tuple[Ids, Offsets]:
    """Stream and sentences from blocks of word numbers, which are freed on the way."""
    pieces: deque[Ids] = deque()
    ends, total = [np.zeros(1, np.int64)], 0
    while blocks:
        numbers = blocks.popleft()
        ranks = rank_of[numbers]
        known = ranks >= 0
        ends.append(total + np.cumsum(known)[numbers == LINE_END])
        pieces.append(ranks[known])
        total += len(pieces[-1])
    ends.append(np.array([total]))
    return join(pieces, np.int32), without_empty(np.concatenate(ends))
