"""A small program for several ranks that behaves or misbehaves as it is told: `rank_program.py DEED FOLDER`; FOLDER
also marks its processes, so that those left behind can be found. With `launch RANKS` before that, it starts them."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dslide.comm import Communicator, job
from dslide.errors import ConfigError, Diverged
from dslide.launch.exit import run_to_end
from dslide.launch.launcher import launch
from dslide.launch.rank_client import rank_client
from dslide.util.signals import deferred_interrupt
from dslide.util.terminal import launcher_columns

LINES = 20_000  # of 60 characters and more: many times what a pipe holds


def alone(comm: Communicator) -> None:
    print("a rank without others")


def speak(comm: Communicator) -> None:
    print(f"rank {comm.rank} of {comm.size}")
    print(f"error stream of rank {comm.rank}", file=sys.stderr)


def speak_much(comm: Communicator) -> None:
    for number in range(LINES):
        print(f"{comm.rank} {number} {'x' * 50}")
        if number % 10 == 0:
            print(f"{comm.rank} {number} {'y' * 50}", file=sys.stderr)


def refuse(comm: Communicator) -> None:
    if comm.rank == 1:
        raise ConfigError("this rank has a bad disk")


def refuse_after_output(comm: Communicator) -> None:
    print("dslide: error: only some output", file=sys.stderr)
    comm.barrier("printed")
    refuse(comm)


def refuse_together(comm: Communicator) -> None:
    def work() -> None:
        raise ConfigError("nobody can do this")

    comm.together("work", work)


def diverge(comm: Communicator) -> None:
    raise Diverged("not finite in layer 2, step 7")


def have_a_bug(comm: Communicator) -> None:
    if comm.rank == 1:
        raise KeyError("a bug")


def vanish(comm: Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def crash(comm: Communicator) -> None:
    if comm.rank == 1:
        os.abort()


def starve(comm: Communicator) -> None:
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
        bytearray(1 << 41)


def start_a_thread_too_many(comm: Communicator) -> None:
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))  # less than it has; a thread needs more
        threading.Thread(target=time.sleep, args=(0,)).start()


def stop(comm: Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def train(comm: Communicator) -> None:
    """Steps until a rank is interrupted, on which all agree; then saves."""
    with deferred_interrupt() as pressed:
        while not any(comm.gather_objects("step", pressed())):
            begun(comm)
            time.sleep(0.05)
    print(f"rank {comm.rank} has saved")
    comm.barrier("saved")


def tell_secret(comm: Communicator) -> None:
    """As `train`, when the secret of the job has been written to a file."""
    client = rank_client()
    assert client is not None
    (Path(sys.argv[2]) / "address").write_text(str(client.launcher))
    comm.barrier("told")
    train(comm)


def be_deaf(comm: Communicator) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begun(comm)
    time.sleep(60)


def draw(comm: Communicator) -> None:
    """Half a line on the terminal, ended only when somebody has read it."""
    if comm.rank == 0:
        sys.stderr.write(f"half a line, {launcher_columns()} columns")
        sys.stderr.flush()
        while not (Path(sys.argv[2]) / "read").exists():
            time.sleep(0.02)
        print("\rnow the whole line", file=sys.stderr)


def echo(comm: Communicator) -> None:
    if comm.rank == 0:
        content = sys.stdin.buffer.read()
        print(len(content), content == b"0123456789" * 100_000)


def begun(comm: Communicator) -> None:
    (Path(sys.argv[2]) / f"begun-{comm.rank}").touch()


DEEDS: dict[str, Callable[[Communicator], None]] = {
    deed.__name__: deed
    for deed in (
        alone, speak, speak_much, refuse, refuse_after_output, refuse_together, diverge, have_a_bug, vanish, crash,
        starve, start_a_thread_too_many, stop, train, tell_secret, be_deaf, draw, echo,
    )
}  # fmt: skip
INTERRUPTED = 130


def work() -> int:
    comm = job(limit=2.0)
    comm.barrier("begin")
    DEEDS[sys.argv[1]](comm)
    comm.barrier("end")
    comm.close()
    return INTERRUPTED if sys.argv[1] in ("train", "tell_secret") else 0


def start() -> int:
    ranks, deed = int(sys.argv[2]), sys.argv[3]
    program = [sys.executable, __file__, *sys.argv[3:]]
    if deed == "sleep":
        program = [sys.executable, "-c", "import time; time.sleep(60)", *sys.argv[4:]]
    return launch(program, ranks, start_limit=2.0 if deed == "sleep" else 60.0, stdin=deed == "echo").code


if __name__ == "__main__":
    sys.exit(run_to_end(start if sys.argv[1] == "launch" else work))
