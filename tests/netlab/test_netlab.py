"""Emulated clusters: what their links carry, how jobs run on them, and that nothing is left of them.

Most of it needs root, iproute2 and a kernel with namespaces and tbf, and is skipped elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dslide import netlab
from dslide.cli import main
from dslide.errors import ConfigError
from dslide.netlab import jobs, lab, system

pytestmark = pytest.mark.waiting
NAME = f"dslidetest{os.getpid()}"
NODES = 3
COMMAND = [sys.executable, "-m", "dslide.cli", "netlab"]


def missing() -> str:
    """Why labs can't be made here; empty if they can."""
    try:
        netlab.up(1, "100mbit", f"{NAME}probe")
        netlab.down(f"{NAME}probe")
    except netlab.LabError as error:
        return str(error)
    return "" if shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") else "no mpiexec"


@pytest.fixture(scope="module")
def nodes() -> Iterator[str]:
    """The name of a lab with three nodes."""
    if reason := missing():
        pytest.skip(reason)
    netlab.up(NODES, "unlimited", NAME)
    try:
        yield NAME
    finally:
        netlab.down(NAME)


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which `dslide netlab` refuses."""
    assert main(["netlab", *arguments]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("dslide: error: ")
    assert errors.count("\n") == 1
    return errors.removeprefix("dslide: error: ").rstrip("\n")


def traces(name: str) -> list[str]:
    """What there is of a lab."""
    return lab._namespaces(name) + [str(path) for path in (lab.STATE / name,) if path.exists()]


# ---- anywhere -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bits", "shown"),
    [
        ("100mbit", 10**8, "100 Mbit/s"),
        ("1gbit", 10**9, "1 Gbit/s"),
        ("2.5 Gbit/s", 25 * 10**8, "2.5 Gbit/s"),
        ("500kbit", 5 * 10**5, "500 kbit/s"),
        ("unlimited", None, "unlimited"),
    ],
)
def test_rates_are_read_and_shown(text: str, bits: int | None, shown: str) -> None:
    assert netlab.parse_rate(text) == bits
    assert netlab.format_rate(bits) == shown


@pytest.mark.parametrize("text", ["", "fast", "10Mbps", "-1mbit", "mbit", "1e3mbit", "0mbit", "1kbit", "101gbit"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"rate: expected .*, not '{text}'"):
        netlab.parse_rate(text)


def test_mistakes_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert "not 'fast'" in refused(capfd, "up", "--rate", "fast")
    assert "expected 100 kbit/s to 100 Gbit/s, not '1kbit'" in refused(capfd, "up", "--rate", "1kbit")
    assert refused(capfd, "up", "--nodes", "0") == "nodes: expected 1 to 64, not 0"
    assert "small letters and digits" in refused(capfd, "up", "--name", "../x")
    assert "small letters and digits" in refused(capfd, "down", "--name", "a-b")
    assert refused(capfd, "run", "--").startswith("no command to run; give it after --")
    assert "at least 1, not 0" in refused(capfd, "run", "--ranks-per-node", "0", "--", "true")
    assert "there is no folder" in refused(capfd, "run", "--json", "/no/such/folder/x", "--", "true")
    assert "there is no option --jsn" in refused(capfd, "run", "--jsn", "x", "--", "true")
    assert "expected a whole number, not 'x'" in refused(capfd, "cut", "x")
    assert "invalid choice: 'upp'" in refused(capfd, "upp")
    assert "required: ACTION" in refused(capfd)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, Linux is what is missing")
def test_without_root_nothing_is_tried() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # as somebody else; the modules it needs are there already
        with contextlib.suppress(BaseException):
            if os.geteuid() == 0:
                os.setuid(65534)
            with open(writing, "w") as sys.stderr:
                code = main(["netlab", "up"])
            os._exit(code)
        os._exit(99)
    os.close(writing)
    with open(reading) as file:
        message = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert message.startswith("dslide: error: dslide netlab needs root")


# ---- with root ------------------------------------------------------------------------------------------------------


@pytest.fixture
def commands(nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the commands a lab needs, and the only one they are looked for in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ip", "tc", "unshare", "mount", "sh"):
        (folder / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return folder


def test_what_is_missing_is_named(capfd: pytest.CaptureFixture[str], commands: Path) -> None:
    assert refused(capfd, "run", "--name", NAME, "--", "true").startswith("to start several ranks, mpiexec is needed")
    (commands / "tc").unlink()
    assert refused(capfd, "status") == "the command `tc` is missing; install the package iproute2"


def test_a_lab_that_can_not_be_made_leaves_nothing(capfd: pytest.CaptureFixture[str], commands: Path) -> None:
    (commands / "tc").unlink()
    (commands / "tc").write_text('#!/bin/sh\necho "Error: Specified qdisc kind is unknown." >&2; exit 2\n')
    (commands / "tc").chmod(0o700)
    other = f"{NAME}half"
    assert refused(capfd, "up", "--name", other).startswith("this kernel has no token bucket filter (tbf)")
    assert traces(other) == []


def test_labs_live_side_by_side_and_go_without_a_trace(nodes: str, capfd: pytest.CaptureFixture[str]) -> None:
    other = f"{NAME}2"
    assert main(["netlab", "up", "--name", other, "--nodes", "1"]) == 0
    try:
        message = refused(capfd, "up", "--name", other)
        assert message.startswith(f"the lab {other!r} is up already (1 node, 100 Mbit/s each)")
        stubborn = "trap '' TERM; echo ready; while true; do sleep 0.1; done"
        process = subprocess.Popen(netlab.enter(0, ["sh", "-c", stubborn], other), stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        threading.Thread(target=process.wait, daemon=True).start()  # or it stays, as a zombie
    finally:
        assert main(["netlab", "down", "--name", other]) == 0
    told = capfd.readouterr().out
    assert "ended " in told
    assert f"removed {other}-control, {other}-node0, {other}-switch" in told
    assert traces(other) == []
    assert main(["netlab", "down", "--name", other]) == 0
    assert "nothing to remove" in capfd.readouterr().out
    assert main(["netlab", "status", "--name", other]) == 1
    assert "no lab" in refused(capfd, "rate", "--name", other, "1gbit")
    assert netlab.find(nodes).nodes == NODES


ECHO = """
import socket
server = socket.create_server(("", 5000))
print("ready", flush=True)
peer = server.accept()[0]
while piece := peer.recv(1 << 16):
    peer.sendall(piece)
"""
ROUND_TRIP = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000), timeout=20) as link:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    begin = time.monotonic()
    link.sendall(b"x")
    assert link.recv(1) == b"x"
    print(time.monotonic() - begin)
    content, came = bytes(range(256)) * 2000, 0
    link.sendall(content)
    while came < len(content):
        piece = link.recv(1 << 16)
        assert piece == content[came : came + len(piece)]
        came += len(piece)
"""


def test_packets_take_at_least_the_latency_and_arrive_whole(nodes: str, capfd: pytest.CaptureFixture[str]) -> None:
    other = f"{NAME}late"
    assert main(["netlab", "up", "--name", other, "--nodes", "2", "--latency", "20ms"]) == 0
    try:
        assert str(netlab.find(other)) == "2 nodes, 100 Mbit/s each, 20 ms of latency"
        echo = netlab.enter(1, [sys.executable, "-c", ECHO], other)
        with subprocess.Popen(echo, stdout=subprocess.PIPE, text=True) as answering:
            assert answering.stdout is not None
            assert answering.stdout.readline() == "ready\n"
            asking = netlab.enter(0, [sys.executable, "-c", ROUND_TRIP, netlab.find(other).host(1)], other)
            done = subprocess.run(asking, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) >= 0.04
        assert min(node.sent for node in netlab.traffic(netlab.find(other))) > 256 * 2000
        netlab.cut(1, other)
        cut = subprocess.run(asking, capture_output=True, text=True, timeout=60, check=False)
        assert cut.returncode != 0
    finally:
        assert main(["netlab", "down", "--name", other]) == 0
    assert traces(other) == []
    assert "ended " in capfd.readouterr().out  # the relay


@pytest.mark.parametrize("text", ["1s", "fast", "-1ms"])
def test_latencies_that_are_none_are_refused(capfd: pytest.CaptureFixture[str], nodes: str, text: str) -> None:
    assert refused(capfd, "up", "--name", f"{NAME}x", f"--latency={text}").startswith("latency: expected ")


RECEIVE = """
import socket, sys, time
server = socket.create_server(("", 5000))
print("ready", flush=True)
peers = [server.accept()[0] for _ in range(int(sys.argv[1]))]
total = 0
for peer in peers:
    while piece := peer.recv(1 << 16):
        total += len(piece)
print(total, flush=True)
"""
SEND = """
import socket, sys
for host in sys.argv[2:]:
    with socket.create_connection((host, 5000), timeout=20) as link:
        link.sendall(bytes(int(sys.argv[1])))
"""


def seconds_of_transfer(senders: list[int], receivers: list[int], size: int) -> float:
    """Each sender sends `size` bytes to each receiver, by name, one after the other."""
    receiving = [
        subprocess.Popen(
            netlab.enter(node, [sys.executable, "-c", RECEIVE, str(len(senders))], NAME),
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in receivers
    ]
    assert all(process.stdout and process.stdout.readline() == "ready\n" for process in receiving)
    hosts = [netlab.find(NAME).host(node) for node in receivers]
    begin = time.monotonic()
    sending = [
        subprocess.Popen(netlab.enter(node, [sys.executable, "-c", SEND, str(size), *hosts], NAME)) for node in senders
    ]
    arrived = [int(process.communicate(timeout=30)[0]) for process in receiving]
    seconds = time.monotonic() - begin
    assert [process.wait(10) for process in sending] == [0] * len(senders)
    assert arrived == [size * len(senders)] * len(receivers)
    return seconds


@pytest.mark.parametrize(("senders", "receivers"), [([0], [1, 2]), ([0, 1], [2])])
def test_no_node_sends_or_receives_faster_than_its_rate(nodes: str, senders: list[int], receivers: list[int]) -> None:
    netlab.set_rate("10mbit", nodes)
    netlab.cut(2, nodes)  # which must not end the limit
    netlab.restore(2, nodes)
    before = netlab.traffic(netlab.find(nodes))
    # 500 kB through one link, less what two buckets let through at once: 0.38 s at least. A busy machine takes longer.
    assert seconds_of_transfer(senders, receivers, 250_000) > 0.36
    after = netlab.traffic(netlab.find(nodes))
    for node in range(NODES):
        sent, received = after[node].sent - before[node].sent, after[node].received - before[node].received
        for moved, expected in ((sent, node in senders), (received, node in receivers)):
            share = 500_000 / len(senders if moved is sent else receivers)
            if expected:
                assert share < moved < 1.2 * share
            else:
                assert moved < 0.1 * share  # acknowledgements
    netlab.set_rate("unlimited", nodes)


CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=0.5)
except OSError as error:
    print(type(error).__name__, error.errno)
"""


def answer(node: int, host: str) -> str:
    command = netlab.enter(node, [sys.executable, "-c", CONNECT, host], NAME)
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()


@pytest.mark.parametrize("how", [[], ["--silently"]])
def test_a_node_that_is_cut_off_hears_nothing(nodes: str, capfd: pytest.CaptureFixture[str], how: list[str]) -> None:
    refusal = "ConnectionRefusedError 111"  # there is a machine that says no
    assert answer(0, f"{nodes}-node1") == refusal
    assert main(["netlab", "cut", "--name", nodes, *how, "1"]) == 0
    assert main(["netlab", "status", "--name", nodes]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in lines[-NODES:]] == [
        ["10.213.77.1", "up"],
        ["10.213.77.2", "cut"],
        ["10.213.77.3", "up"],
    ]
    assert answer(0, f"{nodes}-node1") != refusal
    assert answer(0, f"{nodes}-node2") == refusal
    assert main(["netlab", "restore", "--name", nodes, "1"]) == 0
    assert answer(0, f"{nodes}-node1") == refusal
    assert "expected 0 to 2, not 3" in refused(capfd, "cut", "--name", nodes, "3")


def test_nothing_leads_out(nodes: str) -> None:
    assert answer(0, "192.0.2.1") == "OSError 101"  # network unreachable, known without a packet


JOB = """
import pathlib, socket
from dslide.comm import job
c = job(30)
pathlib.Path(f"/dev/shm/{c.rank}").touch()
c.barrier("made")
for _ in range(20):
    c.all_gather("x", bytes(100_000))
seen = sorted(path.name for path in pathlib.Path("/dev/shm").iterdir() if path.name.isdigit())
print(f"{c.rank}|{socket.gethostname()}|{','.join(seen)}|{c.bytes_sent}\\n", end="", flush=True)
"""


def test_messages_of_a_job_go_over_the_links(nodes: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    source = str(Path(netlab.__file__).parent.parent.parent)
    path = os.pathsep.join([source, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    with open(tmp_path / "out", "w") as out:
        command = [sys.executable, str(tmp_path / "job.py")]
        result = netlab.run(command, name=nodes, limit=60, environment={"PYTHONPATH": path}, stdout=out)
    assert result.code == 0
    # UCX, below MPI, may write warnings to stdout.
    said = sorted(line.split("|") for line in (tmp_path / "out").read_text().splitlines() if line.count("|") == 3)
    assert [line[:3] for line in said] == [[str(n), f"{nodes}-node{n}", str(n)] for n in range(NODES)]
    for (*_, bytes_sent), traffic in zip(said, result.traffic, strict=True):
        for moved in (traffic.sent, traffic.received):
            assert int(bytes_sent) < moved < 1.2 * int(bytes_sent) + 200_000


LEAVE = """
import os, subprocess, sys
subprocess.Popen(["sleep", "1000"], stdin=-3, stdout=-3, stderr=-3, start_new_session=True)
sys.exit(7 if os.environ["PMI_RANK"] == "3" else 0)
"""


def test_a_run_gives_code_and_report_and_leaves_no_process(nodes: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--name", nodes, "--ranks-per-node", "2", "--json", str(report)]
    command = [*COMMAND, "run", *options, "--", sys.executable, "-c", LEAVE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7
    assert "exit code 7" in done.stderr
    told = json.loads(report.read_text())
    assert (told["code"], told["bits_per_second"], len(told["nodes"])) == (7, None, NODES)
    assert not system.any_process([f"{nodes}-node{n}" for n in range(NODES)], b"")


STAY = """
import os, time
try:
    print("ready\\n", end="", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    os._exit(5)
"""


def test_ctrl_c_reaches_the_ranks(nodes: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "--name", nodes, "--", sys.executable, "-c", STAY],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(NODES)] == [b"ready\n"] * NODES
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 5
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_one_run_at_a_time_and_none_for_ever(nodes: str) -> None:
    with open(lab.STATE / nodes / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(netlab.LabError, match="another command runs in the lab"):
            netlab.run(["true"], name=nodes, limit=30)
    with pytest.raises(netlab.LabError, match="sleep did not end within 1 s, and was ended"):
        netlab.run(["sleep", "60"], name=nodes, limit=1, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert not system.any_process([f"{nodes}-node{n}" for n in range(NODES)], b"")


def test_a_launcher_that_waits_for_a_lost_node_is_ended(nodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_MPIEXEC_SECONDS", 1.0)
    done: list[netlab.JobResult] = []

    def run() -> None:
        command = ["sh", "-c", "sleep 1.5; exit 3"]
        done.append(netlab.run(command, name=nodes, limit=60, stderr=subprocess.DEVNULL))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not system.any_process([f"{nodes}-node1"], b"PMI_RANK="):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        netlab.cut(1, nodes)
        thread.join(30)
    finally:
        netlab.restore(1, nodes)
    assert [result.launcher_hung for result in done] == [True]
    assert done[0].code != 0
    assert netlab.run(["true"], name=nodes, limit=30).code == 0  # the node is back at once
