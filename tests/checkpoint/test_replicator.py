"""Copies of files on other ranks: they arrive unchanged, disturb no exchange and take a bounded share of the link; an
error ends only the delivery that it concerns."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.communicator_contract import all_to_all, same
from support.inprocess import Fault, Injection, InProcess, Wires, rank_outcomes, run_ranks
from support.mpi_run import run_mpi

from dslide.checkpoint import replicator
from dslide.checkpoint.replicator import PIECE_LEAST, PIECE_MOST, PIECE_SECONDS, SHARE, Delivery, Replicator, next_size
from dslide.comm import Communicator
from dslide.comm.frames import Kind, unpack

pytestmark = pytest.mark.waiting
NAME = "step-000000012/weights-{}-of-4.safetensors"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests that are not about the pace don't wait for it."""
    if "pace" not in request.node.name:
        monkeypatch.setattr(replicator, "SHARE", 0.9)


def content(rank: int, size: int) -> bytes:
    return bytes((rank * 7 + i * i) % 251 for i in range(997)) * (size // 997) + b"x" * (size % 997)


def ended(delivery: Delivery) -> Delivery:
    """Waits until it is done or failed."""
    begin = time.monotonic()
    while delivery.state == "running":
        assert time.monotonic() < begin + 60, "a delivery hangs"
        time.sleep(0.005)
    return delivery


def given_file(folder: Path, rank: int, size: int) -> Path:
    path = folder / f"own-{rank}"
    path.write_bytes(content(rank, size))
    return path


def partly_received(folder: Path) -> bool:
    """Whether rank 1 has written some of a file that is not complete yet."""
    return any(path.stat().st_size > 0 for path in folder.glob(f"disk-1/{Path(NAME).parent}/.*.partial"))


# ---- arriving -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2 * PIECE_LEAST, 2 * PIECE_LEAST + 1, 3_000_000])
def test_files_arrive_while_ranks_exchange(tmp_path: Path, size: int) -> None:
    """Every rank sends two files to the next while all exchange messages, whose order and content stay as they are."""

    def work(comm: Communicator) -> None:
        root = tmp_path / f"disk-{comm.rank}"
        helper = Replicator(comm, root)
        path = given_file(tmp_path, comm.rank, size)
        to = (comm.rank + 1) % comm.size
        names = [NAME.format(comm.rank), NAME.format(comm.rank).replace("weights", "optimizer")]
        sent = [helper.send(to, path, name) for name in names]
        for number in range(10_000):
            exchange, want = all_to_all(comm, number, 50_000)
            same(exchange.wait(), want)
            if all(comm.gather_objects("done", all(delivery.state != "running" for delivery in sent))):
                break
        assert [(delivery.state, delivery.error) for delivery in sent] == [("done", "")] * 2
        helper.close()

    run_ranks(3, work)
    for rank in range(3):
        folder = tmp_path / f"disk-{(rank + 1) % 3}/step-000000012"
        assert sorted(path.name for path in folder.iterdir()) == [
            f"{kind}-{rank}-of-4.safetensors" for kind in ("optimizer", "weights")
        ]
        for path in folder.iterdir():
            assert path.read_bytes() == content(rank, size)


MPI = """
import sys, time
from pathlib import Path
from support.communicator_contract import all_to_all, same
from dslide.checkpoint import replicator
from dslide.comm import job
replicator.SHARE = 0.9
comm = job(20.0)
root = Path(sys.argv[1])
own = root / f"own-{comm.rank}"
own.write_bytes(bytes([comm.rank]) * 5_000_000)
helper = replicator.Replicator(comm, root / f"disk-{comm.rank}")
name = f"step-000000012/weights-{comm.rank}-of-3.safetensors"
delivery = helper.send((comm.rank + 1) % comm.size, own, name)
for number in range(100_000):
    exchange, want = all_to_all(comm, number, 20_000)
    same(exchange.wait(), want)
    if all(comm.gather_objects("done", delivery.state != "running")):
        break
assert delivery.state == "done", delivery.error
helper.close()
other = (comm.rank - 1) % comm.size
got = (root / f"disk-{comm.rank}" / f"step-000000012/weights-{other}-of-3.safetensors").read_bytes()
assert got == bytes([other]) * 5_000_000
print("done\\n", end="")
"""


def test_files_arrive_over_mpi(tmp_path: Path) -> None:
    run = run_mpi(3, MPI, tmp_path)
    assert run.code == 0, run
    assert run.stdout.count("done") == 3


# ---- the pace -------------------------------------------------------------------------------------------------------


class Slow(InProcess):
    """A link of limited speed, by a clock; notes when frames of files enter it, and how long they take."""

    def __init__(self, rank: int, links: Wires, bytes_a_second: float) -> None:
        super().__init__(rank, links)
        self._speed, self._free = bytes_a_second, 0.0
        self.pieces: list[tuple[float, int]] = []  # time, bytes

    def send(self, to: int, frame: bytes) -> None:
        now = time.monotonic()
        self._free = max(now, self._free) + len(frame) / self._speed
        said = unpack(frame)
        assert said is not None
        if said.kind == Kind.SIDE and len(said.content) > 1000:
            self.pieces.append((now, len(said.content)))
        self._links[self.rank][to].append((self._free, frame))


@pytest.mark.parametrize("speed", [2e6, 2e7])
def test_pace_is_a_share_of_the_link(tmp_path: Path, speed: float) -> None:
    """Between two pieces there is the time of the first, many times over; a slow machine makes it longer, never
    shorter."""
    links: Wires = [[deque() for _ in range(2)] for _ in range(2)]
    transports = [Slow(rank, links, speed) for rank in range(2)]
    size = int(speed * SHARE * 1.5)

    def run(rank: int) -> None:
        comm = Communicator(transports[rank], 20.0)
        helper = Replicator(comm, tmp_path / f"{rank}")
        if rank == 0:
            delivery = ended(helper.send(1, given_file(tmp_path, 0, size), NAME.format(0)))
            states.append(delivery.state)
        comm.barrier("done")
        helper.close()
        comm.close()

    states: list[str] = []
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert states == ["done"]
    assert transports[1].pieces == []
    sent = transports[0].pieces
    assert sum(length for _, length in sent) >= size
    for (begin, length), (later, _) in pairwise(sent):
        assert later - begin >= length / speed / SHARE * 0.99


@given(st.integers(PIECE_LEAST, PIECE_MOST), st.floats(0, 100))
def test_pace_sets_the_size_of_pieces(size: int, seconds: float) -> None:
    following = next_size(size, seconds)
    assert PIECE_LEAST <= following <= PIECE_MOST
    assert (following >= size) == (seconds < PIECE_SECONDS or size == PIECE_LEAST)


# ---- failures ------------------------------------------------------------------------------------------------------


def failing(
    tmp_path: Path, as_name: str = NAME.format(0), path: Path | None = None, root: Path | None = None
) -> list[str]:
    """How rank 0's delivery to rank 1 ends, and one after it to show that nothing else has."""

    def work(comm: Communicator) -> list[str]:
        helper = Replicator(comm, root or tmp_path / f"disk-{comm.rank}")
        said = []
        if comm.rank == 0:
            first = ended(helper.send(1, path or given_file(tmp_path, 0, 300_000), as_name))
            assert first.state == "failed"
            said.append(first.error)
            if root is None:
                assert ended(helper.send(1, given_file(tmp_path, 0, 10), NAME.format(2))).state == "done"
        comm.barrier("training continues")
        helper.close()
        return said

    return run_ranks(2, work)[0]


@pytest.mark.parametrize(
    "name",
    [
        "../x", "/etc/passwd", "step-000000012", "step-000000012/../weights-1-of-4.safetensors",
        "step-1/weights-1-of-4.safetensors", "x/step-000000012/weights.safetensors",
        "step-000000012/weights-1-of-4.safetensors\n", "step-000000012/weights-1-of-4.safetensors/x", "",
        "step-000000012/manifest.json", "step-00000001٢/weights-1-of-4.safetensors",
        "step-000000012\0/weights.safetensors",
    ],
    ids=repr,
)  # fmt: skip
def test_hostile_names_are_refused(tmp_path: Path, name: str) -> None:
    (said,) = failing(tmp_path, as_name=name)
    assert said == f"{tmp_path}/own-0: rank 1 didn't get it: {name!r} is not the name of a file of a checkpoint"
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == [f"disk-1/{NAME.format(2)}", "own-0"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (said,) = failing(tmp_path, path=tmp_path / "none")
    assert said == f"{tmp_path}/none: can't be read: No such file or directory"


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    (said,) = failing(tmp_path, root=tmp_path / "blocked")
    assert said.startswith(f"{tmp_path}/own-0: rank 1 didn't get it: {tmp_path}/blocked")
    assert said.endswith(": Not a directory")


FULL = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import test_replicator
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tmp = Path(sys.argv[1])
path = test_replicator.given_file(tmp, 9, 3_000_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))  # as if the disk were full behind it
print(*test_replicator.failing(tmp, path=path))
"""


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path), str(Path(__file__).parent), str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    words = os.strerror(27)  # EFBIG
    assert done.stdout == f"{tmp_path}/own-9: rank 1 didn't get it: {tmp_path}/disk-1: {words}\n"
    assert [path.name for path in (tmp_path / "disk-1").rglob("*") if path.is_file()] == [Path(NAME.format(2)).name]


@pytest.mark.parametrize("how", ["fails", "leaves", "falls silent", "replicator closes"])
def test_a_receiver_that_is_lost_during_a_delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(replicator, "SHARE", 0.01)  # so that it takes long
    if how == "replicator closes":
        monkeypatch.setattr(replicator, "_PATIENCE", 0.1)

    def work(comm: Communicator) -> Any:
        helper = Replicator(comm, tmp_path / f"disk-{comm.rank}")
        if comm.rank == 1:
            while not partly_received(tmp_path):
                time.sleep(0.005)
            if how == "fails":
                raise RuntimeError("out of luck")
            if how == "falls silent":
                comm.post("from here on", [b"", b""])
            helper.close()
            assert not list(tmp_path.glob("disk-1/*/.*"))
            if how == "replicator closes":
                comm.barrier("end")
            return None
        delivery = ended(helper.send(1, given_file(tmp_path, 0, 10_000_000), NAME.format(0)))
        if how == "replicator closes":
            comm.barrier("end")
        helper.close()
        return delivery.state, delivery.error

    dead = [Injection(Fault.KILL, rank=1, piece=1)] if how == "falls silent" else []
    state, error = rank_outcomes(2, work, 1.0 if dead else 20.0, dead)[0]
    reason = {
        "fails": "rank 1 failed: RuntimeError: out of luck",
        "leaves": "rank 1 has ended",
        "falls silent": "rank 1 silent for 1 s",
        "replicator closes": "it doesn't answer for 2 s",
    }[how]
    assert (state, error) == ("failed", f"{tmp_path}/own-0: rank 1 didn't get it: {reason}")


@pytest.mark.parametrize("change", ["shorter", "longer"])
def test_a_file_that_changes_while_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr(replicator, "SHARE", 0.02)

    def work(comm: Communicator) -> Any:
        helper = Replicator(comm, tmp_path / f"disk-{comm.rank}")
        delivery = None
        if comm.rank == 0:
            path = given_file(tmp_path, 0, 3_000_000)
            delivery = helper.send(1, path, NAME.format(0))
            while not partly_received(tmp_path):
                time.sleep(0.001)
            os.truncate(path, 2_000_000 if change == "shorter" else 3_000_001)
            ended(delivery)
        comm.barrier("end")
        helper.close()
        return delivery

    delivery = run_ranks(2, work)[0]
    assert delivery.state == "failed"
    words = f"{2_000_000 if change == 'shorter' else 3_000_001} bytes of 3000000 were received, or the checksum differs"
    assert delivery.error == f"{tmp_path}/own-0: rank 1 didn't get it: {words}"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "own-0"]


def test_a_sender_that_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicator, "SHARE", 0.001)

    def work(comm: Communicator) -> list[str]:
        helper = Replicator(comm, tmp_path / f"disk-{comm.rank}")
        if comm.rank == 1:
            comm.barrier("end")
            helper.close()
            return []
        path = given_file(tmp_path, 0, 1_000_000)
        sent = [helper.send(1, path, NAME.format(rank)) for rank in range(2)]
        helper.close()
        helper.close()
        sent.append(helper.send(1, path, NAME.format(2)))
        comm.barrier("end")
        return [f"{each.state}: {each.error}" for each in sent]

    words = f"failed: {tmp_path}/own-0: rank 1 didn't get it: the replicator is closed"
    assert run_ranks(2, work)[0] == [words] * 3
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "own-0"]


def test_only_other_ranks_get_files(tmp_path: Path) -> None:
    def work(comm: Communicator) -> None:
        helper = Replicator(comm, tmp_path)
        for to in (comm.rank, -1, 2):
            with pytest.raises(ValueError, match=f"rank {to} is no other rank of 2"):
                helper.send(to, tmp_path / "x", NAME.format(0))
        helper.close()

    run_ranks(2, work)


def test_messages_without_a_receiver_are_dropped() -> None:
    def work(comm: Communicator) -> None:
        comm.send_side(1 - comm.rank, b"anybody?")
        comm.barrier("next")
        before = comm.bytes_sent
        comm.send_side(1 - comm.rank, b"anybody?")
        assert comm.bytes_sent == before
        comm.barrier("last")

    run_ranks(2, work)
