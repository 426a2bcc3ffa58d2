"""Runs that survive when the network of a host is cut: real links of an emulated cluster, which needs root."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_elastic import RANKS, Run, check_end, made, run, wait_for  # noqa: F401
from test_elastic_hosts import SUPERVISE
from test_netlab import missing

from dslide import netlab
from dslide.netlab import system

NAME = f"dslidecut{os.getpid()}"
CUT = 1  # the node
WATCHDOG = 3.0  # seconds, of ranks that wait for others
LAUNCHER_WATCHDOG = 5.0  # of the launcher, and of ranks that hear nothing of it
ENDING = 7.0  # seconds that the launcher gives the others, and mpiexec, to end
LATE = 2.0  # seconds by which a busy machine may be late


@pytest.fixture
def lab() -> Iterator[netlab.Lab]:
    if reason := missing():
        pytest.skip(reason)
    made = netlab.up(RANKS, "unlimited", NAME)
    try:
        yield made
    finally:
        netlab.down(NAME)


@pytest.fixture
def job(lab: netlab.Lab, run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:  # noqa: F811
    """A run on the nodes, in training, its supervisor beside them."""
    hosts = tmp_path / "hosts"
    hosts.write_text("\n".join(lab.hosts) + "\n")
    start = [sys.executable, "-c", SUPERVISE, str(tmp_path / "run"), str(hosts), "1", sys.executable, "-m", "dslide.cli"]
    monkeypatch.setattr("test_elastic.COMMAND", netlab.supervise([*start, "train"], NAME))
    begun = run("--hosts", hosts)
    begun.train()
    wait_for(lambda: len(list((tmp_path / "run" / "checkpoints").glob("*/manifest.json"))) > 0)
    return begun


def shell(lab: netlab.Lab, node: int) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", f'"$DSLIDE_SSH" -x -o Some=thing {lab.host(node)} hostname; echo $?']
    return subprocess.run(netlab.supervise(words, NAME), capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize("silently", [False, True])
def test_the_labs_shell_needs_a_network(lab: netlab.Lab, silently: bool) -> None:
    assert shell(lab, CUT).stdout == f"{lab.host(CUT)}\n0\n"
    netlab.cut(CUT, NAME, silently)
    found = netlab.status(NAME)
    assert found is not None
    assert [node.linked for node in found[1]] == [node != CUT for node in range(RANKS)]
    answer = shell(lab, CUT)
    assert answer.stdout == "255\n"
    assert answer.stderr.startswith(f"{lab.host(CUT)}: ")
    assert shell(lab, 0).stdout == f"{lab.host(0)}\n0\n"
    netlab.restore(CUT, NAME)
    assert shell(lab, CUT).stdout == f"{lab.host(CUT)}\n0\n"


@pytest.mark.parametrize("silently", [False, True])
def test_a_node_that_is_cut_off(lab: netlab.Lab, job: Run, silently: bool) -> None:
    lost = job.starts(CUT)[-1]["process"]
    netlab.cut(CUT, NAME, silently)
    begin, then = time.monotonic(), time.time()
    wait_for(lambda: not Path(f"/proc/{lost}/exe").exists(), LAUNCHER_WATCHDOG + LATE)  # by itself: nobody reaches it
    print("rank ended", time.monotonic() - begin)
    job.train(1, ranks=2)
    print("trains again", job.starts()[1]["time"] - then)
    print(job.events())
    assert job.events("lost")[0]["hosts"] == job.events("no-answer")[0]["hosts"] == [lab.host(CUT)]
    assert job.events("lost")[0]["time"] - then < WATCHDOG + ENDING + LATE
    assert job.events("start")[1]["hosts"] == [lab.host(0), lab.host(2)]
    assert job.starts()[1]["step"] > 0
    if silently:
        check_end(job, 1, ranks=2)
        print([p for p in subprocess.run(["ps","-ef"],capture_output=True,text=True).stdout.splitlines() if "proxy" in p])
        netlab.restore(CUT, NAME)
    else:
        netlab.restore(CUT, NAME)
        check_end(job, 1)
        assert job.events("return")[0]["hosts"] == [lab.host(CUT)]
    b = time.monotonic()
    wait_for(lambda: not system.any_process([lab.control, *lab.hosts], b""), 10)
    print("all gone", time.monotonic() - b)
