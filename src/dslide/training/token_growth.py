"""Growth of a model of running text: further words get the numbers after those known. Earlier text that is replayed is
a sample of pieces of it."""

from __future__ import annotations

import numpy as np

from dslide.checkpoint.saved_model import SavedModel
from dslide.config import Config
from dslide.data import Tokens
from dslide.training.growth import REPLAY_STREAM, Earlier, GrowingData
from dslide.training.replay import replayed_rows


def growing_tokens(
    new: Tokens, earlier: Tokens | None, config: Config, before: Earlier, base: SavedModel, counted: bool
) -> GrowingData:
    """The new text and a sample of the earlier one. `base` is the model as it was saved; `counted`: after the new words
    were counted."""
    assert base.label_counts is not None
    counts, total = np.array(base.label_counts), base.rows
    if not counted:
        counts, total = new.label_counts.copy(), base.rows + len(new)
        counts[: base.labels] += base.label_counts
    train = new
    if earlier is not None:
        words = replayed_rows(new.label_counts, counts, len(new), total)
        train = new.and_rows(earlier.sample(words, [config.seed, REPLAY_STREAM])) if words else new
    return GrowingData(train, new, None, counts, total, before, None if earlier is None else len(earlier))
