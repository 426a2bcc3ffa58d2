"""Jobs on an emulated cluster: a function that is called on every node, and its result on rank 0.

`python -m bench.cluster.jobs FUNCTION ARGUMENTS FOLDER` is one rank of such a job.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from bench.lib.processes import ROOT
from dslide import netlab
from dslide.comm import launched_as

TORCH_PORT = 29_500  # of rank 0, for the rendezvous of PyTorch
_RESULT, _PROBLEM, _DONE = "result.json", "problem", "done"
_POLL = 0.5  # seconds between checks for the failure of another rank


def run_job(function: str, lab: str, limit: float, **arguments: Any) -> dict[str, Any]:
    """Calls a function, given as module:function, with these arguments and `lab` in a fresh process on each node of the
    lab of that name; returns its result on rank 0, JSON values. A job that fails, or has not ended after `limit`
    seconds, raises SystemExit with one sentence."""
    with tempfile.TemporaryDirectory() as name:
        folder, errors = Path(name), Path(name) / "errors"
        words = [function, json.dumps(arguments | {"lab": lab}), name]
        try:
            with errors.open("wb") as stderr:
                result = netlab.run(
                    [sys.executable, "-m", __spec__.name, *words], name=lab, limit=limit,
                    environment=_environment(netlab.find(lab)), stdout=subprocess.DEVNULL, stderr=stderr,
                )  # fmt: skip
        except netlab.LabError as error:
            raise SystemExit(str(error).replace(sys.executable, function)) from None
        # mpiexec sometimes reports an error at the end if ranks never called MPI, as those of PyTorch.
        ended = len(list(folder.glob(f"{_DONE}*"))) == len(result.traffic)
        if result.code and not ended:
            raise SystemExit(_first_problem(folder, errors) or f"{function} ended with code {result.code}")
        found: dict[str, Any] = json.loads((folder / _RESULT).read_text())
        return found


def _environment(lab: netlab.Lab) -> dict[str, str]:
    """Variables with which ranks find this code, and those of PyTorch each other over the emulated link."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": lab.address(0),
        "MASTER_PORT": str(TORCH_PORT),
        "GLOO_SOCKET_IFNAME": "eth0",
    }


def _first_problem(folder: Path, errors: Path) -> str:
    """The error of the first rank that failed, because of which others fail; or the job's last line of errors."""
    found = sorted(folder.glob(f"{_PROBLEM}*"), key=lambda path: path.stat().st_mtime_ns)
    lines = (found[0] if found else errors).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _rank(function: str, arguments: dict[str, Any], folder: Path) -> None:
    """One rank: its result or its error is written to a file in the folder."""
    rank, _ = launched_as()
    module, name = function.split(":")
    threading.Thread(target=_end_with_others, args=(folder,), daemon=True).start()
    try:
        found = getattr(importlib.import_module(module), name)(**arguments)
        if rank == 0:
            (folder / _RESULT).write_text(json.dumps(found))
        (folder / f"{_DONE}{rank}").touch()
    except BaseException as error:
        traceback.print_exc()
        reason = " ".join(str(error).split())
        (folder / f"{_PROBLEM}{rank}").write_text(f"rank {rank}: {type(error).__name__}: {reason}")
        os._exit(1)  # does not wait for others


def _end_with_others(folder: Path) -> None:
    """Exits when another rank has failed: mpiexec does not end ranks that never called MPI, as those of PyTorch."""
    while not any(folder.glob(f"{_PROBLEM}*")):
        time.sleep(_POLL)
    os._exit(1)


if __name__ == "__main__":
    _rank(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
