"""Runs a program on real MPI ranks of this machine, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest


class MpiRun(NamedTuple):
    code: int  # of mpiexec
    stdout: str
    stderr: str


def run_mpi(size: int, program: str | Path, *args: object, timeout: float = 60) -> MpiRun:
    """Runs a Python program (a file, or the source itself) on `size` ranks. The test that calls it fails where
    there is no MPI, and if the program takes longer than `timeout` seconds; its processes are ended then."""
    command = [mpiexec(), "-n", str(size), sys.executable]
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]  # tests first
    command += [str(program)] if isinstance(program, Path) else ["-c", program]
    process = subprocess.Popen(
        [*command, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # the launcher ends its ranks
        try:
            out, err = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        pytest.fail(f"{size} ranks took longer than {timeout:g} s\n{out}\n{err}")
    return MpiRun(process.returncode, out, err)


def mpiexec() -> str:
    """The launcher that belongs to this Python, or the one on the PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.fail("mpiexec is not installed; the test extra brings it")
    if find_spec("mpi4py") is None:
        pytest.fail("mpi4py is not installed; the test extra brings it")
    return found
