"""A check of the constants in the defaults: each is chosen on all sets but one, and scored on that one.

Networks are trained on a part of the training rows, with one constant changed at a time; the other rows score them.
Test files are not read. A set has no say in what is chosen for it, so its rows tell what a new set can expect.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.accuracy.sets import DataSet
from bench.lib import machine
from bench.lib.measuring import log, write_report
from bench.lib.processes import Outcome, run_rounds
from bench.lib.tables import markdown_table

CONSTANTS = {  # option: factors on what the defaults take
    "prior_scale": (0.5, 2),
    "prior_learning_rate": (0.5, 1.5),
    "prior_hits": (0.5, 2),
    "random_negatives": (0.5, 2),
    "dropout_hidden": (0, 3),
    "learning_rate": (0.5, 2),
    "linear_negatives": (0.5, 2),
    "hidden": (0.5, 2),
    "epochs": (0.5, 1.5),
}
OF_SAMPLES = ("random_negatives", "prior_hits")  # options without use where all outputs are computed
DEFAULT = 1.0  # the factor of the defaults
SHARE = 0.1  # of the training rows that score
SEED = 0
METRICS = ("p_at_1", "p_at_3", "p_at_5")

Result = Mapping[str, Any]  # of a run


@dataclass(frozen=True)
class Choice:
    """What a set gets if all others choose."""

    left_out: str
    chosen: float  # factors
    own_best: float
    gain: float  # of the chosen one over the default, mean of METRICS
    regret: float  # of the chosen one against the set's own best


def score(result: Result) -> float:
    """What constants are chosen by."""
    return statistics.fmean(result[name] for name in METRICS)


def leave_one_out(results: Mapping[str, Mapping[float, Result]]) -> list[Choice]:
    """For each set (of two or more) the factor with the best mean score on all others; `results` has those of the same
    factors for every set, the default first, which is chosen where others are only as good."""
    found = []
    for left_out, own in results.items():
        others = [each for name, each in results.items() if name != left_out]
        chosen = max(own, key=lambda factor: statistics.fmean(score(each[factor]) for each in others))
        best = max(own, key=lambda factor: score(own[factor]))
        gain = score(own[chosen]) - score(own[DEFAULT])
        found.append(Choice(left_out, chosen, best, gain, score(own[best]) - score(own[chosen])))
    return found


def changed(config: Mapping[str, Any], option: str, factor: float) -> Any:
    """The value of an option times a factor; whole numbers stay whole, and at least 1."""
    value = config[option]
    if isinstance(value, list):
        return [changed({option: each}, option, factor) for each in value]
    return max(1, round(value * factor)) if isinstance(value, int) else round(value * factor, 10)


def measure_set(data: DataSet, options: Sequence[str]) -> dict[str, dict[float, Result]] | None:
    """The results of one set, by option and factor; None if a run failed."""
    default = _trained(data, "defaults", {})
    if default is None:
        return None
    found: dict[str, dict[float, Result]] = {}
    for option in options:
        found[option] = {DEFAULT: default}
        for factor in CONSTANTS[option]:
            config = default["config"]
            value = changed(config, option, factor)
            useless = value == config[option] or (option in OF_SAMPLES and config["output"] == "full")
            result = default if useless else _trained(data, f"{option} times {factor:g}", {option: value})
            if result is None:
                return None
            found[option][factor] = result
    return found


def _trained(data: DataSet, name: str, changes: Mapping[str, Any]) -> Result | None:
    system = data.system(name, data.reading | dict(changes), {"hold_out": SHARE})
    outcome: Outcome = run_rounds([system], [SEED], log)[system]
    return outcome.rounds[0] if outcome.rounds else None


def check_constants(sets: Sequence[DataSet], options: Sequence[str], out: Path) -> int:
    """Trains on the sets and writes OUT/constants/report.md and report.json; returns 1 if a set was left out because a
    run failed."""
    measured = {data.name: measure_set(data, options) for data in sets}
    failed = [name for name, found in measured.items() if found is None]
    results = {
        option: {name: found[option] for name, found in measured.items() if found is not None} for option in options
    }
    if len(sets) - len(failed) < 2:
        log("a set can't be left out: of two or more sets none would be left")
        return 1
    contents = {"machine": machine.facts(), "failed": failed, "share": SHARE, "seed": SEED, "results": results}
    write_report(out / "constants", report(results, failed), contents)
    return int(bool(failed))


def report(results: Mapping[str, Mapping[str, Mapping[float, Result]]], failed: Sequence[str] = ()) -> str:
    """The tables, in markdown; `results` by option, set and factor."""
    about = (
        "Each constant of the defaults is chosen on all sets but one, by the mean of P@1, P@3 and P@5 on rows held out "
        f"of training ({SHARE:.0%}, seed {SEED}), and scored on the same rows of the set left out. Gain is that of the "
        "chosen value over the default, regret that of the set's own best value, for which its own rows decide, over "
        "the chosen one: in points of that mean. One run each."
    )
    parts = ["# Constants, with each set left out", about]
    if failed:
        parts.append(f"Left out of all, because a run failed: {', '.join(failed)}.")
    choices = {option: leave_one_out(sets) for option, sets in results.items()}
    parts.append(_summary_table(choices))
    for option, sets in results.items():
        parts += [f"## {option}", _choice_table(option, sets, choices[option]), _result_table(option, sets)]
    return "\n\n".join(parts) + "\n"


def _summary_table(choices: Mapping[str, Sequence[Choice]]) -> str:
    rows = []
    for option, found in choices.items():
        kept = sum(choice.chosen == DEFAULT for choice in found)
        gains, regrets = [choice.gain for choice in found], [choice.regret for choice in found]
        means = [_points(statistics.fmean(gains)), _points(statistics.fmean(regrets))]
        rows.append([option, f"{kept} of {len(found)}", means[0], f"{_points(min(gains))} to {_points(max(gains))}",
                     means[1], _points(max(regrets))])  # fmt: skip
    return markdown_table(
        ["constant", "default chosen", "gain, mean", "lowest to highest", "regret, mean", "highest"], rows
    )


def _choice_table(option: str, sets: Mapping[str, Mapping[float, Result]], choices: Sequence[Choice]) -> str:
    rows = []
    for choice in choices:
        own = sets[choice.left_out]
        rows.append(
            [choice.left_out, _value(option, own, choice.chosen), _triple(own[choice.chosen]), _triple(own[DEFAULT]),
             _points(choice.gain), f"{_value(option, own, choice.own_best)}: {_triple(own[choice.own_best])}",
             _points(choice.regret)]
        )  # fmt: skip
    header = ["set left out", "chosen by the others", "P@1 / 3 / 5 with it", "with the default", "gain", "own best",
              "regret"]  # fmt: skip
    return markdown_table(header, rows)


def _result_table(option: str, sets: Mapping[str, Mapping[float, Result]]) -> str:
    """Every run: mean of P@1, P@3 and P@5, and seconds of training."""
    factors = [DEFAULT, *CONSTANTS[option]]
    rows = []
    for name, own in sets.items():
        cells = [f"{_value(option, own, f)}: {score(own[f]):.4f}, {own[f]['seconds']:.1f} s" for f in factors]
        rows.append([name, *cells])
    return markdown_table(["set", *["mean, seconds"] * len(factors)], rows)


def _value(option: str, own: Mapping[float, Result], factor: float) -> str:
    """The factor, and the value that it stands for on this set: unused if it changes nothing there."""
    name = "default" if factor == DEFAULT else f"times {factor:g}"
    value, default = own[factor]["config"][option], own[DEFAULT]["config"][option]
    if factor != DEFAULT and value == default:
        return f"{name} (unused)"
    return f"{name} ({', '.join(f'{each:g}' for each in (value if isinstance(value, list) else [value]))})"


def _triple(result: Result) -> str:
    return " / ".join(f"{result[name]:.3f}".removeprefix("0") for name in METRICS)


def _points(difference: float) -> str:
    return f"{100 * difference:+.2f}"
