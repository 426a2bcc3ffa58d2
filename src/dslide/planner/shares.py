"""Shares of a network for ranks on machines that are not alike: in proportion to their speed, as far as their memory
goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dslide.comm import Communicator
from dslide.comm.topology import local_ranks
from dslide.config import Config
from dslide.errors import ConfigError, known_to_all
from dslide.model.sharding import MOST_SHARE, Shard
from dslide.planner.trial_rows import made_up
from dslide.planner.trial_steps import time_step

Doubles = npt.NDArray[np.float64]

SHAPE = {"features": 100_000, "labels": 100_000, "features_per_row": 75, "labels_per_row": 5}  # of the rows to measure
MOST_PARAMETERS, SECONDS = 4_000_000, 0.6  # of the first and of the last layer of a trial on each rank, and its time
TRIALS = 2  # the second with the shares that the first one gives: not all of a step is in proportion to the share
ALIKE = 1.1  # ranks of which the slowest takes less than so many times what the fastest takes have equal shares


def job_shares(comm: Communicator, config: Config, may_differ: bool = False) -> tuple[int, ...]:
    """The shares of the ranks of a job: those of the options, or measured. A collective of all ranks. ConfigError if
    they are given for another number of ranks; if that `may_differ`, they are equal."""
    if config.shares == (-1,):
        return measured_shares(comm, config) if comm.size > 1 else ()
    if len(config.shares) not in (0, comm.size):
        if may_differ:
            return ()
        ranks = f"{comm.size} rank{'s' * (comm.size > 1)}"
        raise known_to_all(ConfigError(f"shares: {len(config.shares)} are given for {ranks}; give one for each"))
    return config.shares


def measured_shares(comm: Communicator, config: Config, shape: Mapping[str, int] = SHAPE) -> tuple[int, ...]:
    """Shares in proportion to what ranks compute in a second; empty if they are about alike. A collective."""
    before, fractions = comm.shares, np.full(comm.size, 1 / comm.size)
    rows = made_up(256, **shape)
    config = config.replace(threads=config.threads or local_ranks(comm).threads)
    try:
        comm.shares = ()
        for trial in range(TRIALS):
            # The mean: where another program takes turns with a rank, most steps may be undisturbed.
            own = time_step(config, rows, comm, SECONDS, most_parameters=MOST_PARAMETERS, average=np.mean).compute
            seconds = np.array(comm.gather_objects("computing time", own))
            if trial == 0 and seconds.max() < ALIKE * seconds.min():
                return ()
            fractions = fractions / seconds / (fractions / seconds).sum()
            comm.shares = nearest_shares(fractions)
            fractions = np.array(comm.shares or [1] * comm.size) / (sum(comm.shares) or comm.size)
        return Shard.of(comm).shares
    finally:
        comm.shares = before


def nearest_shares(fractions: Doubles, limits: Doubles | float = 1.0) -> tuple[int, ...]:
    """Small whole numbers in about these proportions: those for which the rank that takes longest takes least. The
    whole network is 1, and no rank has more of it than its limit. Empty if shares are equal, or there are none."""
    best: tuple[int, ...] = ()
    least = np.inf
    for total in range(len(fractions), max(16, 4 * len(fractions)) + 1):
        shares = np.maximum(1, np.floor(fractions * total))
        while shares.sum() < total:  # to the one that then takes least
            shares[np.argmin((shares + 1) / fractions + np.where((shares + 1) / total <= limits, 0, total**2))] += 1
        longest = (shares / shares.sum() / fractions).max()
        fits = (shares / shares.sum() <= limits).all() and shares.max() <= MOST_SHARE
        if longest < least - 0.005 and fits:
            best, least = tuple(int(share) for share in shares), longest
    return Shard(0, len(best), best).shares if best else ()


def shares_in_memory(
    comm: Communicator, shares: tuple[int, ...], bytes_of: Callable[[Fraction], int], free: int
) -> tuple[int, ...]:
    """The shares with those that a rank's free memory does not allow reduced, and the others enlarged; the same if all
    fit, or if all ranks together have too little. `bytes_of` tells what a rank needs for a part of the network,
    `free` what this one has."""
    before = [Fraction(share, sum(shares)) for share in shares] if shares else [Fraction(1, comm.size)] * comm.size
    less, more = Fraction(1, 4 * comm.size), Fraction(1)
    slope = (bytes_of(more) - bytes_of(less)) / float(more - less)
    most = float(less) + (free - bytes_of(less)) / slope  # needs grow in proportion
    limits = np.array(comm.gather_objects("the largest share that memory allows", most))
    wanted = np.array([float(part) for part in before])
    if (wanted <= limits).all() or limits.clip(0).sum() < 1 or (limits <= 0).any():
        return shares
    fitting = np.minimum(wanted, limits)
    while fitting.sum() < 1 - 1e-9:
        growing = fitting < limits
        fitting = np.where(growing, fitting * (1 + (1 - fitting.sum()) / fitting[growing].sum()), fitting)
        fitting = np.minimum(fitting, limits)
    return nearest_shares(fitting, limits)
