"""Ranks that train one network together, and what they say to each other."""

from .communicator import Communicator, Exchange, solo
from .mpi import current, end_job, job, launched_as
from .outcomes import ranks_in_words
from .transport import Transport

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
