"""What jobs leave in /dev/shm, seen in a /dev/shm of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launch.test_launcher import LIMIT, PROGRAM, folder  # noqa: F401

pytestmark = pytest.mark.waiting
# Starts a job, and shows what /dev/shm has while ranks run and when all processes of the job were killed.
KILL_ALL = """
import os, subprocess, sys, time
from pathlib import Path
from launch.test_launcher import processes_of
folder = Path(sys.argv[1])
job = subprocess.Popen([*sys.argv[2:], "launch", "2", "train", str(folder)])
while not all((folder / f"begun-{rank}").exists() for rank in range(2)):
    time.sleep(0.02)
print(os.listdir("/dev/shm"))
job.kill()
for line in processes_of(folder):
    if int(line.split()[0]) != os.getpid() and "train" in line:
        os.kill(int(line.split()[0]), 9)
job.wait()
time.sleep(0.5)
print(os.listdir("/dev/shm"))
"""
# Kills all ranks of a job after MPI has started, before dslide does anything.
KILL_RANKS = """
import os, sys
from dslide.launch.launcher import launch
rank = "import os; from mpi4py import MPI; print(os.listdir('/dev/shm'), flush=True); MPI.COMM_WORLD.Barrier(); "
rank += "os.kill(os.getpid(), 9)"
print(launch([sys.executable, "-c", rank], 2))
print(os.listdir("/dev/shm"))
"""


def in_own_memory(size: str, *words: object) -> subprocess.CompletedProcess[str]:
    """What a command prints in whose /dev/shm is nothing yet, and there is room for so much."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, timeout=LIMIT).returncode:
        pytest.skip("this system has no user namespaces")
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    command = [*unshare, "sh", "-c", mount, "sh", *map(str, words)]
    tests = str(Path(__file__).parents[1])
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=tests)


def test_a_full_shared_memory_is_named_with_figures(folder: Path) -> None:  # noqa: F811
    ended = in_own_memory("1M", *PROGRAM, "launch", 2, "speak", folder)
    assert ended.returncode == 4
    sizes = "1.05 MB of 1.05 MB are free, and MPI needs 2.12 MB for 2 ranks"
    assert ended.stderr == f"dslide: error: ranks 0 and 1 could not be started: /dev/shm is full: {sizes}\n"
    assert in_own_memory("2200k", *PROGRAM, "launch", 2, "speak", folder).returncode == 0


def test_killed_processes_leave_no_shared_memory_behind(folder: Path) -> None:  # noqa: F811
    ended = in_own_memory("50%", sys.executable, "-c", KILL_ALL, folder, *PROGRAM)
    assert ended.stdout == "[]\n[]\n"  # even the agent was killed: the names were gone before


def test_ranks_killed_when_they_start_leave_no_shared_memory_behind() -> None:
    ended = in_own_memory("50%", sys.executable, "-c", KILL_RANKS)
    first, last = ended.stdout.splitlines()
    assert first.startswith("Outcome(code=4, ")
    assert last == "[]"
    assert ended.stderr.startswith("dslide: error: ranks 0 and 1 could not be started (killed by SIGKILL)")
    assert "mpich_shm_" in ended.stderr  # while they lived
