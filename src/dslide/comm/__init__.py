"""Communication between the ranks that train one network together."""

from dslide.comm.communicator import Communicator, solo
from dslide.comm.exchange import Exchange
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
