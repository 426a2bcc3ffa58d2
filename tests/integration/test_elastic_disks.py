"""Runs on hosts with disks of their own, which are lost together with them. A program that stands for ssh gives each
host a folder of its own in the place of the run's, in a mount namespace, which needs root."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration.test_elastic import SAVED_EVERY, STEPS, ElasticRun, made, run, wait_for  # noqa: F401
from integration.test_elastic_hosts import SUPERVISE

from dslide.checkpoint.disks import buddy
from dslide.checkpoint.manifest import OPTIMIZER, WEIGHTS, shard_file
from dslide.launch.remote_shell import SHELL

pytestmark = pytest.mark.waiting
AGAIN = 15.0  # seconds in which training must go on after a loss; it takes 3 to 5
DELIVERY = 5.0  # seconds that a checkpoint may take to be written and to arrive on other disks; it takes less than 1
HOSTS = ["one", "two", "three", "four"]
SSH = """#!{sh}
while true; do
    case "$1" in -o) shift 2 ;; -*) shift ;; *) break ;; esac
done
if [ -e "{folder}/down-$1" ]; then echo "$1: no route" >&2; exit 255; fi
mkdir -p "{folder}/disk-$1"
exec unshare --mount sh -c 'mount --bind "{folder}/disk-$1" "{folder}/run" || exit 255; shift; exec sh -c "$*"' sh "$@"
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the hosts' disks, and of files that say how hosts behave."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("mount namespaces can't be made")
    program = tmp_path / "ssh"
    program.write_text(SSH.format(sh=shutil.which("sh"), folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv(SHELL, str(program))
    (tmp_path / "hosts").write_text("\n".join(HOSTS) + "\n")
    (tmp_path / "run").mkdir()
    return tmp_path


def records(disk: Path, kind: str) -> list[dict[str, Any]]:
    """What the ranks on a disk have logged, of one kind, in order of time."""
    lines = [line for log in disk.glob("log*.jsonl") for line in log.read_text().splitlines()]
    found = [record for record in map(json.loads, lines) if record["record"] == kind]
    return sorted(found, key=lambda record: record["time"])


def lose(hosts: Path, name: str) -> None:
    """The host is gone, and its disk with it."""
    disk = hosts / f"disk-{name}"
    (hosts / f"down-{name}").touch()
    rank = records(disk, "start")[-1]["process"]
    proxy = int(process_status(rank)[1])
    # The proxy's end makes mpiexec end all other ranks: the connections of this one have to be closed before.
    os.kill(proxy, signal.SIGSTOP)
    os.kill(rank, signal.SIGKILL)
    wait_for(lambda: process_status(rank)[0] == "Z")
    os.kill(proxy, signal.SIGKILL)
    shutil.rmtree(disk)


def process_status(process: int) -> list[str]:
    """State, parent and more."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def kept(disk: Path) -> list[set[str]]:
    """Files of the network in each complete checkpoint on a disk."""
    folders = [path.parent for path in disk.glob("checkpoints/*/manifest.json")]
    return [{path.name for path in folder.glob("*-of-*.safetensors")} for folder in folders]


def newest_on(disks: list[Path]) -> int:
    """Steps of the newest checkpoint of which these disks have all files."""
    found: dict[int, set[str]] = {}
    for path in (path for disk in disks for path in disk.glob("checkpoints/*/manifest.json")):
        step = int(path.parent.name.removeprefix("step-"))
        found.setdefault(step, set()).update(file.name for file in path.parent.glob("*-of-*.safetensors"))
    every = {shard_file(kind, rank, len(HOSTS)) for rank in range(len(HOSTS)) for kind in (WEIGHTS, OPTIMIZER)}
    return max(step for step, files in found.items() if files == every)


def expected(rank: int) -> set[str]:
    """Files that a rank's disk must have: its own, and those of the ranks whose buddy it is."""
    disks = [[n] for n in range(len(HOSTS))]
    ranks = [rank, *(other for other in range(len(HOSTS)) if buddy(other, disks) == rank)]
    return {shard_file(kind, one, len(HOSTS)) for one in ranks for kind in (WEIGHTS, OPTIMIZER)}


@pytest.mark.parametrize("lost", ["one", "three"])  # the first speaks for all
def test_a_host_is_lost_with_its_disk_and_comes_back_with_an_empty_one(
    hosts: Path, run: Callable[..., ElasticRun], monkeypatch: pytest.MonkeyPatch, lost: str  # noqa: F811
) -> None:  # fmt: skip
    start = [sys.executable, "-c", SUPERVISE, str(hosts / "run"), str(hosts / "hosts"), "1"]
    monkeypatch.setattr("integration.test_elastic.COMMAND", [*start, sys.executable, "-m", "dslide.cli", "train"])
    job = run("--hosts", hosts / "hosts")
    left = [host for host in HOSTS if host != lost]
    disks = {host: hosts / f"disk-{host}" for host in HOSTS}

    wait_for(lambda: all(expected(rank) in kept(disks[host]) for rank, host in enumerate(HOSTS)))
    time.sleep(2 * SAVED_EVERY)
    begin, saved = time.time(), newest_on([disks[host] for host in left])
    lose(hosts, lost)
    wait_for(lambda: bool(job.events("lost")))
    manifests = [path for host in left for path in disks[host].glob("checkpoints/*/manifest.json")]
    written = {int(path.parent.name.removeprefix("step-")): path.stat().st_mtime for path in manifests}
    wait_for(lambda: all(len(records(disks[host], "start")) == 2 for host in left))
    again = records(disks[left[0]], "start")[1]
    assert job.events("lost")[0]["hosts"] == job.events("no-answer")[0]["hosts"] == [lost]
    assert job.events("start")[1]["hosts"] == left
    assert (again["ranks"], again["time"] - begin < AGAIN) == (len(left), True)
    assert again["step"] >= saved
    assert begin - written[again["step"]] < SAVED_EVERY + DELIVERY  # what was learned since is learned again

    (hosts / f"down-{lost}").unlink()
    wait_for(lambda: bool(records(disks[lost], "start")))
    back = records(disks[lost], "start")[0]
    assert job.events("return")[0]["hosts"] == [lost]
    assert back["step"] > again["step"]
    wait_for(lambda: any(record["step"] > back["step"] for record in records(disks[lost], "step")))
    job.process.send_signal(signal.SIGINT)
    job.end(130)
    steps = json.loads((disks["one"] / "summary.json").read_text())["steps"]
    assert steps > back["step"]
    epochs = steps // STEPS + 1
    run("--hosts", hosts / "hosts", "--epochs", epochs).end()  # goes on again, to an end that is near
    assert records(disks["four"], "start")[-1]["step"] == steps
    assert json.loads((disks["one"] / "summary.json").read_text())["epochs"] == epochs
    for rank, host in enumerate(HOSTS):
        assert expected(rank) in kept(disks[host])
