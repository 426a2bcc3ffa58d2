"""The rank table: what a launcher knows about its ranks. Where they run, how far they are, how they ended, and which of
them caused a failure."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dslide.comm import liveness, ranks_in_words
from dslide.launch.handshake import Control
from dslide.launch.protocol import Exit, Failure, Hello, Message, Progress

UNKNOWN = "killed?"  # how a process ended, if nobody knows


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    code: int
    reason: str = ""  # a sentence, if it failed
    ranks: tuple[int, ...] = ()  # that caused it
    hosts: tuple[str, ...] = ()  # of these ranks, as in the host file
    step: int = 0  # the last one that was reported; 0: none was begun
    by_user: bool = False  # ended by Ctrl-C or SIGTERM here


@dataclass
class RankProcess:
    """One row of the table."""

    listed: str  # host, as in the host file
    host: str  # its own name for itself
    control: Control | None = None  # while it is connected
    pid: int = 0  # 0: it has never connected
    code: int | None = None  # exit code, once reported
    blamed: tuple[int, ...] = ()  # ranks that it reported as the cause
    death: str = ""  # how its process ended without reporting, if that is known
    heard: float = 0.0  # time of the last message
    progress: tuple[int, int] = (0, 0)  # step, exchanges begun


class RankTable:
    """The ranks of a job. `limit` is the silence limit in seconds."""

    def __init__(self, listed: Sequence[str], limit: float):
        self.ranks = [RankProcess(host, host) for host in listed]
        self.failures: dict[int, str] = {}  # by rank: why it failed; in the order of their reports
        self.failed_code: int | None = None  # the first exit code that was reported and is not 0
        self.lost: int | None = None  # the first rank that disconnected without an exit code, before any other failed
        self._limit = limit
        self._moved = self._checked = time.monotonic()  # last progress of any rank; last check

    @property
    def step(self) -> int:
        """The furthest one that was reported."""
        return max(rank.progress[0] for rank in self.ranks)

    def connect(self, hello: Hello, control: Control) -> None:
        """Notes the control connection of a rank."""
        rank = self.ranks[hello.rank]
        rank.control, rank.host, rank.pid, rank.heard = control, hello.host, hello.pid, time.monotonic()

    def receive(self, number: int, message: Message) -> None:
        """Notes a message of a rank."""
        rank = self.ranks[number]
        rank.heard = time.monotonic()
        match message:
            case Progress(step, exchanges):
                if (step, exchanges) > rank.progress:
                    rank.progress, self._moved = (step, exchanges), rank.heard
            case Failure(sentence):
                self.failures.setdefault(number, sentence)
            case Exit(code, blamed):
                rank.code, rank.blamed = code, tuple(blamed)
                self.failed_code = self.failed_code or code or None

    def disconnect(self, number: int, expected: bool) -> None:
        """Notes the end of a rank's control connection; `expected` if the launcher is ending the job."""
        rank = self.ranks[number]
        rank.control = None
        if rank.code is None and self.failed_code is None and self.lost is None and not expected:
            self.lost = number

    def exited(self, number: int, status: int, remark: str) -> None:
        """Notes the end of a rank's process, with its exit status, negative for a signal, and a remark of its agent."""
        name = signal.Signals(-status).name if -status in list(signal.Signals) else f"signal {-status}"
        self._note_death(
            number, (f"killed by {name}" if status < 0 else f"exit status {status}") + f"; {remark}" * bool(remark)
        )

    def agent_ended(self, numbers: Sequence[int]) -> None:
        """Notes that what started these ranks has ended, and that they will not connect if they have not."""
        for number in numbers:
            if not self.ranks[number].death:
                self._note_death(number, UNKNOWN)

    def _note_death(self, number: int, death: str) -> None:
        self.ranks[number].death = death
        if self.ranks[number].pid == 0 and self.lost is None and self.failed_code is None:
            self.lost = number

    def missing(self) -> list[int]:
        """Ranks that have not connected yet."""
        return [number for number, rank in enumerate(self.ranks) if rank.pid == 0]

    def never_connected(self) -> list[int]:
        """Of those missing, the ones that can't connect any more if that is known of some."""
        missing = self.missing()
        return [number for number in missing if self.ranks[number].death] or missing

    def all_exited(self) -> bool:
        """Whether all ranks have reported an exit code."""
        return all(rank.code is not None for rank in self.ranks)

    def in_words(self, ranks: Sequence[int]) -> str:
        """Like `ranks 1 and 2 (beta, gamma)`."""
        hosts = sorted({self.ranks[number].host for number in ranks} - {""})
        return ranks_in_words(ranks) + (f" ({', '.join(hosts)})" if hosts else "")

    def failure_sentence(self, number: int | None = None) -> str:
        """The first failure that was reported, by any rank or by this one; empty if there is none."""
        return next((sentence for rank, sentence in self.failures.items() if number in (None, rank)), "")

    def find_stuck(self) -> tuple[str, list[int]] | None:
        """A sentence and the ranks it is about, if ranks have been silent for too long or none makes progress."""
        now = time.monotonic()
        if now - self._checked > self._limit / 2:  # this process itself was stopped: messages are still to be read
            self._moved = now
            for rank in self.ranks:
                rank.heard = now
        self._checked = now
        limit = self._limit + liveness.SILENCE_MARGIN
        running = {n: rank for n, rank in enumerate(self.ranks) if rank.control is not None and rank.code is None}
        starting = max(limit, liveness.MPI_START_SILENCE)  # until a rank has made progress, MPI may start
        silent = [n for n, rank in running.items() if now - rank.heard > (limit if any(rank.progress) else starting)]
        if silent:
            return f"{self.in_words(silent)} sent no heartbeat for {limit:g} s; given up", silent
        factor = liveness.STUCK if self.step else liveness.STUCK_BEFORE_STEP_1
        limit = self._limit * factor + liveness.SILENCE_MARGIN
        if len(self.ranks) > 1 and running and now - self._moved > limit:  # a single rank waits for no other
            return f"no rank made progress for {limit:g} s; given up", []
        return None

    def blamed(self) -> list[int]:
        """The ranks that most of the ranks which have exited reported as the cause."""
        votes = Counter(number for rank in self.ranks for number in rank.blamed if number < len(self.ranks))
        return sorted(number for number, count in votes.items() if count == max(votes.values()))

    def outcome(self, code: int, reason: str, blamed: Sequence[int], by_user: bool) -> Outcome:
        hosts = dict.fromkeys(self.ranks[number].listed for number in blamed)
        return Outcome(code, reason, tuple(blamed), tuple(host for host in hosts if host), self.step, by_user)
