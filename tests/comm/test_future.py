"""Results that are waited for."""

from __future__ import annotations

from dslide.comm.future import Future


def test_a_future_is_finished_once_and_only_when_it_is_waited_for() -> None:
    calls: list[int] = []
    future = Future(lambda: calls.append(1) or len(calls))
    assert calls == []
    assert future.wait() == future.wait() == 1
    assert calls == [1]
    assert Future.done("there").wait() == "there"
