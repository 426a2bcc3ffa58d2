"""`dslide serve` as a process with workers: they share an address and their counts, are replaced when they die, and
stop when told to."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.serving import Client, train_text_model, wait_for_port

from dslide.errors import ConfigError
from dslide.serve.options import ServeOptions
from dslide.serve.workers import listen


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_text_model(tmp_path_factory.mktemp("workers"))


def start(run: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "dslide.cli", "serve", str(run), "--port", "0", "--threads", "1", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(re.search(r":(\d+)$", process.stdout.readline().strip())[1])
    wait_for_port(port)
    return process, port


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes in /proc")
def test_workers_are_replaced_and_stop(run: Path) -> None:
    process, port = start(run, "--workers", "2")
    client = Client(port)
    first = children(process.pid)
    assert len(first) == 2
    for number in range(12):
        assert client.post(text=f"word{number}")[1]["results"][0]["label"] == f"label {number}"
    lines = client.send("GET", "/metrics")[1].decode().splitlines()
    assert 'dslide_requests_total{status="2xx"} 12' in lines  # of both workers
    os.kill(first[0], signal.SIGKILL)
    end = time.monotonic() + 20
    while len(now := children(process.pid)) < 2 or first[0] in now:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert client.post(text="word1")[0] == 200
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors.count("\n") == 1  # nothing else is said
    assert "another one takes its place" in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in now)


@pytest.mark.skipif(sys.platform != "linux", reason="workers share a socket elsewhere")
def test_connections_are_spread_over_the_sockets_of_workers() -> None:
    """Of 300 connections each of three workers has its share, and nobody else can listen at the address."""
    sockets = listen(ServeOptions("", port=0, workers=3))
    address = sockets[0].getsockname()
    clients = [socket.create_connection(address) for _ in range(300)]
    for listening in sockets:
        accepted = []
        with suppress(BlockingIOError):
            while True:
                accepted.append(listening.accept()[0])
        assert 50 < len(accepted) < 150
        for connection in accepted:
            connection.close()
    for workers in (1, 2):
        with pytest.raises(ConfigError, match="can't listen"):
            listen(ServeOptions("", port=address[1], workers=workers))
    for each in (*clients, *sockets):
        each.close()


def test_one_process_holds_its_address_and_stops_when_interrupted(run: Path) -> None:
    process, port = start(run)
    command = [sys.executable, "-m", "dslide.cli", "serve", str(run), "--port", str(port)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 2
    assert f"can't listen at 127.0.0.1:{port}" in second.stderr
    assert Client(port).post(text="word1")[0] == 200
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    with pytest.raises(ConnectionRefusedError):
        Client(port).get("/health")
