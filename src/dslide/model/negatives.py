"""Random negatives of the output layer: with which probability each label is in the active set of a batch.

The sampled gradient of the loss is unbiased with any probabilities. It varies least where a label's probability follows
the size of its gradient. For a label that a row does not have, that is the chance the network gives it: on average, the
label's frequency. So half of the negatives are expected in proportion to frequency, half are spread evenly: no label
is sampled less than half as often as uniform sampling would, whatever its frequency says.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dslide.config import Config
from dslide.util.arrays import Floats

NAME = "inclusion"  # of the array of probabilities among those of a network
DTYPE = np.dtype(np.float32)
EVEN = 0.5  # share of the negatives that is spread evenly


def by_frequency(config: Config) -> bool:
    """Whether a network samples negatives by frequency."""
    return config.output in ("lsh", "cells", "random") and config.negative_sampling == "frequency"


def inclusion_probabilities(frequencies: npt.NDArray[np.floating] | None, labels: int, negatives: int) -> Floats:
    """For each of `labels` labels the probability of being among the random negatives, so that `negatives` are expected
    in all. `frequencies` may have fewer labels: others are never seen; None: all are alike."""
    even = np.full(labels, 1 / labels)
    known = np.zeros(labels)
    if frequencies is not None:
        known[: len(frequencies)] = frequencies[:labels]
    total = known.sum()
    wanted = even if total <= 0 else EVEN * even + (1 - EVEN) * known / total
    return _bounded(wanted, min(negatives, labels)).astype(DTYPE)


def _bounded(wanted: npt.NDArray[np.float64], total: float) -> npt.NDArray[np.float64]:
    """min(1, factor x wanted) with the factor for which the sum is `total`, at most the number of labels."""
    falling = np.sort(wanted)[::-1]
    certain = np.arange(len(falling))  # if so many have probability 1, the others share what is left
    rest = np.cumsum(falling[::-1])[::-1]
    factors = np.maximum(total - certain, 0) / rest
    fits = factors * falling <= 1
    factor = factors[np.argmax(fits)] if fits.any() else np.inf
    return np.minimum(1.0, factor * wanted)
