"""Ranks that are MPI processes: how they find each other, and how a job ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support.mpi_run import mpiexec, run_mpi

from dslide.comm import launched_as

pytestmark = pytest.mark.waiting

# Errors of the communicator are printed, and end the job with code 4, or with that of the rank that failed.
TRAINING = """
import os, signal, sys, time
from dslide.comm import end_job, job
from dslide.errors import CommError, DataError, PeerFailed

def train(comm, disturb):
    for step in range(100):
        comm.step = step
        if step == 5 and comm.rank == comm.size - 1:
            disturb()
        comm.all_gather("activations", bytes(1000))

def run(disturb, limit):
    comm = job(limit)
    try:
        train(comm, disturb)
    except CommError as error:
        print(f"rank {comm.rank}: {error}\\n", end="", flush=True)
        end_job(comm, str(error), error.code if isinstance(error, PeerFailed) else 4)
    print(f"rank {comm.rank}: done\\n", end="", flush=True)
"""


def test_a_rank_that_stands_still_is_named_by_all_others() -> None:
    begin = time.monotonic()
    run = run_mpi(3, TRAINING + "run(lambda: os.kill(os.getpid(), signal.SIGSTOP), limit=2.0)")
    assert run.code == 4, run
    assert 'exchange "activations" of step 5: rank 2 silent for 2 s; given up' in run.stdout
    assert "done" not in run.stdout
    assert time.monotonic() - begin < 30


def test_a_killed_rank_ends_the_job() -> None:
    run = run_mpi(3, TRAINING + "run(lambda: os.kill(os.getpid(), signal.SIGKILL), limit=50.0)", timeout=30)
    assert run.code != 0, run
    assert "done" not in run.stdout


def test_an_error_nobody_catches_ends_the_job_with_one_traceback() -> None:
    program = TRAINING + "train(job(50.0), lambda: 1 / 0)"
    run = run_mpi(3, program, timeout=30)
    assert run.code == 1, run
    assert run.stderr.count("Traceback") == 1
    assert "ZeroDivisionError" in run.stderr


def test_an_error_of_all_ranks_has_one_traceback() -> None:
    program = TRAINING + "def work(): raise DataError('no data')\njob(50.0).together('load', work)"
    run = run_mpi(3, program, timeout=30)
    assert run.code == 1, run
    assert run.stderr.count("Traceback") == 1
    assert "DataError: no data" in run.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_leaves_early_is_named_at_once(code: int) -> None:
    run = run_mpi(3, TRAINING + f"run(lambda: sys.exit({code}), limit=50.0)", timeout=30)
    assert run.code != 0, run
    assert 'exchange "activations" of step 5: rank 2 has ended' in run.stdout
    assert "done" not in run.stdout


def test_the_code_of_the_rank_that_failed_is_that_of_the_job() -> None:
    run = run_mpi(3, TRAINING + "run(lambda: end_job(job(), 'no space left', 3), limit=50.0)", timeout=30)
    assert run.code == 3, run
    assert "done" not in run.stdout


def test_a_large_message_that_nobody_takes_does_not_hold_up_the_end() -> None:
    program = """
import time
from dslide.comm import job
comm = job(50.0)
comm.barrier("start")
comm.post("never waited for", [bytes(10_000_000)] * comm.size)
time.sleep(0.2 * comm.rank)
"""
    run = run_mpi(2, program, timeout=30)
    assert run.code == 0, run


def test_a_job_that_is_stopped_and_continued_goes_on() -> None:
    program = """
import os, subprocess, time
from dslide.comm import job
comm = job(1.0)
pids = " ".join(map(str, comm.gather_objects("pids", os.getpid())))
if comm.rank == 0:
    shell = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -STOP {pids}; sleep 2.5; kill -CONT {pids}"])
stopped = False
for step in range(40):  # while rank 0 sleeps, the others wait
    before = time.monotonic()
    time.sleep(0.05 * (comm.rank == 0))
    comm.barrier("step")
    stopped = stopped or time.monotonic() - before > 2
assert stopped
if comm.rank == 0:
    shell.wait()
print("done\\n", end="")
"""
    run = run_mpi(3, program, timeout=30)
    assert run.code == 0, run
    assert run.stdout.count("done") == 3


def test_the_limit_stays_until_another_is_given() -> None:
    program = """
from dslide.comm import job
comm = job(5.0)
assert job() is comm and comm.limit == 5.0 and comm.size == 2
assert job(7.0) is comm and comm.limit == 7.0
"""
    run = run_mpi(2, program)
    assert run.code == 0, run


# ---- launchers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "rank_and_size"),
    [
        ({}, (0, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_FD": "7"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        # a task of srun, two out of the eight of the job
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"},
            (1, 2),
        ),
        # a batch script, and mpiexec in it
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "11"}, (0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "PMI_RANK": "3", "PMI_SIZE": "8"}, (3, 8)),
        ({"PMI_RANK": "", "PMI_SIZE": "4"}, (0, 1)),
        ({"PMI_RANK": "1"}, (0, 1)),
    ],
)
def test_rank_and_size_from_the_launcher(environment: dict[str, str], rank_and_size: tuple[int, int]) -> None:
    assert launched_as(environment) == rank_and_size


def alone(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program without a launcher, though these variables may speak of one."""
    launchers = ("PMI", "OMPI", "SLURM")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    return subprocess.run(
        [sys.executable, "-c", program], env={**environment, **variables}, capture_output=True, text=True, timeout=60
    )


PRINT_ERROR = """
from dslide.comm import job
from dslide.errors import ConfigError
try:
    print(job().size)
except ConfigError as error:
    print(error)
"""


def test_without_a_launcher_a_job_has_one_rank() -> None:
    assert alone(PRINT_ERROR).stdout == "1\n"


def test_a_launcher_of_another_mpi() -> None:
    mpiexec()  # or skip
    run = alone(PRINT_ERROR, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    expected = "started as rank 1 of 2, but MPI sees 1: mpi4py uses another MPI than the launcher, .+\n"
    assert re.fullmatch(expected, run.stdout), run


def test_ranks_without_mpi4py() -> None:
    program = "import sys; sys.modules['mpi4py'] = None" + PRINT_ERROR
    run = alone(program, PMI_RANK="1", PMI_SIZE="2")
    assert run.stdout.startswith("this is rank 1 of 2, but mpi4py doesn't work ("), run
    assert "pip install 'dslide[mpi]'" in run.stdout


def test_a_start_that_takes_too_long() -> None:
    program = """
import os, time
from dslide.comm import job, liveness
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    time.sleep(60)
liveness.MPI_START = 1.0
job()
"""
    run = run_mpi(2, program, timeout=30)
    assert run.code != 0, run
    assert "dslide: error: rank 0 of 2: MPI did not start within 1 s; are all ranks running?" in run.stderr


# Rank 1 gets a signal in training, and so all ranks stop; rank 0 gets its own only later.
LATE_SIGNAL = """
import atexit, os, signal, subprocess, sys, time
from contextlib import suppress

number, when = int(sys.argv[1]), sys.argv[2]

def at_exit():
    if comm.rank == 1:
        time.sleep(1)  # rank 0 waits for this one in MPI_Finalize
    elif when == "at exit":
        subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -{number} {os.getpid()}"])

atexit.register(at_exit)  # runs when the communicator has been closed

from dslide.comm import job
from dslide.util.signals import deferred_interrupt

comm = job(20.0)
with suppress(KeyboardInterrupt), deferred_interrupt() as received:
    if comm.rank == 1:
        signal.raise_signal(number)
    if any(comm.gather_objects("step", received())):
        raise KeyboardInterrupt
if when == "after training" and comm.rank == 0:
    signal.raise_signal(number)
comm.barrier("saved")
print(f"rank {comm.rank} has saved\\n", end="", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["after training", "at exit"])
def test_a_signal_that_reaches_a_rank_late_does_not_end_it_before_it_has_saved(number: int, when: str) -> None:
    run = run_mpi(2, LATE_SIGNAL, int(number), when, timeout=30)
    assert run.code == 0, run
    assert sorted(run.stdout.splitlines()) == ["rank 0 has saved", "rank 1 has saved"]
