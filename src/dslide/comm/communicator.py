"""Collectives between the ranks of a job, and the errors that name the rank which prevents one.

Besides the exchanges that all ranks begin in the same order, and independent of them, there is a side channel
(`send_side`): frames that no one waits for, in which files travel during training. How bytes move is in progress.py: a
message that is lost, duplicated, damaged or out of order, and a rank that fails, leaves or falls silent, each ends in
`CommError` on every rank that waits, none in a hang.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dslide.comm.agreement import error_of_all
from dslide.comm.frames import Buffer, Kind, pack
from dslide.comm.progress import Exchange, Progress
from dslide.errors import CommError, PeerFailed, UserError

T = TypeVar("T")


class Communicator(Progress):
    """The ranks of a job, seen by one of them. `limit` is the silence limit in seconds, after which a rank is given up;
    it must be about the same on all ranks. Without a transport there is one rank. Used by one thread at a time."""

    # ---- exchanges ------------------------------------------------------------------------------------------------

    def post(self, name: str, outgoing: Sequence[Buffer]) -> Exchange:
        """Begins an exchange: outgoing[r] is for rank r; the message for this rank itself is returned with the others.
        Messages are copied, so the caller may change its buffers at once.

        Parameters
        ----------
        name : str
            Name of the exchange, used in errors.
        outgoing : list of bytes
            One message for each rank.

        Returns
        -------
        Exchange
            Its `wait` returns the messages of all ranks.
        """
        exchange = self._post(name, outgoing)
        self._wake.set()
        return exchange

    def post_to_all(self, name: str, content: Buffer) -> Exchange:
        """As `post`, with the same message for every rank.

        Parameters
        ----------
        name : str
            Name of the exchange, used in errors.
        content : bytes

        Returns
        -------
        Exchange
            Its `wait` returns the messages of all ranks.
        """
        return self.post(name, [content] * self.size)

    def all_gather(self, name: str, content: Buffer) -> list[Buffer]:
        """The content given by each rank, in rank order.

        Parameters
        ----------
        name : str
            Name of the exchange, used in errors; the same on all ranks.
        content : bytes

        Returns
        -------
        list of bytes

        Raises
        ------
        CommError
            A rank can't be reached.
        """
        return self._post(name, [content] * self.size).wait()

    def gather_objects(self, name: str, value: Any) -> list[Any]:
        """The value given by each rank, in rank order; as JSON returns it (tuples as lists).

        Parameters
        ----------
        name : str
            Name of the exchange, used in errors.
        value : what JSON can hold

        Returns
        -------
        list
        """
        return [json.loads(bytes(b)) for b in self.all_gather(name, json.dumps(value).encode())]

    def barrier(self, name: str) -> None:
        """Waits until every rank has called it.

        Parameters
        ----------
        name : str
            Name of the exchange, used in errors.
        """
        self.all_gather(name, b"")

    def together(self, what: str, work: Callable[[], T]) -> T:
        """Runs `work` on every rank. If it fails on some, all ranks raise the first one's error, with the messages and
        numbers of all ranks that failed (without numbers if the message is the same everywhere).

        Parameters
        ----------
        what : str
            What is done, used in errors.
        work : callable
            Is called without arguments.

        Returns
        -------
        what `work` returns on this rank
        """
        problem, value = None, None
        try:
            value = work()
        except UserError as error:
            problem = [type(error).__name__, str(error)]
        if failure := error_of_all(self.gather_objects(what, problem)):
            raise failure
        return value  # type: ignore[return-value]

    def on_side(self, handler: Callable[[int, memoryview], None] | None) -> None:
        """Sets the function that receives frames of the side channel: `handler(rank, content)`, which is called with
        the lock held and must neither wait nor fail. With None, frames are dropped.

        Parameters
        ----------
        handler : callable or None
            Is called with the number of a rank and what it sent.
        """
        with self._lock:
            self._on_side = handler

    def send_side(self, to: int, content: Buffer) -> None:
        """Sends at most `PIECE` bytes over the side channel; from any thread. CommError if the rank is lost.

        Parameters
        ----------
        to : int
            Rank.
        content : bytes

        Raises
        ------
        CommError
            The rank is lost.
        """
        with self._lock:
            if lost := self.lost(to):
                raise CommError(lost)
            self._send(self._place(), to, pack(Kind.SIDE, "", self._peers[to].sent, content))
            self._side_at = time.monotonic()
        self._wake.set()

    def lost(self, rank: int) -> str:
        """Why another rank can't be reached any more, as far as this one knows; empty if it can.

        Parameters
        ----------
        rank : int

        Returns
        -------
        str
        """
        peer = self._peers[rank]
        if self._closed:
            return "the communicator is closed"
        if self.failure is not None:
            return str(self.failure)
        if peer.fault or peer.gone:
            return peer.fault or f"rank {rank} has ended"
        silent = time.monotonic() - peer.heard > self.limit
        return f"rank {rank} silent for {self.limit:g} s" if silent else ""

    def fail(self, message: str, code: int) -> None:
        """Notifies the others that this rank ends with an error; waits a moment for them to receive it. If another
        rank's failure is the reason, that one's error is passed on.

        Parameters
        ----------
        message : str
            What went wrong.
        code : int
            Exit code.
        """
        cause = self.failure if isinstance(self.failure, PeerFailed) else PeerFailed(self.rank, message, code)
        self._leave(Kind.FAILED, json.dumps([cause.rank, cause.message, cause.code]).encode())

    def close(self) -> None:
        """Leaves when everything is sent; a rank that waits for this one afterwards gets CommError."""
        self._leave(Kind.BYE, b"")


def solo() -> Communicator:
    """The communicator of a job with one rank.

    Returns
    -------
    Communicator
    """
    return Communicator(None)
