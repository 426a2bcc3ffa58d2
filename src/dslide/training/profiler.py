"""Where the time of training goes, phase by phase, against what the machine was measured to do.

profile = Profile(measure_speeds(threads))
Trainer(config, features, labels, profile=profile).fit(data)
print(profile.table())
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from dslide.comm import Communicator
from dslide.training import phases
from dslide.training.work import Work
from dslide.util.cpu import Speeds

COLUMNS = ("phase", "ms per step", "of time", "GFLOP/s", "of peak", "GB/s", "of copying", "bound")


@dataclass
class Phase:
    """What a phase added up to."""

    calls: int = 0
    seconds: float = 0.0  # without phases inside of it, and without waiting
    flops: int = 0
    bytes: int = 0
    known: bool = True  # operations and bytes of every call are; if not, those of none count

    def figures(self, steps: int, seconds: float, speeds: Speeds) -> dict[str, Any]:
        """One row of the table, for so many steps that took so many seconds in all; None is what is not known."""
        counted = self.known and self.bytes > 0 and self.seconds > 0
        gflops = self.flops / self.seconds / 1e9 if counted else None
        gigabytes = self.bytes / self.seconds / 1e9 if counted else None
        of_peak = gflops / speeds.gflops if gflops is not None else None
        of_copying = gigabytes / speeds.copy_gigabytes if gigabytes is not None else None
        bound = None
        if of_peak is not None and of_copying is not None:
            bound = "arithmetic" if of_peak > of_copying else "memory"
        return {
            "calls": self.calls,
            "seconds": self.seconds,
            "ms_per_step": 1e3 * self.seconds / max(steps, 1),
            "share_of_time": self.seconds / max(seconds, 1e-9),
            "flops": self.flops if counted else None,
            "gflops": gflops,
            "share_of_peak": of_peak,
            "bytes": self.bytes if counted else None,
            "gigabytes_per_second": gigabytes,
            "share_of_copying": of_copying,
            "bound": bound,
        }


class Profile:
    """Adds up what training does between `begin` and `end`, on this rank. `speeds` is what it is held against."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds = speeds
        self.steps = 0
        self.phases = {name: Phase() for name in phases.ALL}
        self._comm: Communicator | None = None  # None: not between begin and end
        self._now = self._waited = 0.0  # when time was last charged, and the communicator's waiting by then
        self._current = phases.REST

    @property
    def seconds(self) -> float:
        """Time between begin and end, all of which is some phase's."""
        return sum(phase.seconds for phase in self.phases.values())

    def begin(self, comm: Communicator) -> None:
        """From now on time counts."""
        self._comm, self._current = comm, phases.REST
        self._now, self._waited = self._clocks(comm)

    def end(self) -> None:
        """Time counts no longer."""
        self._charge()
        self._comm = None

    @contextmanager
    def phase(self, name: str, formula: Callable[..., Work | None] | None, *arguments: Any) -> Iterator[None]:
        """Time inside is the phase's, but for phases inside of it. `formula` of the arguments is its work."""
        if self._comm is None or (name == phases.PACKING and self._comm.size == 1):
            yield
            return
        self._charge()
        outer, self._current = self._current, name
        yield
        self._charge()
        self._current = outer
        phase, work = self.phases[name], formula(*arguments) if formula else None
        phase.calls += 1
        if work is None:
            phase.known = False
        else:
            phase.flops += work.flops
            phase.bytes += work.bytes

    def _charge(self) -> None:
        """Gives the time since it was last called to the phase at hand, and what was waiting in it to that phase."""
        assert self._comm is not None
        now, waited = self._clocks(self._comm)
        waiting = waited - self._waited
        self.phases[self._current].seconds += now - self._now - waiting
        self.phases[phases.WAITING].seconds += waiting
        self._now, self._waited = now, waited

    @staticmethod
    def _clocks(comm: Communicator) -> tuple[float, float]:
        """Seconds now, and seconds waited for other ranks so far."""
        return time.perf_counter(), comm.wait_seconds if comm.size > 1 else 0.0

    def figures(self) -> dict[str, dict[str, Any]]:
        """Rows of the table by phase, those without any time left out, and "all" at the end."""
        used = {name: phase for name, phase in self.phases.items() if phase.seconds > 0}
        counted = [phase for phase in used.values() if phase.known]
        used["all"] = Phase(
            seconds=self.seconds,
            flops=sum(phase.flops for phase in counted),
            bytes=sum(phase.bytes for phase in counted),
        )
        rows = {name: phase.figures(self.steps, self.seconds, self.speeds) for name, phase in used.items()}
        rows["all"]["bound"] = None  # the phases' bounds differ
        return rows

    def table(self) -> str:
        """The figures for people, and what they are held against."""
        lines = [COLUMNS]
        for name, row in self.figures().items():
            lines.append(
                (
                    name,
                    f"{row['ms_per_step']:.3f}",
                    f"{row['share_of_time']:.1%}",
                    _shown(row["gflops"], ".1f"),
                    _shown(row["share_of_peak"], ".0%"),
                    _shown(row["gigabytes_per_second"], ".1f"),
                    _shown(row["share_of_copying"], ".0%"),
                    row["bound"] or "-",
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
        text = []
        for line in lines:
            name, *numbers, bound = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            text.append("  ".join([line[0].ljust(widths[0]), *numbers, bound.strip()]).rstrip())
        text.append(
            f"{self.steps:,} steps; of peak, of copying: of what this machine was measured to do at best,\n"
            f"{describe_speeds(self.speeds)}; operations and bytes are the least that a phase needs"
        )
        return "\n".join(text)


def describe_speeds(speeds: Speeds) -> str:
    """Speeds in words."""
    return f"{speeds.gflops:.0f} GFLOP/s in multiply-adds and {speeds.copy_gigabytes:.1f} GB/s in copying"


def timed(
    profile: Profile | None, name: str, formula: Callable[..., Work | None] | None = None, *arguments: Any
) -> AbstractContextManager[None]:
    """A phase of the profile if there is one, and otherwise next to nothing."""
    return _UNTIMED if profile is None else profile.phase(name, formula, *arguments)


_UNTIMED: AbstractContextManager[None] = nullcontext()


def _shown(value: float | None, format: str) -> str:
    return "-" if value is None else f"{value:{format}}"
