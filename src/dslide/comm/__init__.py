"""Ranks that train one network together, and what they say to each other."""

from .communicator import Communicator, Exchange, Transport, ranks_in_words, solo
from .mpi import current, end_job, job, launched_as

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
