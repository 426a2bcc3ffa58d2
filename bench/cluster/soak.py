"""Injects faults into runs with --elastic: ranks and the supervisor are killed, stopped, terminated and limited, disks
and shared memory full, shards corrupt, links cut and slow, hosts gone and back, clocks jump. Runs on one machine and on
an emulated cluster take turns. Reports the cost beside the same run without faults; report.md and report.json.

    sudo python -m bench.cluster.soak [--faults 500] [--piece 9] [--ranks 4] [--seed 0] [--out build/soak]

It stops after the minutes of a piece, and the same command goes on where it stopped, until there were so many faults
and the run that had the last one has ended. The exit code is 1 if steps were lost, training did not go on after a
fault, processes remained, or a run was less accurate than the one without faults.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.cluster.soak_faults import FAULTS, SURVIVED
from bench.cluster.soak_report import PAUSE, Fault, Round, Soak
from bench.cluster.soak_run import CHECKPOINT_SECONDS, RECOVERY_SECONDS, WATCHDOG, ElasticRun, wait_for
from bench.lib.machine import facts
from bench.lib.measuring import log, run_command, write_report
from bench.lib.workload import Shape, make_data
from dslide import netlab
from dslide.checkpoint.manifest import MANIFEST

SHAPE = Shape(rows=20_000, features=10_000, labels=10_000)
WAIT = (0.5, 3.0)  # seconds between a recovery and the next fault
TRIAL_EPOCHS = 3  # to measure the speed, from which epochs are computed
LAB = f"dslidesoak{os.getpid()}"


@dataclass
class State:
    """What a piece leaves for the next one."""

    seed: int
    ranks: int
    epochs: int = 0
    reference: dict[str, Any] | None = None  # summary of the run without faults
    rounds: list[Round] = field(default_factory=list)
    minutes: float = 0.0

    @property
    def faults(self) -> int:
        return sum(len(found.faults) for found in self.rounds)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> State:
        found = json.loads(path.read_text())
        return cls(**found | {"rounds": [Round.of(each) for each in found["rounds"]]})


class Piece:
    """One piece of a soak, in a folder."""

    def __init__(self, out: Path, state: State, minutes: float) -> None:
        self.out, self.state, self._end = out, state, time.monotonic() + 60 * minutes
        self._begin, self._before = time.monotonic(), state.minutes
        self._data = make_data(out / "data", SHAPE)
        self._clock = out / "clock.so"
        source, flags = Path(__file__).with_name("clock.c"), ["-std=gnu11", "-O1", "-shared", "-fPIC"]
        subprocess.run([os.environ.get("CC", "cc"), *flags, source, "-o", self._clock, "-ldl"], check=True)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end

    def save(self) -> None:
        self.state.minutes = self._before + (time.monotonic() - self._begin) / 60
        self.state.save(self.out / "state.json")

    def undisturbed(self, name: str, epochs: int) -> ElasticRun:
        """A run without faults, at its end."""
        run = ElasticRun(self.out / name, self._data, self.state.ranks, epochs, None, self._clock)
        run.clear()
        run.start()
        try:
            if run.process.wait() != 0:
                raise SystemExit(f"a run without faults failed: {run.output()}")
        finally:
            run.kill_all()
        return run

    def disturb(self, number: int, found: Round, most: int) -> None:
        """Injects faults into a run until it ends, or the piece, or there were so many."""
        lab = LAB if found.on_lab else None
        run = ElasticRun(self.out / f"run-{number}", self._data, self.state.ranks, self.state.epochs, lab, self._clock)
        if not found.faults:
            run.clear()
        run.start()
        try:
            wait_for(lambda: run.ended or run.trains_since(0), RECOVERY_SECONDS)
            while self.state.faults < most and not self.is_over:
                self._fault(run, found)
                if run.ended:
                    break
            if self.state.faults >= most:
                wait_for(lambda: run.ended or self.is_over, RECOVERY_SECONDS * 10)
            if not run.ended:
                found.marks.append(Fault(PAUSE, time.time()))
                run.interrupt()
                return
            wait_for(lambda: not run.processes(), 15)
            self._measure(run, found)
        finally:
            found.log = run.log()
            found.tracebacks = run.output().count("Traceback")
            run.kill_all()

    def _fault(self, run: ElasticRun, found: Round) -> None:
        inject, count = FAULTS[found.on_lab], self.state.faults
        cycle, place = divmod(count, len(inject))
        kind = random.Random(f"{self.state.seed} {cycle}").sample(list(inject), len(inject))[place]
        chance = random.Random(f"{self.state.seed} fault {count}")
        if wait_for(lambda: run.ended, chance.uniform(*WAIT)):
            return
        with suppress(ProcessLookupError, FileNotFoundError):  # the run has ended, or what it is to hit
            done = max(record["step"] for record in run.log())
            fault = Fault(kind, inject[kind](run, chance))
            end, survived = time.time(), kind in SURVIVED

            def settled() -> bool:
                return run.trains_since(fault.time) or (survived and run.steps_since(end + 1))

            fault.settled = wait_for(lambda: run.ended or settled(), RECOVERY_SECONDS)
            seconds = time.time() - fault.time
            # Without steps beyond the furthest, the supervisor would wait longer before each restart.
            wait_for(lambda: run.ended or run.log()[-1]["step"] > done, RECOVERY_SECONDS)
            found.faults.append(fault)
            log(f"{time.strftime('%H:%M:%S')} fault {count + 1}: {kind}, {seconds:.1f} s")
            self.save()

    def _measure(self, run: ElasticRun, found: Round) -> None:
        """At the end of a run."""
        found.summary, found.total_steps = run.summary(), run.last_start()["total_steps"]
        found.processes_left = [str(process) for process in run.processes()]
        folders = list((run.folder / "checkpoints").glob("step-*"))
        found.incomplete_checkpoints = sum(not (folder / MANIFEST).exists() for folder in folders)


def soak(out: Path, ranks: int, seed: int, faults: int, minutes: float, round_minutes: float) -> int:
    out = out.resolve()
    path = out / "state.json"
    state = State.load(path) if path.exists() else State(seed, ranks)
    piece = Piece(out, state, minutes)
    if state.reference is None:
        records = piece.undisturbed("trial", TRIAL_EPOCHS).log()
        speed = [record["samples_per_second"] for record in records if record["record"] == "epoch"][-1]
        state.epochs = max(1, round(round_minutes * 60 * speed / SHAPE.rows))
        log(f"{speed:,.0f} samples/s: {state.epochs} epochs")
        state.reference = piece.undisturbed("reference", state.epochs).summary()
        piece.save()
    netlab.up(ranks, "unlimited", LAB)
    try:
        while not piece.is_over and (state.faults < faults or not state.rounds[-1].summary):
            if not state.rounds or state.rounds[-1].summary:
                state.rounds.append(Round(on_lab=len(state.rounds) % 2 == 1))
            piece.disturb(len(state.rounds), state.rounds[-1], faults)
            piece.save()
    finally:
        netlab.down(LAB)
        piece.save()
    found = Soak(state.rounds, state.reference or {}, state.minutes)
    about = (
        f"{ranks} ranks, {SHAPE.labels:,} labels, {state.epochs} epochs a run, seed {state.seed}; a checkpoint every "
        f"{CHECKPOINT_SECONDS} s, --watchdog {WATCHDOG}, {WAIT[0]:g} to {WAIT[1]:g} s between a recovery and the "
        f"next fault. {state.faults} of {faults} faults. The output of ranks and supervisor is in run-N.txt."
    )
    write_report(out, found.markdown(about), {"about": about, "machine": facts(), **found.as_json()})
    return int(found.failed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--faults", type=int, default=500, help="in all (default: 500)")
    parser.add_argument("--piece", type=float, default=60, help="minutes after which it stops (default: 60)")
    parser.add_argument("--round", type=float, default=2, help="minutes of a run without faults (default: 2)")
    parser.add_argument("--ranks", type=int, default=4, help="ranks (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder for data, runs and report")
    options = parser.parse_args()
    if options.ranks < 2 or min(options.faults, options.piece, options.round) <= 0:
        parser.error("expected at least 2 ranks, and numbers above 0")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    return soak(options.out, options.ranks, options.seed, options.faults, options.piece, options.round)


if __name__ == "__main__":
    run_command(main)
