"""Who can reach a job over the network, and what they can do: strangers at its ports, and eyes on its environment."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import support.rank_program as rank_program
from launch.test_launcher import HERE, LIMIT, PROGRAM, begin, folder, job, listening_port, processes_of  # noqa: F401

from dslide.cli import main
from dslide.comm import liveness
from dslide.launch.handshake import CHALLENGE_BYTES, Seal, challenge_of, proven, welcome_line
from dslide.launch.mpiexec import Host
from dslide.launch.protocol import Exit, Hello, LauncherAddress, encode
from dslide.launch.remote_shell import SHELL

pytestmark = pytest.mark.waiting
CANARY = "canary-4711"
# Like ssh, it passes no environment on.
SSH = """#!{sh}
while true; do
    case "$1" in -o) shift 2 ;; -*) shift ;; *) break ;; esac
done
shift
exec env -i PATH=/usr/bin:/bin HOME=/ sh -c "$*"
"""


def processes(folder: Path) -> set[int]:  # noqa: F811
    """All processes of a test: those that its folder marks, and theirs."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found: set[int] = set()
    left = [int(line.split()[0]) for line in processes_of(folder)]
    while left:
        if (process := left.pop()) not in found:
            found.add(process)
            left += children.get(process, [])
    return found


def listeners(folder: Path) -> set[tuple[str, int]]:  # noqa: F811
    """Addresses, in hexadecimal, and ports on which any process of a test listens, with TCP or UDP."""
    found = set()
    for process in processes(folder):
        with suppress(OSError):
            sockets = {os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir()}
            for kind in ("tcp", "tcp6", "udp", "udp6"):
                for line in Path(f"/proc/{process}/net/{kind}").read_text().splitlines()[1:]:
                    words = line.split()
                    if words[3] in ("0A", "07") and f"socket:[{words[9]}]" in sockets:
                        address, _, port = words[1].partition(":")
                        found.add((address, int(port, 16)))
    return found


def test_on_one_machine_nothing_listens_beyond_loopback(folder: Path) -> None:  # noqa: F811
    process = begin(folder, "train")
    try:
        found = listeners(folder)
        assert {address for address, _ in found} == {"0100007F"}
        assert {port for _, port in found} == {listening_port(process.pid)}  # the launcher's, and no other
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (130, "")


# ---- strangers ------------------------------------------------------------------------------------------------------


def test_idle_strangers_use_up_no_files_and_delay_no_end(folder: Path) -> None:  # noqa: F811
    """Each sends a byte, and then waits for longer than a job may take here."""
    process, files = begin(folder, "train"), 0
    with ExitStack() as strangers:
        port, accepted = listening_port(process.pid), 0
        for number in range(200):
            if number == 100:
                files = len(os.listdir(f"/proc/{process.pid}/fd"))
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (40, 40))
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            accepted += len(stranger.recv(CHALLENGE_BYTES)) > 0
            stranger.sendall(b"x")
        assert accepted == 200  # each at the cost of an older one
        assert files < liveness.STRANGERS + 30
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (130, "")
    assert sorted(out.splitlines()) == ["rank 0 has saved", "rank 1 has saved"]


def test_ranks_get_in_beside_strangers_that_wait(folder: Path) -> None:  # noqa: F811
    """They keep all the places for strangers taken while the ranks start."""
    process = subprocess.Popen([*PROGRAM, "launch", "2", "speak", str(folder)], stdout=subprocess.PIPE, text=True)
    with ExitStack() as strangers:
        port = 0
        while not port:
            with suppress(AssertionError, OSError):
                port = listening_port(process.pid)
        with suppress(ConnectionError):
            for _ in range(300):
                strangers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert sorted(out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


# ---- members of the job that misbehave ------------------------------------------------------------------------------


class Member:
    """A connection of somebody who knows the secret."""

    def __init__(self, address: LauncherAddress, stream: str = "control", rank: int = 0, size: int = 2, pid: int = 1):
        self.connection = socket.create_connection(address.places[0], timeout=10)
        challenge = challenge_of(self.connection.recv(CHALLENGE_BYTES, socket.MSG_WAITALL))
        self.hello = proven(address.secret, challenge, Hello(stream, rank, size, "nowhere", pid, "00"))
        self.seal = Seal(address.secret, challenge, self.hello, "rank")
        self.sent = encode(self.hello) + b"\n"
        self.connection.sendall(self.sent)
        self.welcome = self.connection.recv(200)
        self.genuine = self.welcome == welcome_line(address.secret, challenge, self.hello)

    def ended(self) -> bool:
        """Whether the launcher closes the connection, heartbeats aside."""
        with suppress(ConnectionError):
            while self.connection.recv(1000):
                pass
        return True


@pytest.fixture
def telling(folder: Path) -> Iterator[tuple[subprocess.Popen[str], LauncherAddress]]:  # noqa: F811
    """A job that trains, and the address of its launcher, as a rank has told."""
    process = begin(folder, "tell_secret")
    yield process, LauncherAddress.parse((folder / "address").read_text())
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"stream": "x\n"}, "rank 0 of 2 wants stream 'x\\n' as process 1; connection closed"),
        ({"rank": 2}, "rank 2 of 2 wants stream 'control' as process 1; connection closed"),
        ({"pid": 0}, "rank 0 of 2 wants stream 'control' as process 0; connection closed"),
        ({"rank": 1}, "rank 1 connected twice, the second time as process 1 on nowhere"),
    ],
)
def test_a_member_of_the_job_that_asks_for_nonsense_is_refused_in_a_sentence(
    telling: tuple[subprocess.Popen[str], LauncherAddress], more: dict[str, object], sentence: str
) -> None:
    process, address = telling
    member = Member(address, **more)  # type: ignore[arg-type]
    assert member.welcome == b""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (130, f"dslide: error: {sentence}\n")


def test_what_was_said_on_another_connection_is_worth_nothing(
    telling: tuple[subprocess.Popen[str], LauncherAddress],
) -> None:
    process, address = telling
    member = Member(address, "out")
    assert member.genuine
    with socket.create_connection(address.places[0], timeout=10) as replay:
        replay.recv(CHALLENGE_BYTES)
        replay.sendall(member.sent)
        assert replay.recv(1) == b""
    process.send_signal(signal.SIGINT)
    member.connection.close()
    assert process.wait(timeout=LIMIT) == 130


def hello_and_seals() -> tuple[Seal, Seal]:
    hello = proven("secret", "challenge", Hello("control", 0, 2, HERE, 1, "00"))
    return Seal("secret", "challenge", hello, "rank"), Seal("secret", "challenge", hello, "launcher")


def test_a_sealed_line_is_taken_once_in_its_place_and_from_the_other_side_only() -> None:
    rank, launcher = hello_and_seals()
    lines = []
    for number in range(3):
        lines.append(rank.close(b"line %d" % number).rstrip(b"\n"))
        rank.sent += 1
    assert launcher.open(lines[0]) == b"line 0"
    for refused in (lines[0], lines[2], lines[1].replace(b"line", b"lime"), lines[1].partition(b" ")[2], b"", b"\xff"):
        with pytest.raises(ConnectionError, match="could not be authenticated"):
            launcher.open(refused)
    with pytest.raises(ConnectionError):
        rank.open(launcher.close(b"line 0").replace(b"0", b"1"))
    own, _ = hello_and_seals()
    with pytest.raises(ConnectionError):  # sent back
        own.open(own.close(b"heartbeat").rstrip(b"\n"))
    assert launcher.open(lines[1]) == b"line 1"


def test_a_rank_refuses_a_launcher_that_does_not_know_the_secret(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "address-0").write_text(str(LauncherAddress("secret", 5.0, (server.getsockname(),))))
        environment = {**os.environ, "DSLIDE_LAUNCHER": str(tmp_path / "address")}
        rank = subprocess.Popen([*PROGRAM, "speak", str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
        with ExitStack() as connections:
            for _ in range(3):
                connection, _ = server.accept()
                connections.enter_context(connection).sendall(b"challenge " + b"0" * 32 + b"\n")
                said = connection.recv(4096)
                connection.sendall(b"welcome " + b"0" * 64 + b"\n")
                assert b"secret" not in said
                assert encode(Exit(0, [])) not in said
            _, err = rank.communicate(timeout=LIMIT)
    assert rank.returncode == 4
    assert f"rank 0 ({HERE}) can't reach the launcher at 127.0.0.1:" in err
    assert not (tmp_path / "address-0").exists()


# ---- files that others wrote ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["ranks = 2", 'hosts = "hosts.txt"', "elastic = true", "elastic = false"])
def test_a_file_of_options_starts_no_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str) -> None:
    (tmp_path / "run.toml").write_text(line)
    assert main(["train", "data.txt", "--config", str(tmp_path / "run.toml")]) == 2
    name = line.split()[0]
    expected = f"{tmp_path}/run.toml: {name}: a file can't start processes; give --{name} on the command line"
    assert capfd.readouterr().err == f"dslide: error: {expected}\n"


# ---- hosts ----------------------------------------------------------------------------------------------------------


def test_hosts_get_listed_variables_only_and_the_secret_is_in_no_environment_or_command(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ssh = folder / "ssh"
    ssh.write_text(SSH.format(sh=shutil.which("sh")))
    ssh.chmod(0o755)
    monkeypatch.setenv(SHELL, str(ssh))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command, hosts = [*PROGRAM, "tell_secret", str(folder)], [Host("one"), Host("two")]
    imports = "from dslide.launch.mpiexec import Host; from dslide.launch.launcher import launch"
    starter = [sys.executable, "-c", f"{imports}; launch({command!r}, 2, {hosts!r})", str(folder)]
    process = subprocess.Popen(starter, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + LIMIT
    while not all((folder / f"begun-{rank}").exists() for rank in range(2)):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    secret = LauncherAddress.parse((folder / "address").read_text()).secret
    ranks = [line.split()[0] for line in processes_of(folder) if f"{rank_program.__file__} tell_secret" in line]
    remote = [Path(f"/proc/{rank}/environ").read_bytes() for rank in ranks if int(rank) != process.pid]
    remote = [environment for environment in remote if b"PMI_RANK=" in environment]
    assert len(remote) == 2
    for environment in remote:
        assert b"OMP_NUM_THREADS=1\0" in environment
        assert CANARY.encode() not in environment
    for number in processes(folder):
        for name in ("environ", "cmdline"):
            assert secret.encode() not in Path(f"/proc/{number}/{name}").read_bytes()
    for _, port in listeners(folder):
        with suppress(OSError), socket.create_connection((socket.gethostname(), port), timeout=1) as stranger:
            stranger.sendall(b"twelve bytes")
            said = b""
            with suppress(OSError):
                while more := stranger.recv(1 << 16):
                    said += more
            assert CANARY.encode() not in said
            assert secret.encode() not in said
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert err == ""
