"""Communication between the ranks that train one network together."""

from dslide.comm.agreement import ranks_in_words
from dslide.comm.communicator import Communicator, solo
from dslide.comm.frames import Transport
from dslide.comm.mpi import current, end_job, job, launched_as
from dslide.comm.progress import Exchange

__all__ = [
    "Communicator", "Exchange", "Transport", "current", "end_job", "job", "launched_as", "ranks_in_words", "solo",
]  # fmt: skip
