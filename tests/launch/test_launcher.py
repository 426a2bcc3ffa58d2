"""Ranks that the launcher starts with a real mpiexec: what they say, how they end, and that nothing stays behind."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import support.rank_program as rank_program

from dslide.cli import main
from dslide.launch.handshake import CHALLENGE_BYTES, challenge_of
from dslide.launch.mpiexec import Host, find_mpiexec, read_hosts, start_command
from dslide.launch.protocol import Hello, encode

pytestmark = pytest.mark.waiting
PROGRAM = [sys.executable, rank_program.__file__]
LIMIT = 60.0  # seconds for any job here
HERE = socket.gethostname()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that marks the processes of a test; afterwards none of them must be left."""
    yield tmp_path
    end = time.monotonic() + 10
    while (left := processes_of(tmp_path)) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        os.kill(int(process.split()[0]), signal.SIGKILL)
    assert not left


def processes_of(folder: Path) -> list[str]:
    listed = subprocess.run(["ps", "-e", "-ww", "-o", "pid,args"], capture_output=True, text=True, timeout=LIMIT)
    return [line for line in listed.stdout.splitlines() if str(folder) in line]


def job(folder: Path, deed: str, ranks: int = 2, stdin: bytes | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a job that does this."""
    ended = subprocess.run(
        [*PROGRAM, "launch", str(ranks), deed, str(folder)], input=stdin, capture_output=True, timeout=LIMIT
    )
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


def begin(folder: Path, deed: str) -> subprocess.Popen[str]:
    """A job of two ranks, both at work."""
    process = subprocess.Popen(
        [*PROGRAM, "launch", "2", deed, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + LIMIT
    while not all((folder / f"begun-{rank}").exists() for rank in range(2)):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


def test_what_ranks_say_keeps_its_stream(folder: Path) -> None:
    code, out, err = job(folder, "speak", ranks=3)
    assert code == 0
    assert sorted(out.splitlines()) == [f"rank {rank} of 3" for rank in range(3)]
    assert sorted(err.splitlines()) == [f"error stream of rank {rank}" for rank in range(3)]


def test_much_output_comes_complete_and_in_whole_lines(folder: Path) -> None:
    code, out, err = job(folder, "speak_much")
    assert code == 0
    for text, letter, step in ((out, "x", 1), (err, "y", 10)):
        lines = text.splitlines()
        for rank in range(2):
            of_rank = [line for line in lines if line.startswith(f"{rank} ")]
            assert of_rank == [f"{rank} {number} {letter * 50}" for number in range(0, rank_program.LINES, step)]
        assert len(lines) == 2 * rank_program.LINES // step


@pytest.mark.parametrize(
    ("deed", "code", "sentence"),
    [
        ("refuse", 2, f"rank 1 ({HERE}): this rank has a bad disk"),
        ("refuse_together", 2, "nobody can do this"),
        ("diverge", 3, "not finite in layer 2, step 7"),
        ("starve", 4, f"rank 1 ({HERE}): out of memory; `dslide plan` says what a network needs"),
        ("start_a_thread_too_many", 4, f"rank 1 ({HERE}): out of memory; `dslide plan` says what a network needs"),
        ("vanish", 4, f"rank 1 ({HERE}) exited without reporting (killed by SIGKILL)"),
    ],
)
def test_a_failure_is_said_once_in_one_sentence(folder: Path, deed: str, code: int, sentence: str) -> None:
    assert job(folder, deed) == (code, "", f"dslide: error: {sentence}\n")


def test_the_reason_is_what_a_rank_reports_whatever_it_prints(folder: Path) -> None:
    command = [*PROGRAM, "refuse_after_output", str(folder)]
    starter = f"from dslide.launch.launcher import launch; print(launch({command!r}, 2))"
    ended = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, timeout=LIMIT)
    sentence = f"rank 1 ({HERE}): this rank has a bad disk"
    printed = ["dslide: error: only some output"] * 2  # by two ranks, whose lines may come in any order
    assert sorted(ended.stderr.splitlines()) == sorted([*printed, f"dslide: error: {sentence}"])
    assert f"Outcome(code=2, reason={sentence!r}, ranks=(1,), " in ended.stdout


def test_a_bug_shows_the_traceback_of_the_rank_that_has_it(folder: Path) -> None:
    code, _, err = job(folder, "have_a_bug")
    assert code == 1
    assert err.count("Traceback") == 1
    assert err.endswith("KeyError: 'a bug'\n")


def test_a_rank_that_falls_silent_is_named_by_the_others(folder: Path) -> None:
    code, _, err = job(folder, "stop")
    assert code == 4
    assert err == f'dslide: error: rank 0 ({HERE}): exchange "end" of step 0: rank 1 silent for 2 s; given up\n'


def test_a_crash_shows_what_is_known_of_it(folder: Path) -> None:
    code, _, err = job(folder, "crash")
    assert code == 4
    assert err.startswith(f"dslide: error: rank 1 ({HERE}) exited without reporting (killed by SIGABRT); printed:\n")
    assert "Fatal Python error: Aborted" in err
    assert "BAD TERMINATION" not in err


def test_ranks_that_can_not_begin_are_named_with_the_reason(folder: Path) -> None:
    command = [sys.executable, f"{folder}/none.py"]
    starter = f"from dslide.launch.launcher import launch; raise SystemExit(launch({command!r}, 2).code)"
    ended = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, timeout=LIMIT)
    assert ended.returncode == 4
    assert ended.stderr.startswith("dslide: error: ranks 0 and 1 could not be started (exit status 2); printed:\n")
    assert f"can't open file '{folder}/none.py'" in ended.stderr


def test_ranks_that_do_not_begin_in_time_are_named_and_ended(folder: Path) -> None:
    assert job(folder, "sleep") == (4, "", "dslide: error: not started within 2 s: ranks 0 and 1\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_comes_to_its_own_end(folder: Path, number: signal.Signals) -> None:
    process = begin(folder, "train")
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (130, "")
    assert sorted(out.splitlines()) == ["rank 0 has saved", "rank 1 has saved"]


def test_a_second_interrupt_ends_the_job_at_once(folder: Path) -> None:
    process = begin(folder, "be_deaf")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=15) == ("", "dslide: error: interrupted\n")
    assert process.returncode == 130


def test_ranks_do_not_outlive_a_launcher_that_is_killed(folder: Path) -> None:
    process = begin(folder, "be_deaf")
    process.kill()
    process.communicate(timeout=15)  # the fixture looks for what is left


def listening_port(pid: int) -> int:
    """Where a process listens."""
    sockets = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
            assert words[1].startswith("0100007F:")  # of this machine only
            return int(words[1].split(":")[1], 16)
    raise AssertionError("it listens nowhere")


def test_strangers_at_the_launchers_port_change_nothing(folder: Path) -> None:
    process = begin(folder, "train")
    port = listening_port(process.pid)
    guessed = encode(Hello("control", 0, 2, HERE, 1, "12", "guessed")) + b"\n"
    surrogate = encode(Hello("control", 0, 2, HERE, 1, "12", "\ud800")) + b"\n"
    for said in (b"\n", b"[" * 50_000 + b"\n", b'["Hello", {}]\n', guessed, surrogate, b"\xff" * 200_000, b""):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
            challenge_of(stranger.recv(CHALLENGE_BYTES))
            with suppress(ConnectionError):
                stranger.sendall(said)
            if said:
                with suppress(ConnectionError):
                    assert stranger.recv(1) == b""  # cut off
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_reader_who_has_seen_enough_ends_the_job(folder: Path) -> None:
    process = subprocess.Popen([*PROGRAM, "launch", "2", "speak_much", str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=15) == 141


def test_a_terminal_sees_parts_of_lines_as_they_come(folder: Path) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 57, 0, 0))
    process = subprocess.Popen([*PROGRAM, "launch", "2", "draw", str(folder)], stderr=theirs)
    os.close(theirs)
    assert os.read(ours, 1000) == b"half a line, 57 columns"
    (folder / "read").touch()
    assert process.wait(timeout=LIMIT) == 0
    assert os.read(ours, 1000) == b"\rnow the whole line\r\n"
    os.close(ours)


def test_rank_0_reads_what_the_launcher_is_given(folder: Path) -> None:
    assert job(folder, "echo", stdin=b"0123456789" * 100_000) == (0, "1000000 True\n", "")


# ---- the command line ---------------------------------------------------------------------------------------------


def command(*words: object, by_hand: bool = False) -> tuple[int, str]:
    """Exit code and stderr of a dslide command, started by mpiexec itself if by hand."""
    start = [find_mpiexec().program, "-n", "2"] if by_hand else []
    ended = subprocess.run(
        [*start, sys.executable, "-m", "dslide.cli", *map(str, words)], capture_output=True, text=True, timeout=LIMIT
    )
    return ended.returncode, ended.stderr


def test_an_error_of_all_ranks_is_said_once(folder: Path) -> None:
    code, err = command("train", folder / "missing.txt", "--ranks", "2")
    assert code == 2
    assert err.count("dslide: error: ") == err.count("\n") == 1
    assert "missing.txt" in err


def test_under_mpiexec_by_hand_an_error_of_all_ranks_is_said_once() -> None:
    code, err = command("train", "x", "--epocs", "3", by_hand=True)
    assert code == 2
    assert err.count("there is no option --epocs; did you mean --epochs?") == 1
    _, err = command("train", "x", "--ranks", "2", by_hand=True)
    assert err.count("ranks: this is rank 0 of 2 already, started by others; leave --ranks out") == 1
    assert "rank 1 of 2" not in err


def refused(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["train", "x", *map(str, words)]) == 2
    err = capfd.readouterr().err
    assert err.startswith("dslide: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("dslide: error: ").rstrip("\n")


def test_without_mpiexec_one_sentence_says_how_to_get_it(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused(capfd, "--ranks", 2).endswith("mpiexec is needed, and there is none; pip install 'dslide[mpi]'")
    assert refused(capfd, "--ranks", 1).startswith("x: ")  # this process alone needs none


def test_mistakes_in_rank_options_and_host_files_are_named(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"

    def message(content: str, *more: object) -> str:
        path.write_text(content)
        return refused(capfd, "--hosts", path, *more).replace(str(path), "hosts.txt")

    assert refused(capfd, "--ranks", 0) == "ranks: expected at least 1, not 0"
    assert "expected a whole number, not 'two'" in refused(capfd, "--ranks", "two")
    assert message("# none\n\n") == "hosts.txt: there are no hosts in it; expected one per line"
    assert message("a\nb@c\n") == "hosts.txt:2: expected the name or IPv4 address of a host, not 'b@c'"
    assert message("a rank=2") == "hosts.txt:1: expected ranks=N, N from 1 to 9999, after a, not 'rank=2'"
    assert message("a\n\nb ranks=0").startswith("hosts.txt:3: expected ranks=N")
    assert message("a\na\n").startswith("hosts.txt:2: a is in line 1 already")
    assert message("a\nb ranks=2\n", "--ranks", 2).startswith("ranks: hosts.txt has 3 ranks, not 2")
    path.unlink()
    assert "can't be read" in refused(capfd, "--hosts", path)


def test_a_host_file(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("# office\nalpha   # fast\n\n  10.0.0.7 ranks=2\n")
    assert read_hosts(tmp_path / "h") == [Host("alpha"), Host("10.0.0.7", 2)]


@pytest.mark.parametrize(
    ("version", "local", "remote"),
    [
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13", "-bootstrap fork", "-bootstrap ssh -hosts a:1,b:2"),
        ("mpiexec (Open MPI) 5.0.8", "--host localhost:3 --oversubscribe", "--host a:1,b:2 --oversubscribe"),
    ],
)
def test_each_kind_of_mpiexec_gets_its_own_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, local: str, remote: str
) -> None:
    fake_mpiexec(tmp_path, monkeypatch, version)
    monkeypatch.setenv("SLURM_NTASKS", "7")
    for hosts, expected in ((), local), ((Host("a"), Host("b", 2)), remote):
        words, environment = start_command(3, hosts, {"DSLIDE_X": "1"})
        text = " ".join(words)
        assert expected in text
        assert text.endswith("-n 3")
        assert environment["DSLIDE_X"] == "1"
        assert "SLURM_NTASKS" not in environment
        if "Open MPI" in version:
            assert "-x DSLIDE_X" in text
            assert environment["OMPI_MCA_btl_tcp_eager_limit"] == "1048576"


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("HYDRA build details:", "-launcher ssh -launcher-exec /agent -hosts a:1,b:2"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13", "-bootstrap ssh -bootstrap-exec /agent -hosts a:1,b:2"),
        ("mpiexec (OpenRTE) 4.1.4", "--host a:1,b:2 --mca plm_rsh_agent /agent"),
        ("mpiexec (Open MPI) 5.0.8", "--host a:1,b:2 --prtemca plm_ssh_agent /agent"),
    ],
)
def test_each_kind_of_mpiexec_gets_its_own_launch_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, options: str
) -> None:
    fake_mpiexec(tmp_path, monkeypatch, version)
    assert " ".join(find_mpiexec().placement([Host("a"), Host("b", 2)], 3, "/agent")) == options


def test_an_unknown_mpiexec_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mpiexec(tmp_path, monkeypatch, "mpiexec of tomorrow")
    assert re.search("neither MPICH's.*'mpiexec of tomorrow'.*by hand", refused(capfd, "--ranks", 2))


def fake_mpiexec(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """An mpiexec, beside Python, that only knows its version."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "mpiexec"
    program.write_text(f"#!{shutil.which('sh')}\necho '{version}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(folder))
