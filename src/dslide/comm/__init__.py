"""Ranks that train one network together, and what they say to each other."""

from dslide.comm.communicator import Communicator, Exchange, solo
from dslide.comm.mpi import current, end_job, job, launched_as
from dslide.comm.outcomes import ranks_in_words
from dslide.comm.transport import Transport

__all__ = [
    "Communicator",
    "Exchange",
    "Transport",
    "current",
    "end_job",
    "job",
    "launched_as",
    "ranks_in_words",
    "solo",
]
