"""Where the time of training goes, phase by phase, against what the machine was measured to do.

profile = Profile(measure_speeds(threads))
Trainer(config, features, labels, profile=profile).fit(data)
print(profile.table())
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from dslide.comm import Communicator
from dslide.comm.future import Future
from dslide.model.network import Network
from dslide.training import phases, work
from dslide.training.work import Work
from dslide.util.tables import plain_table
from dslide.util.threads import Speeds

Formula = Callable[..., Work | None]  # of the arguments of a method: its work

COUNTED = ("flops", "gflops", "share_of_peak", "bytes", "gigabytes_per_second", "share_of_copying", "bound")
COLUMNS = {  # of the table, beside the phase: title, figure and format
    "ms per step": ("ms_per_step", ".3f"),
    "of time": ("share_of_time", ".1%"),
    "GFLOP/s": ("gflops", ".1f"),
    "of peak": ("share_of_peak", ".0%"),
    "GB/s": ("gigabytes_per_second", ".1f"),
    "of copying": ("share_of_copying", ".0%"),
    "bound": ("bound", ""),
}


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
        row: dict[str, Any] = {
            "calls": self.calls,
            "seconds": self.seconds,
            "ms_per_step": 1e3 * self.seconds / max(steps, 1),
            "share_of_time": self.seconds / max(seconds, 1e-9),
        }
        if not (self.known and self.bytes > 0 and self.seconds > 0):
            return row | dict.fromkeys(COUNTED)
        gflops, gigabytes = self.flops / self.seconds / 1e9, self.bytes / self.seconds / 1e9
        of_peak, of_copying = gflops / speeds.gflops, gigabytes / speeds.copy_gigabytes
        bound = "arithmetic" if of_peak > of_copying else "memory"
        values = (self.flops, gflops, of_peak, self.bytes, gigabytes, of_copying, bound)
        return row | dict(zip(COUNTED, values, strict=True))


class Profile:
    """Adds up what training does between `begin` and `end`, on this rank. `speeds` is what it is held against; without
    them only times are added up, which costs less."""

    def __init__(self, speeds: Speeds | None = None) -> None:
        self.speeds, self._counts_work = speeds or Speeds(1.0, 1.0), speeds is not None
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

    def reset(self) -> dict[str, Phase]:
        """The phases so far; begins again with empty ones."""
        before, self.phases = self.phases, {name: Phase() for name in phases.ALL}
        return before

    @contextmanager
    def phase(self, name: str, formula: Callable[[], Work | None] | None = None) -> Iterator[None]:
        """Time inside is the phase's, but for phases inside of it. `formula` gives its work."""
        if self._comm is None:
            yield
            return
        self._charge()
        outer, self._current = self._current, name
        yield
        self._charge()
        self._current = outer
        phase, done = self.phases[name], formula() if formula and self._counts_work else None
        phase.calls += 1
        if done is None:
            phase.known = False
        else:
            phase.flops, phase.bytes = phase.flops + done.flops, phase.bytes + done.bytes

    def timed(self, name: str, method: Callable[..., Any], formula: Formula | None = None) -> Callable[..., Any]:
        """A method whose calls are charged to a phase; `formula` of its arguments gives the work. If it returns a
        Future, waiting for that is charged too."""

        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            with self.phase(name, partial(formula, *arguments, **options) if formula else None):
                result = method(*arguments, **options)
            if isinstance(result, Future):
                result.wait = self.timed(name, result.wait)  # type: ignore[method-assign]
            return result

        return call

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
        flops, moved = sum(phase.flops for phase in counted), sum(phase.bytes for phase in counted)
        used["all"] = Phase(seconds=self.seconds, flops=flops, bytes=moved)
        rows = {name: phase.figures(self.steps, self.seconds, self.speeds) for name, phase in used.items()}
        rows["all"]["bound"] = None  # the phases' bounds differ
        return rows

    def table(self) -> str:
        """The figures for people, and what they are held against."""
        lines = [["phase", *COLUMNS]]
        for name, row in self.figures().items():
            cells = ("-" if row[key] is None else f"{row[key]:{format}}" for key, format in COLUMNS.values())
            lines.append([name, *cells])
        return "\n".join([
            *plain_table(lines, "<>>>>>><"),
            f"{self.steps:,} steps; of peak, of copying: of what this machine was measured to do at best,",
            f"{describe_speeds(self.speeds)}; operations and bytes are the least that a phase needs",
        ])  # fmt: skip


def describe_speeds(speeds: Speeds) -> str:
    """Speeds in words."""
    return f"{speeds.gflops:.0f} GFLOP/s in multiply-adds and {speeds.copy_gigabytes:.1f} GB/s in copying"


def attach(profile: Profile, network: Network) -> None:
    """Charges the stages of the network's steps to phases of the profile, from now on: methods of its objects are
    replaced by timed ones, so that the code that is profiled knows nothing of it."""
    step, loss, output = network.step, network.loss, network.output

    def charge(owner: object, method: str, phase: str, formula: Formula | None = None) -> None:
        setattr(owner, method, profile.timed(phase, getattr(owner, method), formula))

    charge(network, "input_of", phases.READING, work.taking_input)
    charge(step, "hidden_active", phases.ACTIVE)
    charge(step, "forward", phases.HIDDEN_FORWARD, lambda i, x, active, _: work.forward(network.layers[i], x, active))
    charge(step, "output_active", phases.ACTIVE)
    for stage in ("look_up_prior", "add_prior", "learn_prior"):
        charge(step, stage, phases.LABEL_PRIOR)
    charge(
        step, "backward", phases.HIDDEN_BACKWARD,
        lambda i, x, a, active, gradient, step: work.learn(network.layers[i], x, active, i > 0),
    )  # fmt: skip
    charge(loss, "find_labels", phases.ACTIVE)
    charge(loss, "slot_gradient", phases.SECOND_PASS, lambda *_: Work(0, 0))  # small beside the products
    charge(output, "forward", phases.FIRST_PASS, partial(work.forward, output))
    charge(output, "learn", phases.SECOND_PASS, lambda x, active, dz: work.learn(output, x, active))
    charge(output, "softmax_forward", phases.FIRST_PASS, partial(work.softmax_forward, output))
    for method in ("softmax_backward", "sigmoid_learn", "sigmoid_backward"):
        charge(output, method, phases.SECOND_PASS, partial(getattr(work, method), output))
    for method in ("softmax_step", "sigmoid_step"):  # whose last argument is `kept`
        charge(output, method, phases.SECOND_PASS, lambda x, a, *more: work.output_step(output, x, a, more[-1]))
    for layer in network.layers:
        charge(layer, "rebuild_tables", phases.REBUILDING)
        if layer.lsh is not None:
            charge(layer.lsh, "look_up", phases.HASH_LOOKUP)
    if network.cells is not None:
        charge(network.cells, "build", phases.REBUILDING)
        charge(network.cells, "look_up", phases.HASH_LOOKUP)
    if network.shard.size > 1:
        for method in ("all_gather", "all_gather_sparse", "reduce_scatter", "log_normaliser", "best_hits", "summary"):
            charge(network.collectives, method, phases.PACKING)
