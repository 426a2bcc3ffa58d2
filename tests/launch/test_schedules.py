"""All orders in which a job or a supervised run can go wrong, up to a bound: the launcher and the supervisor are the
real ones, clock, network, ranks and hosts are simulated."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.simulation import check, schedules

from dslide.comm.liveness import RetryPolicy
from dslide.errors import BUG, DIVERGED, INTERRUPTED, LOST, TERMINATED, USER_ERROR
from dslide.launch import elastic
from dslide.launch.elastic import Supervisor
from dslide.launch.mpiexec import Host
from dslide.launch.rank_table import Outcome

EVERY = 60  # `python tests/support/simulation.py --wrong 2` tries all pairs


def test_whatever_goes_wrong_once_and_whenever_a_job_ends_as_it_should(capfd: pytest.CaptureFixture[str]) -> None:
    assert {schedule: problem for schedule in schedules(1) if (problem := check(schedule))} == {}


def test_whatever_goes_wrong_twice_a_job_ends_as_it_should(capfd: pytest.CaptureFixture[str]) -> None:
    assert {schedule: problem for schedule in schedules(2, EVERY * 10) if (problem := check(schedule))} == {}


# ---- the supervisor -------------------------------------------------------------------------------------------------

HOSTS = [Host("a"), Host("b")]
LEAST = 1
ENDS = {  # of a job: code, whether steps were made, who is blamed
    "done": (0, True, ()), "lost": (LOST, True, ("a",)), "lost at once": (LOST, False, ("a",)),
    "lost, unknown": (LOST, False, ()), "terminated": (TERMINATED, True, ("b",)), "mistake": (USER_ERROR, False, ()),
    "bug later": (BUG, True, ()), "diverged": (DIVERGED, True, ()), "interrupted": (INTERRUPTED, True, ()),
}  # fmt: skip
ANSWERS = (("a", "b"), ("b",), ())  # hosts that answer
POLICY = RetryPolicy(failures=3, host_failures=2, enough_hosts=10.0)


class Jobs:
    """Jobs that end as they are told, and from then on all in one way; hosts that answer as they are told."""

    def __init__(self, ends: tuple[str, ...], then: str, answers: tuple[tuple[str, ...], ...]) -> None:
        self.ends, self.then, self.answers = ends, then, answers
        self.now, self.step, self.seen = 0.0, 0, 0
        self.launched: list[tuple[float, tuple[str, ...], str]] = []  # when, where, and how they end

    def answer(self, hosts: list[str], _seconds: float) -> dict[str, str]:
        who = self.answers[self.seen] if self.seen < len(self.answers) else ("a", "b")
        self.seen += 1
        self.asked = tuple(host for host in hosts if host in who)
        return {host: "" if host in who else "no route" for host in hosts}

    def launch(self, _command: object, ranks: int, hosts: list[Host], **_: Any) -> Outcome:
        names, count = tuple(host.name for host in hosts), len(self.launched)
        end = self.ends[count] if count < len(self.ends) else self.then
        assert names == self.asked
        assert ranks == len(hosts) >= LEAST
        assert count < 60, "it is started again and again"
        self.launched.append((self.now, names, end))
        code, moves, blamed = ENDS[end]
        self.step += moves
        self.now += 1.0
        return Outcome(code, end, (), tuple(host for host in blamed if host in names), self.step if moves else 0)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def histories() -> Iterator[tuple[tuple[str, ...], str, tuple[tuple[str, ...], ...]]]:
    for ends in itertools.product(ENDS, repeat=3):
        for then, answers in itertools.product(("done", "lost at once", "lost"), itertools.product(ANSWERS, repeat=2)):
            if then != "lost" or "done" in ends:  # with progress each time it never gives up
                yield ends, then, answers


def test_in_every_history_the_supervisor_starts_again_what_it_should_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "print", lambda *_, **__: None, raising=False)
    monkeypatch.setattr(elastic.threading, "Thread", lambda **_: type("Still", (), {"start": lambda self: None})())
    for ends, then, answers in histories():
        jobs = Jobs(ends, then, answers)
        monkeypatch.setattr(elastic, "launch", jobs.launch)
        monkeypatch.setattr(elastic, "who_answers", jobs.answer)
        monkeypatch.setattr(elastic.time, "sleep", jobs.sleep)
        monkeypatch.setattr(elastic.time, "monotonic", lambda jobs=jobs: jobs.now)
        supervisor = Supervisor([sys.executable], tmp_path, 2, HOSTS, LEAST, 5.0, POLICY)
        supervisor._record = lambda *_: None  # type: ignore[method-assign]
        code = supervisor.run()
        history = (ends, then, answers, jobs.launched, code)
        how = [end for _, _, end in jobs.launched]
        final = {"done", "diverged", "interrupted"}
        assert not final & set(how[:-1]), history  # nothing is started after these
        assert "mistake" not in how[:-1] or any(ENDS[end][1] for end in how[: how.index("mistake")]), history
        assert (code == 0) == (how[-1:] == ["done"]), history
        if how and how[-1] not in final:  # given up: by too many failures in a row, a mistake, or for lack of hosts
            row = len(list(itertools.takewhile(lambda end: not ENDS[end][1], reversed(how))))
            assert row >= POLICY.failures or how[-1] == "mistake" or len(jobs.launched[-1][1]) < 2, history
        for (when, names, end), (later, others, _) in itertools.pairwise(jobs.launched):
            if end == "terminated":
                assert "b" not in others or later - when > POLICY.notice, history
            assert later > when
            assert set(names) | set(others) <= {"a", "b"}
        at_once = [n for n, (_, names, end) in enumerate(jobs.launched) if end == "lost at once" and "a" in names]
        for first, second in itertools.pairwise(at_once):
            if not any(ENDS[end][1] for end in how[first : second + 1]):  # a failed twice without progress: left out
                assert all("a" not in names for _, names, _ in jobs.launched[second + 1 :]), history
