"""A Slurm cluster on this machine: munged, slurmctld and a slurmd for each of a few nodes, in a folder of its own.

python tests/support/slurm_cluster.py --nodes 4    # prints the SLURM_CONF to export, and runs until Ctrl-C
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
START_LIMIT = 60  # seconds until all nodes are idle
SBIN = "/usr/sbin:/sbin"  # where daemons are, which users often don't have in PATH

CONFIGURATION = """\
ClusterName=dslide
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
JobRequeue=1
KillWait=3
MinJobAge=3600
NodeName=n[1-{nodes}] NodeAddr=127.0.0.1 NodeHostname={host} Port={ports} CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class SlurmCluster:
    """Nodes n1, n2, ... of one CPU each. Ends with the `with` statement, and takes all jobs with it."""

    def __init__(self, nodes: int) -> None:
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: sockets' paths are limited
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        self._environment["PATH"] += f":{SBIN}"
        self._environment["SLURM_CONF"] = str(self.folder / "slurm.conf")

    def __enter__(self) -> SlurmCluster:
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            self._configure()
            self._start_munge()
            self._start("slurmctld", "slurmctld", "-D")
            for node in self.nodes:
                self.start_node(node)
            self.wait(lambda: self.states().count("idle") == len(self.nodes), START_LIMIT, "all nodes idle")
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # ---- what tests do with it --------------------------------------------------------------------------------------

    def run(self, *command: str, **variables: str) -> str:
        """What a command prints, which must succeed."""
        environment = self._environment | variables
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def states(self) -> list[str]:
        """The states of the nodes, as `sinfo` names them."""
        return self.run("sinfo", "--noheader", "--Node", "--format=%T").split()

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol` says of a job."""
        fields = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node)

    def lose_node(self, node: str) -> None:
        """As if the machine were switched off: its daemon and all that runs on it are killed, and the controller learns
        of it (by its own SlurmdTimeout that would take minutes)."""
        for process in self._running_on(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._daemons.pop(node).wait()
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        ends = (f"{file.name}:\n{file.read_text(errors='replace')[-1500:]}" for file in self.folder.glob("*.log"))
        return "\n".join(ends)

    # ---- daemons ----------------------------------------------------------------------------------------------------

    def _configure(self) -> None:
        first, *others = [free_port() for _ in range(len(self.nodes) + 1)]
        names = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser(), "folder": self.folder}
        names |= {"nodes": len(self.nodes), "controller_port": first, "ports": ",".join(map(str, others))}
        text = CONFIGURATION.format(**names)
        (self.folder / "slurm.conf").write_text(text)
        version = re.search(r"(\d+)\.(\d+)", self.run("slurmd", "-V"))
        if version is None or (int(version[1]), int(version[2])) >= (23, 2):  # earlier ones don't know the word
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        (self.folder / "state").mkdir()

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        places = {"key-file": key.name, "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in places.items()]
        self._start("munged", "munged", "--foreground", "--force", *options)
        self.wait((self.folder / "munge.socket").exists, START_LIMIT, "munged's socket")

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, start_new_session=True)
        self._daemons[name] = started

    def _running_on(self, node: str) -> list[int]:
        """Processes of a node: its slurmd, those that have its name in their environment, as jobs have, and the
        slurmstepd processes that started these."""
        mark = f"SLURMD_NODENAME={node}".encode()
        found = [self._daemons[node].pid]
        for process in self._job_processes():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                    parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
                    is_step = Path(f"/proc/{parent}/cmdline").read_bytes().startswith(b"slurmstepd")
                    found += [process, int(parent)] if is_step else [process]
        return found

    def _job_processes(self) -> Iterator[int]:
        """Processes of jobs of this cluster, and of its daemons: those that have its configuration."""
        mark = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)

    def _end(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        for process in self._job_processes():
            if process != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def missing_programs() -> list[str]:
    """The programs of Slurm and munge that this machine lacks."""
    path = f"{os.environ['PATH']}:{SBIN}"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def free_port() -> int:
    """A port at which nobody listens, below those that systems give to outgoing connections: one of these could take
    it before the daemon does."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def main() -> None:
    parser = argparse.ArgumentParser(description="a Slurm cluster on this machine, until Ctrl-C")
    parser.add_argument("--nodes", type=int, default=4)
    with SlurmCluster(parser.parse_args().nodes) as cluster, contextlib.suppress(KeyboardInterrupt):
        print(f"export SLURM_CONF={cluster.folder / 'slurm.conf'}", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        signal.pause()


if __name__ == "__main__":
    main()
