"""Hash families, and how many hash functions and tables a layer gets where the options leave it open."""

from __future__ import annotations

import math
from typing import NamedTuple

from dslide.config import Config
from dslide.errors import ConfigError

# What one code says about a vector, in bits: a sign; the position of the largest of eight; for minhash about
# four, since two random sets of an eighth of all coordinates agree in one code of 15.
CODE_BITS = {"simhash": 1, "wta": 3, "dwta": 3, "minhash": 4}
TABLES = 16
LARGEST_MEAN_BUCKET = 100
MOST_TABLE_BITS = 24


def training_family(family: str) -> str:
    """The hash family that training uses, "auto" resolved.

    SimHash gave the more accurate networks (P@1 .891 against .874 with DWTA on synthetic data with 200,000 labels, .359
    against .355 on library records), although it finds fewer of a row's best labels: behind ReLU its hits are biased
    towards neurons with large logits for many rows, and those dominate the normaliser.
    """
    return "simhash" if family == "auto" else family


def prediction_family(family: str, sparse_input: bool, activation: str) -> str:
    """The hash family that approximate prediction uses, "auto" resolved.

    Behind ReLU the largest of a few coordinates discriminates better than the angle: on the networks above DWTA found 3
    to 30 times as many of the best labels as SimHash. It compares non-zero coordinates, so it is of little use for
    linear activations and for very sparse inputs.
    """
    if family != "auto":
        return family
    return "dwta" if activation == "relu" and not sparse_input else "simhash"


class HashParameters(NamedTuple):
    """The LSH tables of a layer."""

    k: int  # codes joined into one bucket number
    tables: int
    table_bits: int  # log2 of the buckets in a table


def hash_parameters(config: Config, neurons: int, inputs: int, family: str) -> HashParameters:
    """Parameters for a layer: those that the options set, and automatic ones for the rest."""
    k, tables, bits = automatic(neurons, inputs, family)
    return HashParameters(config.hash_k or k, config.tables or tables, config.table_bits or bits)


def automatic(neurons: int, dimension: int, family: str) -> HashParameters:
    """Parameters for a layer of so many neurons with weight vectors of this dimension.

    The fewest codes whose buckets hold at most 100 neurons on average, and one bucket for each of their values. With
    50,000 clustered vectors, larger buckets and more tables found more of the true top 10 in a given number of hits,
    until counting (100 neurons x 16 tables a row) and memory (8 bytes a neuron and table) cost too much; fewer buckets
    than values only added false hits. Accuracy is the same with 16 tables as with 24: P@1 .916 and .915 on synthetic
    rows with 200,000 labels, .9145 and .9155 with 670,091, .393 and .394 on library records (means of two or three
    seeds, which differ by as much).
    """
    if family not in CODE_BITS:
        raise ConfigError(f"family: expected one of {', '.join(CODE_BITS)}, not {family!r}")
    for name, value in (("neurons", neurons), ("dimension", dimension)):
        if value < 1:
            raise ConfigError(f"{name}: expected at least 1, not {value}")
    bits = CODE_BITS[family]
    wanted = math.ceil(math.log2(max(2.0, neurons / LARGEST_MEAN_BUCKET)) / bits)
    k = min(wanted, MOST_TABLE_BITS // bits, dimension)  # more codes than coordinates tell nothing new
    return HashParameters(k, TABLES, k * bits)
