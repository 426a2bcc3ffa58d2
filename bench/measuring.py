"""Runs the systems of some sections and writes the report on them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import machine
from .report import Section, as_json, markdown
from .runs import Outcome, System, run_rounds

MOST_DISTURBANCE = 0.1  # on a busy machine PyTorch was seen to be a quarter as fast on 2 threads as on 1


def to_end(main: Callable[[], int]) -> NoReturn:
    """Runs a benchmark's command; Ctrl-C is one sentence."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: no report was written")


def nothing(outcomes: Mapping[System, Outcome]) -> str:
    """What most reports end with."""
    return ""


def measure(
    sections: Sequence[Section],
    seeds: Sequence[int],
    out: Path,
    details: Mapping[str, Any],
    conclude: Callable[[Mapping[System, Outcome]], str] = nothing,
) -> dict[System, Outcome]:
    """Runs every system once for each seed, a round; writes and prints the report, the details in its JSON form. What
    `conclude` makes of the figures, in markdown, is its end."""
    start, disturbance = time.perf_counter(), machine.Disturbance()
    systems = [system for section in sections for system in section.systems]
    outcomes = run_rounds(systems, seeds, lambda line: print(line, file=sys.stderr, flush=True))
    minutes = (time.perf_counter() - start) / 60
    others = disturbance.share()
    about = f"Medians (lowest to highest) over {len(seeds)} rounds, taken in {minutes:.1f} minutes."
    if others is not None:
        about += f" Other programs took {others:.0%} of the cores' time meanwhile."
        if others > MOST_DISTURBANCE:
            about += " **That is too much: neither figures nor ratios are to be trusted.**"
    conclusion = conclude(outcomes)
    report = markdown(sections, outcomes, about) + (f"\n{conclusion}\n" if conclusion else "")
    details = {**details, "machine": machine.facts(), "minutes": minutes, "share_of_others": others}
    details["conclusion"] = conclusion
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(report)
    (out / "report.json").write_text(json.dumps(as_json(sections, outcomes, details), indent=1, default=str) + "\n")
    print(report)
    print(f"written to {out}/report.md and report.json", file=sys.stderr)
    return outcomes
