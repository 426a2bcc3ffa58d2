"""What ranks vote on with every training step, so that all of them act after the same step."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_


class Vote(enum.IntFlag):
    """What one rank votes for; sent as one byte with the summary of a step."""

    NONE = 0
    STOP = 1  # end training after this step
    CHECKPOINT_DUE = 2  # begin a checkpoint after this step
    CHECKPOINT_STAGE_DONE = 4  # this rank has finished its stage of the checkpoint that is being written


@dataclass(frozen=True)
class Votes:
    """The votes of all ranks in one step, the same on every rank."""

    any: Vote = Vote.NONE  # cast by at least one rank
    all: Vote = Vote.NONE  # cast by every rank

    @classmethod
    def count(cls, votes: Iterable[int]) -> Votes:
        """The result of one vote from each rank."""
        cast = [Vote(vote) for vote in votes]
        return cls(reduce(or_, cast), reduce(and_, cast))


NO_VOTES = Votes()
