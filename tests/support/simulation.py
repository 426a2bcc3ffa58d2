"""A job of two ranks whose clock, network and processes are simulated: the launcher is the real one, with its
rendezvous, handshake, seals and rank table. What happens follows from a schedule, so that all schedules can be tried.

    python tests/support/simulation.py              every schedule in which one thing goes wrong (seconds)
    python tests/support/simulation.py --wrong 2    two things, in every order and at every time (minutes)

In each step of a schedule a rank or an agent does its next deed, in turns; where the schedule says so, something goes
wrong instead (`WRONG`). After each, what must hold of any job is checked (`check`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from dslide.errors import INTERRUPTED, LOST, USER_ERROR
from dslide.launch import handshake, launcher, rendezvous
from dslide.launch.processes import Process
from dslide.launch.protocol import INTERRUPT, Exit, Failure, Hello, Message, Progress, encode
from dslide.launch.rank_table import Outcome

RANKS, LIMIT, START_LIMIT = 2, 5.0, 20.0
SECONDS, QUICK = 400.0, 5.0  # simulated: a job that takes longer hangs; it takes no longer if ranks do not wait
STREAMS = ("control", "out", "err")
OF_RANK = (
    "killed", "stopped", "refuses", "line lost", "line doubled", "lines swapped", "forged line", "slow", "very slow",
)  # fmt: skip
OF_JOB = ("agent killed", "host gone", "interrupted", "interrupted twice", "stranger", "stranger waits")
WRONG = [(kind, rank) for kind in OF_RANK for rank in range(RANKS)] + [(kind, -1) for kind in OF_JOB]
Schedule = tuple[tuple[int, str, int], ...]  # step, what goes wrong, rank


class End(socket.socket):
    """One end of a connection, that of the launcher. It has no socket of the system."""

    def __init__(self, world: World, number: int) -> None:  # not that of the base class
        self.world, self.number = world, number
        self.inbox, self.outbox = bytearray(), bytearray()  # to the launcher, and from it
        self.ended = self.closed = self.shut = False  # by the other side; by the launcher; for sending only

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def recv(self, size: int) -> bytes:
        if self.inbox:
            content = bytes(self.inbox[:size])
            del self.inbox[:size]
            return content
        if self.ended:
            return b""
        raise BlockingIOError

    def send(self, content: bytes) -> int:
        if self.closed or self.shut or self.ended:
            raise BrokenPipeError(32, "Broken pipe")
        self.outbox += content
        return len(content)

    def shutdown(self, _how: int) -> None:
        self.shut = True

    def close(self) -> None:
        self.closed = True

    def setblocking(self, _flag: bool) -> None: ...

    def setsockopt(self, *_arguments: object) -> None: ...


class Listener(End):
    def accept(self) -> tuple[End, None]:
        return self.world.waiting.popleft(), None

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1


class Selector:
    """What `selectors` offers, over simulated connections and the pipes of agents."""

    def __init__(self, world: World) -> None:
        self.world, self.keys = world, dict[Any, selectors.SelectorKey]()
        world.selector = self

    def register(self, what: Any, events: int, data: Any = None) -> None:
        self.keys[what] = selectors.SelectorKey(what, what.fileno(), events, data)

    def unregister(self, what: Any) -> None:
        del self.keys[what]

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self.keys

    def close(self) -> None:
        self.keys = {}

    def select(self, _timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        self.world.step()
        ready = []
        for what, key in self.keys.items():
            if isinstance(what, Listener):
                is_ready = bool(self.world.waiting)
            elif isinstance(what, End):
                is_ready = bool(what.inbox) or what.ended
            else:
                is_ready = True  # a pipe, which does not block
            if is_ready:
                ready.append((key, selectors.EVENT_READ))
        return ready


@dataclass
class Rank:
    """A rank as its launcher sees it: it connects, makes progress, and exits."""

    world: World
    number: int
    ends: dict[str, End] = field(default_factory=dict)
    seal: handshake.Seal | None = None
    asleep_until: float = 0.0
    stopped: bool = False
    status: int | None = None  # of the process, once it has ended
    said: int | None = None  # the exit code that it has sent
    spoiled: str = ""  # what happens to its next line
    held: bytes = b""  # a line that the next one overtakes
    broken: bool = False  # a line did not arrive as it was sent, once and in its place
    reached: int = 0  # the step that it is in
    deeds: deque[Callable[[], None]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        for stream in STREAMS:
            self.deeds += [lambda stream=stream: self.connect(stream), lambda stream=stream: self.greet(stream)]  # type: ignore[misc]
        for step in (1, 2):
            self.deeds.append(lambda step=step: self.exchange(step))  # type: ignore[misc]
        self.deeds.append(lambda: self.exchange(3))

    @property
    def gone(self) -> bool:
        return self.status is not None

    def act(self) -> bool:
        """Does its next deed; False if it has none now."""
        if self.gone or self.stopped or self.world.now < self.asleep_until:
            return False
        control = self.ends.get("control")
        if control is not None and self.seal is not None and self.said is None:
            if control.closed or control.shut:
                self.end(1)
                return True
            for line in bytes(control.outbox).split(b"\n")[1 + 1 : -1]:  # after challenge and welcome
                if INTERRUPT in line and not self.world.interrupted:
                    self.world.interrupted = True
                    self.deeds = deque([lambda: self.finish(INTERRUPTED)])
            if self.world.interrupted and self.number and len(self.deeds) > 1:
                self.deeds = deque([lambda: self.finish(INTERRUPTED)])
        others = [rank for rank in self.world.ranks if rank is not self]
        lost = [rank.number for rank in others if (rank.gone and rank.said is None) or rank.stopped]
        if lost and self.seal is not None and self.said is None and self.world.now > self.world.trouble + LIMIT:
            self.send(Failure(f"rank {lost[0]} silent"))
            self.finish(LOST, lost)
            return True
        if not self.deeds:
            return False
        self.deeds.popleft()()
        return True

    def connect(self, stream: str) -> None:
        self.ends[stream] = self.world.connection()

    def greet(self, stream: str) -> None:
        end = self.ends[stream]
        if not end.outbox:  # not accepted yet
            self.deeds.appendleft(lambda: self.greet(stream))
            return
        if end.closed:
            self.end(1)
            return
        challenge = handshake.challenge_of(bytes(end.outbox[: handshake.CHALLENGE_BYTES]))
        hello = Hello(stream, self.number, RANKS, "here", 1000 + self.number, "00")
        proven = handshake.proven(self.world.secret, challenge, hello)
        end.inbox += encode(proven) + b"\n"
        if stream == "control":
            self.seal = handshake.Seal(self.world.secret, challenge, proven, handshake.RANK_SIDE)

    def send(self, message: Message) -> None:
        assert self.seal is not None
        line = self.seal.close(encode(message))
        self.seal.sent += 1
        how, self.spoiled = self.spoiled, ""
        self.broken |= bool(how) and not isinstance(message, Exit)  # so that another line follows
        inbox = self.ends["control"].inbox
        if how == "lines swapped":
            self.held = line
            return
        if how == "forged line":
            line = line.partition(b" ")[0] + b" " + encode(Exit(0, [])) + b"\n"
        inbox += b"" if how == "line lost" else line * (1 + (how == "line doubled"))
        inbox += self.held
        self.held = b""

    def exchange(self, step: int) -> None:
        """A step, for which it needs the other ranks; the third is the end."""
        self.reached = step
        if any(rank.reached < step for rank in self.world.ranks):
            self.deeds.appendleft(lambda: self.exchange(step))
        elif step < 3:
            self.send(Progress(step, step))
        else:
            self.finish(0)

    def finish(self, code: int, blamed: Iterable[int] = ()) -> None:
        self.send(Exit(code, list(blamed)))
        self.said = code
        self.deeds = deque([lambda: self.end(code)])

    def end(self, status: int) -> None:
        """The end of its process."""
        self.status = status
        self.stopped = False
        for end in self.ends.values():
            end.ended = True


class World:
    """Clock, network and processes."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = {step: (kind, rank) for step, kind, rank in schedule}
        self.now, self.steps = 1000.0, 0
        self.trouble = float("inf")  # when a rank was lost
        self.secret, self.interrupted = "", False
        self.waiting: deque[End] = deque()  # connections to be accepted
        self.made: list[End] = []
        self.selector: Selector | None = None
        self.told: set[int] = set()  # ranks whose end the agent has reported
        self.agent_status: int | None = None
        self.end_at = float("inf")  # when the agent kills its ranks
        self.killed_by_agent = True  # it still can
        self.ranks = [Rank(self, number) for number in range(RANKS)]

    def connection(self) -> End:
        self.made.append(End(self, 100 + len(self.made)))
        self.waiting.append(self.made[-1])
        return self.made[-1]

    def step(self) -> None:
        """The launcher waits: something happens, or goes wrong."""
        self.steps += 1
        self.now += 0.05
        if self.now > 1000.0 + SECONDS:
            raise TimeoutError("the job hangs")
        if (wrong := self.schedule.get(self.steps)) is not None:
            self.go_wrong(*wrong)
            return
        actors = [self.ranks[0].act, self.ranks[1].act, self.agent]
        first = self.steps % len(actors)
        if not any(act() for act in actors[first:] + actors[:first]):
            self.now += 0.5  # nothing but time passes
        for rank in self.ranks:  # heartbeats, without progress
            talks = rank.seal is not None and rank.said is None and not rank.stopped and not rank.gone
            if talks and self.steps % 20 == 0 and self.now >= rank.asleep_until:
                rank.send(Progress(0, 0))

    def go_wrong(self, kind: str, number: int) -> None:
        rank = self.ranks[max(number, 0)]
        if kind in ("killed", "stopped", "host gone"):
            self.trouble = min(self.trouble, self.now)
        match kind:
            case "killed" if not rank.gone:
                rank.end(-signal.SIGKILL)
            case "stopped" if not rank.gone:
                rank.stopped = True
            case "refuses" if rank.seal is not None and rank.said is None and not rank.gone:
                rank.send(Failure("a bad disk"))
                rank.finish(USER_ERROR, [number])
            case "slow" | "very slow":
                rank.asleep_until = self.now + (LIMIT / 2 if kind == "slow" else 10 * LIMIT)
            case "agent killed" | "host gone":
                self.agent_status = self.agent_status if self.agent_status is not None else -signal.SIGKILL
                for end in (self.stdout_end, self.stderr_end):
                    with suppress(OSError):
                        os.close(end)
                self.killed_by_agent = False
                for each in self.ranks if kind == "host gone" else []:
                    each.end(-signal.SIGKILL)
            case "interrupted" | "interrupted twice":
                for _ in range(1 + (kind == "interrupted twice")):
                    signal.raise_signal(signal.SIGINT)
            case "stranger" | "stranger waits":
                stranger = self.connection()
                stranger.inbox += b"twelve bytes" + b"\n" * (kind == "stranger")
            case "line lost" | "line doubled" | "lines swapped" | "forged line":
                rank.spoiled = kind

    # ---- the agent ----------------------------------------------------------------------------------------------

    def agent(self) -> bool:
        if self.agent_status is not None:
            return False
        if self.now >= self.end_at:
            for rank in self.ranks:
                if not rank.gone:
                    rank.end(-signal.SIGKILL)
        for rank in self.ranks:
            if rank.gone and rank.number not in self.told:
                self.told.add(rank.number)
                os.write(self.stdout_end, json.dumps(["ended", rank.number, rank.status, ""]).encode() + b"\n")
                return True
        if len(self.told) == RANKS:
            self.agent_status = 0
            os.close(self.stdout_end)
            os.close(self.stderr_end)
            return True
        return False

    @contextmanager
    def started(self, _command: object, _ranks: int, _hosts: object, address: str, *_: object) -> Iterator[list[Any]]:
        """In place of `processes.started`: one agent with all ranks."""
        self.secret = address.split(" ")[0]
        (out, self.stdout_end), (errors, self.stderr_end) = os.pipe(), os.pipe()
        close = lambda: setattr(self, "end_at", min(self.end_at, self.now + 1))  # noqa: E731
        popen = SimpleNamespace(
            pid=0, stdin=SimpleNamespace(close=close, fileno=lambda: -1), stdout=os.fdopen(out, "rb", 0),
            stderr=os.fdopen(errors, "rb", 0), poll=lambda: self.agent_status,
        )  # fmt: skip
        try:
            yield [Process(popen, tuple(range(RANKS)))]  # type: ignore[arg-type]
        finally:  # as it kills an agent, whose ranks end when they hear nothing of their launcher
            popen.stdout.close()
            popen.stderr.close()
            if self.agent_status is None:
                os.close(self.stdout_end)
                os.close(self.stderr_end)

    def kill(self, process: int, number: int) -> None:
        """In place of `os.kill`."""
        rank = self.ranks[process - 1000]
        if rank.gone:
            raise ProcessLookupError
        assert number == signal.SIGKILL
        rank.end(-number)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def simulate(schedule: Schedule) -> tuple[World, Outcome]:
    """A job under a schedule, and how it ended."""
    world, still = World(schedule), SimpleNamespace(start=lambda: None)
    with ExitStack() as stack:
        for target, name, new in (
            (rendezvous.selectors, "DefaultSelector", lambda: Selector(world)),
            (rendezvous.socket, "create_server", lambda *_, **__: Listener(world, 99)),
            (launcher, "started", world.started), (launcher.threading, "Thread", lambda **_: still),
            (time, "monotonic", lambda: world.now), (time, "sleep", world.sleep), (os, "kill", world.kill),
        ):  # fmt: skip
            stack.enter_context(patch.object(target, name, new))
        outcome = launcher.launch(["command"], RANKS, start_limit=START_LIMIT, limit=LIMIT)
    return world, outcome


def check(schedule: Schedule) -> str:
    """What is wrong with the end of a job under a schedule; nothing as a rule."""
    try:
        world, outcome = simulate(schedule)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    said = [rank.said for rank in world.ranks]
    if outcome.code == 0 and said != [0] * RANKS:
        return f"success, though ranks said {said}"
    kinds = {kind for _, kind, _ in schedule}
    if kinds <= {"stranger", "stranger waits", "slow"} and outcome.code:
        return f"code {outcome.code} ({outcome.reason}), though no rank failed"
    if kinds <= {"stranger", "stranger waits"} and world.now > 1000.0 + QUICK:
        return f"strangers delay the end by {world.now - 1000.0 - QUICK:g} s"
    if [end for end in world.made if not end.closed and end not in world.waiting]:
        return "connections are left open"
    if outcome.code == 0 and any(rank.broken for rank in world.ranks):
        return "success, though a line did not arrive as it was sent"
    for rank in world.ranks:
        control = rank.ends.get("control")
        told = control is not None and (control.closed or control.shut)  # which ends a rank that runs
        ended = rank.gone or (told and not rank.stopped) or (world.killed_by_agent and world.end_at < float("inf"))
        if not ended and not (rank.seal is None and not world.killed_by_agent):
            return f"rank {rank.number} is left behind"
    if len(schedule) != 1:
        return ""
    ((_, kind, number),) = schedule
    if kind in ("killed", "stopped") and outcome.code and number not in outcome.ranks and said[number] is None:
        return f"rank {number} is not named: {outcome}"
    if kind == "refuses" and said[number] == USER_ERROR and outcome.code != USER_ERROR:
        return f"code {outcome.code}, though rank {number} said {USER_ERROR}"
    if kind == "interrupted" and outcome.code not in (0, INTERRUPTED):
        return f"code {outcome.code} after an interrupt"
    return ""


def schedules(wrong: int, every: int = 1) -> Iterator[Schedule]:
    """All in which so many things go wrong, or every so manieth, until a job has ended that all goes well with."""
    world, _ = simulate(())
    singles = [(step, kind, rank) for step in range(1, world.steps + 1) for kind, rank in WRONG]
    chosen = (each for each in itertools.combinations(singles, wrong) if len({step for step, *_ in each}) == wrong)
    yield from itertools.islice(chosen, 0, None, every)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrong", type=int, default=1, help="things that go wrong in a schedule (default: 1)")
    parser.add_argument("--every", type=int, default=1, help="only every so manieth schedule (default: all)")
    arguments = parser.parse_args()
    begin, count, wrong = time.monotonic(), 0, 0
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    for schedule in schedules(arguments.wrong, arguments.every):
        count += 1
        if problem := check(schedule):
            wrong += 1
            print(f"{schedule}: {problem}", file=out, flush=True)
    print(f"{count} schedules, {wrong} went wrong, in {time.monotonic() - begin:.0f} s", file=out, flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
