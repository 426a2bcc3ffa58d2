"""What launcher and ranks send each other, and what the launcher makes of it."""

from __future__ import annotations

import json
import time

import pytest

from dslide.comm import liveness
from dslide.errors import INTERRUPTED, LOST
from dslide.launch.protocol import Exit, Failure, Hello, LauncherAddress, Message, Progress, decode, encode
from dslide.launch.rank_table import RankTable

HELLO = Hello("control", 1, 3, "beta", 4711, "ab", "cd")


@pytest.mark.parametrize("message", [HELLO, Progress(7, 30), Failure("a\nb: ü"), Exit(4, [0, 2]), Exit(0, [])])
def test_messages_are_lines_that_come_back_the_same(message: Message) -> None:
    line = encode(message)
    assert b"\n" not in line
    assert decode(line) == message


def test_the_address_of_a_launcher_comes_back_the_same() -> None:
    address = LauncherAddress("a1b2", 7.5, (("10.0.0.7", 32801), ("alpha", 1)))
    assert str(address) == "a1b2 7.5 10.0.0.7:32801,alpha:1"
    assert LauncherAddress.parse(str(address)) == address


def test_what_is_no_complete_message_is_refused() -> None:
    kind, fields = json.loads(encode(HELLO))
    for name in fields:
        less = {key: value for key, value in fields.items() if key != name}
        assert (decode(json.dumps([kind, less]).encode()) is None) == (name != "proof")
        for wrong in (None, [], {}, True, -1, 1.5):
            assert decode(json.dumps([kind, fields | {name: wrong}]).encode()) is None
    assert decode(json.dumps([kind, fields | {"more": 1}]).encode()) is None
    for line in (b"", b"5", b"[]", b'["Other", {}]', b"[[], {}]", b"\xff", b"[" * 50_000):
        assert decode(line) is None


def test_the_first_failure_that_was_reported_is_the_reason() -> None:
    table = RankTable(["a", "b", "c"], limit=10)
    assert table.failure_sentence() == ""
    table.receive(2, Failure("rank 0 silent"))
    table.receive(0, Failure("disk full"))
    assert table.failure_sentence() == "rank 0 silent"
    assert table.failure_sentence(0) == "disk full"
    assert table.failure_sentence(1) == ""


def test_the_first_code_that_is_not_0_is_that_of_the_job_and_most_votes_name_the_cause() -> None:
    table = RankTable(["a", "b", "b"], limit=10)
    for rank, message in enumerate([Exit(0, []), Exit(LOST, [1]), Exit(INTERRUPTED, [1, 0])]):
        assert not table.all_exited()
        table.receive(rank, message)
    assert table.all_exited()
    assert table.failed_code == LOST
    assert table.blamed() == [1]
    assert table.outcome(LOST, "why", [1, 2], by_user=False).hosts == ("b",)


def test_only_a_rank_that_disconnects_without_a_code_before_any_failure_is_lost() -> None:
    for before, expected, lost in (([], False, 1), ([Exit(LOST, [])], False, None), ([], True, None)):
        table = RankTable(["a", "b"], limit=10)
        for message in before:
            table.receive(0, message)
        table.disconnect(1, expected)
        assert table.lost == lost


@pytest.mark.parametrize(("silent", "named"), [([1], "rank 1 (b)"), ([0, 1], "ranks 0 and 1 (a, b)")])
def test_silence_is_measured_from_the_last_message(
    monkeypatch: pytest.MonkeyPatch, silent: list[int], named: str
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    table = RankTable(["a", "b"], limit=10)
    for rank in range(2):
        table.connect(Hello("control", rank, 2, "ab"[rank], 1, ""), object())  # type: ignore[arg-type]
        table.receive(rank, Progress(1, 1))
    limit = 10 + liveness.SILENCE_MARGIN
    for seconds in range(1, int(limit) + 2):  # a launcher that checks rarely was stopped itself
        now += 1
        if 0 not in silent:
            table.receive(0, Progress(1, 1 + seconds))
        stuck = table.find_stuck()
        assert (stuck is None) == (seconds <= limit)
    assert stuck == (f"{named} sent no heartbeat for {limit:g} s; given up", silent)


def test_heartbeats_without_progress_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    table = RankTable(["a", "b"], limit=10)
    for rank in range(2):
        table.connect(Hello("control", rank, 2, "ab"[rank], 1, ""), object())  # type: ignore[arg-type]
        table.receive(rank, Progress(1, 1))
    limit = 10 * liveness.STUCK + liveness.SILENCE_MARGIN
    for seconds in range(1, int(limit) + 2):
        now += 1
        for rank in range(2):
            table.receive(rank, Progress(1, 1))
        stuck = table.find_stuck()
        assert (stuck is None) == (seconds <= limit)
    assert stuck == (f"no rank made progress for {limit:g} s; given up", [])
