"""Summaries of a sweep over a setting: which values keep speed or accuracy near the best."""

from __future__ import annotations

from collections.abc import Mapping

from bench.lib.processes import Outcome, System
from bench.lib.sections import Metric, summary

Points = list[tuple[float, float]]  # setting, value

NEAR_SPEED = 0.95  # of the best
NEAR_PRECISION = 0.01  # below the best


def points(systems: Mapping[int, System], outcomes: Mapping[System, Outcome], metric: Metric) -> Points:
    """Medians by setting, ascending, of the systems that have results."""
    found = {at: outcomes[system] for at, system in systems.items() if not outcomes[system].problem}
    return sorted((at, summary(outcome, metric).median) for at, outcome in found.items())


def near_share(curve: Points, share: float = NEAR_SPEED) -> list[float]:
    """Settings with at least this share of the best value."""
    best = max(value for _, value in curve)
    return [at for at, value in curve if value >= share * best]


def near_difference(curve: Points, difference: float = NEAR_PRECISION) -> list[float]:
    """Settings at most this much below the best value."""
    best = max(value for _, value in curve)
    return [at for at, value in curve if value >= best - difference]


def describe_speed(name: str, curve: Points) -> str:
    """The range of settings in which the speed is near the best."""
    if not curve:
        return f"- {name}: no results."
    near, best = near_share(curve), max(curve, key=lambda point: point[1])
    return (
        f"- {name}, speed: best at {best[0]:,.0f} ({best[1]:,.0f} samples/s); at least {NEAR_SPEED:.0%} of that from "
        f"{near[0]:,.0f} to {near[-1]:,.0f}; {curve[-1][1] / best[1]:.0%} of it at {curve[-1][0]:,.0f}."
    )


def describe_precision(name: str, curve: Points) -> str:
    """The range of settings in which the accuracy is near the best."""
    if not curve:
        return f"- {name}: no results."
    near, best = near_difference(curve), max(curve, key=lambda point: point[1])
    return (
        f"- {name}, accuracy: best at {best[0]:,.0f} (P@1 {best[1]:.3f}); at most {NEAR_PRECISION:g} below that from "
        f"{near[0]:,.0f} to {near[-1]:,.0f}."
    )


def describe_choice(name: str, speed: Points, precision: Points, default: float) -> str:
    """The fastest setting whose accuracy is near the best, and the default beside it."""
    fast = [(value, at) for at, value in speed if at in near_difference(precision)] if precision else []
    if not fast:
        return f"- {name}: no setting has results of both."
    value, at = max(fast)
    found, exact = dict(speed).get(default), dict(precision).get(default)
    now = "no results"
    if found is not None and exact is not None:
        now = f"{found / value:.0%} of its speed and P@1 {exact:.3f}"
    return (
        f"- **{name}: {at:,.0f} is the fastest of those within {NEAR_PRECISION:g} of the best P@1** "
        f"({value:,.0f} samples/s, P@1 {dict(precision)[at]:.3f}); the default, {default:,.0f}, has {now}."
    )
