"""Runs the systems of sections and writes the report on them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench.lib import machine
from bench.lib.processes import Outcome, System, run_rounds
from bench.lib.sections import Section, as_json, markdown
from dslide.util.units import counted

MOST_OTHERS = 0.1  # of the cores' time; on a busy machine PyTorch was 4 times slower on 2 threads than on 1


def run_command(main: Callable[[], int]) -> NoReturn:
    """Runs a benchmark's command; Ctrl-C ends it with one sentence."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: no report was written")


def log(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)


def exit_code(outcomes: Mapping[System, Outcome]) -> int:
    """1 if a system failed, otherwise 0; one that can't run here is no failure."""
    return int(any(outcome.failed for outcome in outcomes.values()))


def measure(
    sections: Sequence[Section],
    seeds: Sequence[int],
    out: Path,
    details: Mapping[str, Any],
    conclude: Callable[[Mapping[System, Outcome]], str] = lambda outcomes: "",
    overview: Callable[[Mapping[System, Outcome]], str] = lambda outcomes: "",
) -> dict[System, Outcome]:
    """Runs every system once for each seed, a round; writes and prints the report. `details` are added to its JSON
    form, and the text of `conclude`, in markdown, to its end; that of `overview` comes before the sections."""
    start, others = time.perf_counter(), machine.OtherLoad()
    systems = [system for section in sections for system in section.systems]
    outcomes = run_rounds(systems, seeds, log)
    minutes = (time.perf_counter() - start) / 60
    share = others.share()
    about = f"Medians (lowest to highest) over {counted(len(seeds), 'round')}, taken in {minutes:.1f} minutes."
    if share is not None:
        about += f" Other programs took {share:.0%} of the cores' time."
        if share > MOST_OTHERS:
            about += " **That is too much: neither results nor ratios can be trusted.**"
    if text := overview(outcomes):
        about += f"\n\n{text}"
    conclusion = conclude(outcomes)
    report = markdown(sections, outcomes, about) + (f"\n{conclusion}\n" if conclusion else "")
    details = {**details, "machine": machine.facts(), "minutes": minutes, "share_of_others": share}
    details |= {"conclusion": conclusion}
    write_report(out, report, as_json(sections, outcomes, details))
    return outcomes


def write_report(out: Path, report: str, contents: Mapping[str, Any]) -> None:
    """Writes report.md and report.json, and prints the former."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(report)
    (out / "report.json").write_text(json.dumps(contents, indent=1, default=str) + "\n")
    print(report)
    log(f"written to {out}/report.md and report.json")
