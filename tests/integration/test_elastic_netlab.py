"""Runs that survive when the network of a host is cut: real links of an emulated cluster, which needs root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.test_elastic import EPOCHS, RANKS, ElasticRun, check_end, made, run, wait_for  # noqa: F401
from integration.test_elastic_hosts import SUPERVISE
from netlab.test_netlab import missing

from dslide import netlab
from dslide.netlab import system

pytestmark = pytest.mark.waiting
NAME = f"dslidecut{os.getpid()}"
CUT = 1  # the node
LONGER = 4 * EPOCHS  # not done before the node is back
WATCHDOG = 3.0  # seconds, of ranks that wait for others
LAUNCHER_WATCHDOG = 5.0  # of the launcher, and of ranks that hear nothing of it
ENDING = 2.0  # seconds that the launcher gives the others, and mpiexec, to end
LATE = 3.0  # seconds by which a busy machine may be late


@pytest.fixture
def lab() -> Iterator[netlab.Lab]:
    if reason := missing():
        pytest.skip(reason)
    netlab.up(RANKS, "unlimited", NAME)
    try:
        yield netlab.find(NAME)
    finally:
        netlab.down(NAME)


@pytest.fixture
def job(lab: netlab.Lab, run: Callable[..., ElasticRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ElasticRun:  # noqa: F811
    """A run on the nodes, in training, its supervisor beside them."""
    hosts = tmp_path / "hosts"
    hosts.write_text("\n".join(lab.hosts) + "\n")
    start = [sys.executable, "-c", SUPERVISE, str(tmp_path / "run"), str(hosts), "1"]
    command = netlab.supervise([*start, sys.executable, "-m", "dslide.cli", "train"], NAME)
    monkeypatch.setattr("integration.test_elastic.COMMAND", command)
    begun = run("--hosts", hosts, "--epochs", LONGER)
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


def test_a_node_is_cut_off_silently(lab: netlab.Lab, job: ElasticRun) -> None:
    cut_off(lab, job, silently=True)
    check_end(job, 1, ranks=2, epochs=LONGER)
    netlab.restore(CUT, NAME)  # what may be left of mpiexec there hears now that nobody is interested in it
    wait_for(lambda: not system.any_process([lab.control, *lab.hosts], b""), 10)


def test_a_cable_is_pulled_and_plugged_in_again(lab: netlab.Lab, job: ElasticRun) -> None:
    cut_off(lab, job, silently=False)
    netlab.restore(CUT, NAME)
    job.train(2, ranks=2)
    assert job.events("return")[0]["hosts"] == [lab.host(CUT)]
    assert job.events("start")[2]["hosts"] == lab.hosts
    assert job.starts()[2]["step"] > job.starts()[1]["step"]
    job.process.send_signal(signal.SIGINT)
    job.end(130)
    wait_for(lambda: not system.any_process([lab.control, *lab.hosts], b""), 10)


def cut_off(lab: netlab.Lab, job: ElasticRun, silently: bool) -> None:
    """Cuts off one node of a run, which goes on without it; the rank there ends by itself."""
    process = job.starts(CUT)[-1]["process"]
    begin = time.time()
    netlab.cut(CUT, NAME, silently)
    wait_for(lambda: not Path(f"/proc/{process}/exe").exists(), LAUNCHER_WATCHDOG + LATE)
    job.train(1, ranks=2)
    lost = job.events("lost")[0]
    assert lost["hosts"] == job.events("no-answer")[0]["hosts"] == [lab.host(CUT)]
    assert lost["time"] - begin < WATCHDOG + ENDING + LATE
    assert job.events("start")[1]["hosts"] == [host for host in lab.hosts if host != lab.host(CUT)]
    assert job.starts()[1]["step"] > 0
