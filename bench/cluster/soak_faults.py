"""The faults of a soak. Each function injects one into a run, and returns when it did, in seconds since 1970."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.cluster.soak_run import CHECKPOINT_SECONDS, RECOVERY_SECONDS, WATCHDOG, ElasticRun, wait_for
from dslide import netlab
from dslide.checkpoint.manifest import MANIFEST
from dslide.comm.mpi import launched_as

FAST_POLL = 0.002  # seconds
LIMITED_SECONDS = 2.0 * CHECKPOINT_SECONDS  # after which limits are removed from a rank that survives them
SMALL_FILES = 100_000  # bytes: logs can be written, arrays of a checkpoint can't
SLOW = "2mbit"
JUMP = 3600  # seconds by which a clock jumps, back or forth

Inject = Callable[[ElasticRun, random.Random], float]


def kill(process: int, number: signal.Signals = signal.SIGKILL) -> float:
    os.kill(process, number)
    return time.time()


def send(number: signal.Signals) -> Inject:
    return lambda run, chance: kill(run.rank_process(chance), number)


def kill_while_saving(run: ElasticRun, chance: random.Random) -> float:
    checkpoints = run.folder / "checkpoints"
    wait_for(lambda: run.ended or any(checkpoints.glob("*/.*.partial")), 4 * CHECKPOINT_SECONDS, FAST_POLL)
    return kill(run.rank_process(chance))


def kill_at_start(run: ElasticRun, chance: random.Random) -> float:
    """Kills a rank, and then one of those started in its place before they train."""
    before = set(run.processes())
    when = kill(run.rank_process(chance))
    fresh: list[int] = []

    def ranks_started() -> bool:
        fresh[:] = [pid for pid, its in run.processes().items() if pid not in before and launched_as(its)[1] > 1]
        return run.ended or len(fresh) >= run.ranks

    if wait_for(ranks_started, 30, FAST_POLL) and fresh:
        time.sleep(chance.uniform(0, 2))  # imports, rendezvous, reading data
        when = kill(chance.choice(fresh))
    return when


def limited(kind: int, most: int) -> Inject:
    """Sets a limit on a rank, and removes it if the rank survives."""

    def fault(run: ElasticRun, chance: random.Random) -> float:
        rank, begin = run.rank_process(chance), time.time()
        limits = resource.prlimit(rank, kind)
        resource.prlimit(rank, kind, (most, limits[1]))
        if not wait_for(lambda: run.ended or run.trains_since(begin), LIMITED_SECONDS):
            with suppress(ProcessLookupError):
                resource.prlimit(rank, kind, limits)
        return begin

    return fault


def corrupt_shard(run: ElasticRun, chance: random.Random) -> float:
    """One byte of the newest checkpoint is changed, and a rank killed."""
    checkpoints = run.folder / "checkpoints"
    wait_for(lambda: run.ended or len(list(checkpoints.glob(f"*/{MANIFEST}"))) > 1, RECOVERY_SECONDS)
    newest = max(path.parent for path in checkpoints.glob(f"*/{MANIFEST}"))
    shard = chance.choice(sorted(newest.glob("*.safetensors")))
    with open(shard, "r+b") as file:
        file.seek(chance.randrange(shard.stat().st_size // 2, shard.stat().st_size))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))
    return kill(run.rank_process(chance))


def jump_clock(run: ElasticRun, chance: random.Random) -> float:
    """The clock of a process jumps, and jumps back: of the supervisor or any rank but the first, whose log is read."""
    begin = time.time()
    process = chance.choice([run.process.pid, run.rank_process(chance, first=1)])
    run.shift_clock(process, chance.choice([-JUMP, JUMP]))
    time.sleep(WATCHDOG)
    run.shift_clock(0, 0)
    return begin


def suspend(run: ElasticRun, chance: random.Random) -> float:
    """All processes stop for longer than any of them may be silent, as when the machine sleeps."""
    begin, processes = time.time(), list(run.processes())
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        time.sleep(3 * WATCHDOG if number == signal.SIGSTOP else 0)
    return begin


def kill_supervisor(run: ElasticRun, _chance: random.Random) -> float:
    when = kill(run.process.pid)
    run.process.wait()
    run.start()
    return when


def interrupt_supervisor(run: ElasticRun, _chance: random.Random) -> float:
    when = time.time()
    if run.interrupt() and run.process.returncode != 0:
        run.start()
    return when


def fill_shared_memory(run: ElasticRun, chance: random.Random) -> float:
    """/dev/shm is full for some seconds, while ranks are to start again."""
    fill = Path(f"/proc/{run.process.pid}/root/dev/shm/fill")
    with suppress(OSError), open(fill, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    try:
        when = kill(run.rank_process(chance))
        time.sleep(chance.uniform(2, 6))
    finally:
        fill.unlink()
    return when


def cut_link(run: ElasticRun, chance: random.Random) -> float:
    """A node is cut off, by a link that goes down or one that drops everything, for longer than ranks wait or not."""
    assert run.lab is not None
    begin, node = time.time(), chance.randrange(run.ranks)
    netlab.cut(node, run.lab, silently=chance.random() < 0.5)
    time.sleep(chance.uniform(0.5, 3 * WATCHDOG))
    netlab.restore(node, run.lab)
    return begin


def slow_links(run: ElasticRun, chance: random.Random) -> float:
    assert run.lab is not None
    begin = time.time()
    netlab.set_rate(SLOW, run.lab)
    time.sleep(chance.uniform(1, 2 * WATCHDOG))
    netlab.set_rate("unlimited", run.lab)
    return begin


def lose_host(run: ElasticRun, chance: random.Random) -> float:
    """A node and what runs there are gone; it comes back when the others train."""
    assert run.lab is not None
    node = chance.randrange(run.ranks)
    netlab.cut(node, run.lab, silently=True)
    process, begin = run.last_start(node)["process"], time.time()
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    wait_for(lambda: run.ended or run.trains_since(begin), RECOVERY_SECONDS)
    netlab.restore(node, run.lab)
    return begin


SURVIVED: dict[str, Inject] = {  # without a restart, as a rule or sometimes
    "disk full": limited(resource.RLIMIT_FSIZE, 1000),
    "disk full for arrays": limited(resource.RLIMIT_FSIZE, SMALL_FILES),
    "out of memory": limited(resource.RLIMIT_AS, 0),
    "clock jumps": jump_clock,
    "all processes stopped, and continued": suspend,
    "link cut": cut_link,
    "links slow": slow_links,
}
ON_LAB: dict[str, Inject] = {"link cut": cut_link, "links slow": slow_links, "host gone and back": lose_host}
ON_ONE_MACHINE: dict[str, Inject] = {"shared memory full, rank killed": fill_shared_memory}
ANYWHERE: dict[str, Inject] = {
    **{kind: inject for kind, inject in SURVIVED.items() if kind not in ON_LAB},
    "rank killed": send(signal.SIGKILL),
    "rank killed, another at start-up": kill_at_start,
    "rank killed while saving": kill_while_saving,
    "rank stopped": send(signal.SIGSTOP),
    "rank terminated": send(signal.SIGTERM),
    "shard corrupt, rank killed": corrupt_shard,
    "supervisor killed": kill_supervisor,
    "supervisor interrupted": interrupt_supervisor,
}
FAULTS: dict[bool, dict[str, Inject]] = {True: ANYWHERE | ON_LAB, False: ANYWHERE | ON_ONE_MACHINE}  # by: on a lab
