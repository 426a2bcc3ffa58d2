"""Copies files to the disks of other ranks while training continues, so that the loss of a disk loses no data.

A file is sent in pieces on the communicator's side channel (`Communicator.send_side`). A rank has one piece in flight
at a time: the receiver acknowledges it when it is written, and the sender then pauses so that pieces take no more than
`SHARE` of the time, and so about that share of the link, whatever its bandwidth. Pieces grow on fast links, where the
round trip would take longer than the transfer, and shrink on slow ones, where they would delay exchanges.

The receiver accepts files of checkpoints only (`NAME`), which appear when size and checksum are verified. An error on
either side ends the one delivery, with a sentence, and nothing else. Threads of the replicator read and write files.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import struct
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

from dslide.checkpoint.manifest import CheckedFile
from dslide.comm import Communicator
from dslide.errors import CommError
from dslide.util.json_files import strict_json
from dslide.util.plain import make_plain_folder

SHARE = 0.1  # of the time that files may occupy a link during training
PIECE_LEAST, PIECE_MOST = 1 << 16, (1 << 20) - 64  # bytes; with its header the largest is no larger than other frames
PIECE_SECONDS = 0.02  # that a piece should take until it is acknowledged
NAME = re.compile(r"step-[0-9]{9,18}/(weights|optimizer)(-[0-9]{1,5}-of-[0-9]{1,5})?\.safetensors", re.ASCII)

_HEAD = struct.Struct("<BQ")  # kind of the message, number of the delivery
_BEGIN, _PIECE, _END, _ANSWER = range(4)
_POLL = 0.2  # seconds after which a waiting thread checks whether the replicator is closed or the receiver lost
_PATIENCE = 10  # an answer may take so many times the communicator's limit: the receiver's disk may be busy
_CLOSED = "the replicator is closed"
_numbers = itertools.count()  # of deliveries; unique, so that a late answer is not taken for another's


class _Refused(Exception):
    """Why a delivery has failed."""


@dataclass(eq=False)
class Delivery:
    """A file that is being sent to another rank."""

    to: int
    path: Path
    as_name: str
    state: Literal["running", "done", "failed"] = "running"
    error: str = ""  # why it failed

    def fail(self, why: str) -> None:
        self.error, self.state = f"{self.path}: {why}", "failed"


class Replicator:
    """Sends files to other ranks, and receives theirs into the folder `root`. To make one is a collective."""

    def __init__(self, comm: Communicator, root: Path) -> None:
        self._comm, self._root = comm, root
        self.share = SHARE  # of the time; 1: no pauses
        self._waiting: SimpleQueue[Delivery | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, str]] = SimpleQueue()
        self._arrived: SimpleQueue[tuple[int, int, int, memoryview] | None] = SimpleQueue()
        self._incoming: dict[int, tuple[int, CheckedFile]] = {}  # by sender: number of the delivery, file
        self._closed = threading.Event()
        comm.on_side(self._take)
        comm.barrier("replicators")  # no rank sends before all can receive
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._send_all, "dslide-replicator-out"), (self._receive_all, "dslide-replicator-in"))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, to: int, path: Path, as_name: str) -> Delivery:
        """Begins to send a file, which must not change meanwhile, to rank `to`, which stores it as `as_name`."""
        if to == self._comm.rank or not 0 <= to < self._comm.size:
            raise ValueError(f"rank {to} is no other rank of {self._comm.size}")
        delivery = Delivery(to, path, as_name)
        if self._closed.is_set():
            delivery.fail(f"rank {to} didn't get it: {_CLOSED}")
        else:
            self._waiting.put(delivery)
        return delivery

    def close(self) -> None:
        """Ends all deliveries; those that are not done fail."""
        if not self._closed.is_set():
            self._closed.set()
            self._comm.on_side(None)
            self._waiting.put(None)
            self._arrived.put(None)
        for thread in self._threads:
            thread.join()

    def _take(self, source: int, content: memoryview) -> None:
        """Called by the communicator, with its lock held: queues a message for the replicator's threads."""
        if len(content) < _HEAD.size:
            return  # not from a replicator
        kind, number = _HEAD.unpack_from(content)
        if kind == _ANSWER:
            self._answers.put((number, str(content[_HEAD.size :], "utf-8", "replace")))
        else:
            self._arrived.put((source, kind, number, content[_HEAD.size :]))

    def _send_all(self) -> None:
        while (delivery := self._waiting.get()) is not None:
            try:
                self._send_file(delivery)
                delivery.state = "done"
            except (_Refused, CommError) as error:
                delivery.fail(f"rank {delivery.to} didn't get it: {error}")
            except OSError as error:
                delivery.fail(f"can't be read: {error.strerror or error}")

    def _send_file(self, delivery: Delivery) -> None:
        number, crc, piece_size = next(_numbers), 0, 2 * PIECE_LEAST
        with open(delivery.path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            self._request(delivery.to, _BEGIN, number, delivery.as_name.encode())
            while piece := file.read(piece_size):
                crc = zlib.crc32(piece, crc)
                begin = time.monotonic()
                self._request(delivery.to, _PIECE, number, piece)
                took = time.monotonic() - begin
                self._closed.wait(took * (1 / self.share - 1))
                piece_size = next_size(piece_size, took)
        self._request(delivery.to, _END, number, json.dumps({"size": size, "crc32": crc}).encode())

    def _request(self, to: int, kind: int, number: int, content: bytes) -> None:
        """Sends a message and waits for the answer; _Refused if that is an error, or there is none."""
        if self._closed.is_set():
            raise _Refused(_CLOSED)
        self._comm.send_side(to, _HEAD.pack(kind, number) + content)
        patience = time.monotonic() + _PATIENCE * self._comm.limit
        while True:
            with suppress(Empty):
                answered, error = self._answers.get(timeout=_POLL)
                if answered == number:
                    if error:
                        raise _Refused(error)
                    return
            if lost := _CLOSED if self._closed.is_set() else self._comm.lost(to):
                raise _Refused(lost)
            if time.monotonic() > patience:
                raise _Refused(f"it doesn't answer for {_PATIENCE * self._comm.limit:g} s")

    def _receive_all(self) -> None:
        while (arrived := self._arrived.get()) is not None:
            source, kind, number, content = arrived
            error = self._receive(source, kind, number, content)
            with suppress(CommError):  # the sender is lost and needs no answer
                self._comm.send_side(source, _HEAD.pack(_ANSWER, number) + error.encode())
        for source in [*self._incoming]:
            self._discard(source)

    def _receive(self, source: int, kind: int, number: int, content: memoryview) -> str:
        """Handles a sender's message; returns the error, or nothing."""
        if kind == _BEGIN:
            self._discard(source)  # the sender has abandoned it
        elif source not in self._incoming or self._incoming[source][0] != number:
            return "unknown transfer"
        try:
            if kind == _BEGIN:
                self._incoming[source] = number, self._new_file(str(content, "utf-8", "replace"))
            elif kind == _PIECE:
                self._incoming[source][1].write(content)
            else:
                file, sent = self._incoming[source][1], _parsed(content)
                if file.entry != sent:
                    received = f"{file.entry['size']} bytes of {sent.get('size')} were received"
                    raise _Refused(f"{received}, or the checksum differs")
                file.commit()
                del self._incoming[source]
            return ""
        except _Refused as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename or self._root}: {error.strerror or error}"
        self._discard(source)
        return problem

    def _discard(self, source: int) -> None:
        if source in self._incoming:
            self._incoming.pop(source)[1].discard()

    def _new_file(self, name: str) -> CheckedFile:
        if not NAME.fullmatch(name):
            raise _Refused(f"{name!r} is not the name of a file of a checkpoint")
        path = self._root / name
        make_plain_folder(path.parent, _Refused)
        return CheckedFile(path)


def _parsed(content: memoryview) -> dict[str, object]:
    """Size and checksum of a file, as its sender says; whatever is not that differs from those of any file."""
    with suppress(ValueError, RecursionError):
        sent = strict_json(bytes(content))
        if isinstance(sent, dict):
            return sent
    return {}


def next_size(size: int, seconds: float) -> int:
    """Bytes of the next piece, after one of `size` bytes that took `seconds`."""
    return min(PIECE_MOST, 2 * size) if seconds < PIECE_SECONDS else max(PIECE_LEAST, size // 2)
