"""What is damaged and opened of runs and their ranks: checkpoints, resuming, locks, models to go on from, frames
between ranks, requests to a server."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from fuzz.mutations import bytes_mutated, file_replaced, folder_mutated, json_mutated, sealed
from support.inprocess import run_ranks

import dslide
from dslide import _core
from dslide.checkpoint.relabel import relabel
from dslide.checkpoint.replicator import Replicator
from dslide.comm.frames import OVERHEAD, Kind, pack, unpack
from dslide.data import read_names
from dslide.errors import ConfigError
from dslide.serve.options import ServeOptions
from dslide.serve.requests import BadRequest, parse
from dslide.training.run_lock import RunLock

DATA = b"0 0:1 3:0.5\n1 1:2.25\n2 2:1\n0 4:1\n1 0:1 2:1\n"
OPTIONS = {"hidden": (4,), "threads": 1, "validation": 0.0, "checkpoint_seconds": 0.0, "batch_size": 2}
NAMES = "a\nb b\n\u00e9t\u00e9\n".encode()


def train(folder: Path) -> Path:
    """A run of two epochs, with two checkpoints."""
    data = folder.with_name("data")
    data.write_bytes(DATA)
    names = folder.with_name("names")
    names.write_bytes(NAMES)
    dslide.train(data, out=folder, epochs=1, format="libsvm", base=0, label_names=names, **OPTIONS)
    dslide.resume(folder, data, epochs=2, format="libsvm", base=0, label_names=names)
    return folder


class RunTarget:
    """The folder of a run. Manifests mostly get good checksums, or nothing would get past these."""

    def __init__(self, sample: Path, open: Callable[[Path, Random], object]) -> None:
        self.sample, self.open = train(sample), open

    def damage(self, random: Random, path: Path, outside: Path) -> None:
        folder_mutated(random, self.sample, path, outside)
        for step in sorted((path / "checkpoints").glob("step-*")):
            if random.random() < 0.9:
                sealed(step)
        what, step = random.random(), random.choice(sorted((path / "checkpoints").glob("step-*")))
        if what < 0.1:
            shutil.rmtree(step)
            step.touch()
            file_replaced(random, step, outside)
        elif what < 0.15:
            step.rename(
                step.with_name(random.choice(["step-1", "step-000000000", "step-" + "9" * 18, "step-x", "latest2"]))
            )
        elif what < 0.25 and (latest := path / "checkpoints/latest").is_file():
            file_replaced(random, latest, outside)
        elif what < 0.3 and (log := path / "log.jsonl").is_file():
            file_replaced(random, log, outside)


def predict(folder: Path, _: Random) -> None:
    list(dslide.predict(folder, folder.parent.parent / "data", threads=1, format="libsvm", base=0))


def resume(folder: Path, random: Random) -> None:
    """Training goes on, in a copy: it may change the run, but nothing that the run leads to."""
    copy = folder.parent / "run"
    shutil.copytree(folder, copy, symlinks=True, copy_function=copied)
    scratch = folder.parent.parent
    names = {"label_names": scratch / "names"}
    use = dslide.resume
    if random.random() < 0.3:
        dslide.train(
            scratch / "data", out=folder.parent / "new", start_from=copy, epochs=1, threads=1, format="libsvm", base=0
        )
        return
    use(copy, scratch / "data", epochs=3, threads=1, format="libsvm", base=0, **names)


def copied(source: str, target: str) -> None:
    if os.path.isfile(source):
        shutil.copy2(source, target, follow_symlinks=False)
    else:
        os.mkfifo(target)


class FilesTarget:
    """Some files, of which one is damaged in each example."""

    def __init__(self, sample: Path, files: dict[str, bytes], open: Callable[[Path, Random], object]) -> None:
        self.sample, self.open = sample, open
        sample.mkdir()
        for name, content in files.items():
            (sample / name).write_bytes(content)

    def damage(self, random: Random, path: Path, _: Path) -> None:
        path.mkdir()
        chosen = random.choice(sorted(self.sample.iterdir()))
        damaged = json_mutated if chosen.suffix == ".json" and random.random() < 0.7 else bytes_mutated
        (path / chosen.name).write_bytes(damaged(random, chosen.read_bytes()))


class LockTarget(FilesTarget):
    """A lock, fresh or stale."""

    def damage(self, random: Random, path: Path, outside: Path) -> None:
        super().damage(random, path, outside)
        if random.random() < 0.1:
            file_replaced(random, path / "lock", outside)
        elif random.random() < 0.5:
            os.utime(path / "lock", (1, 1))


def lock(sample: Path) -> FilesTarget:
    """The lock of a run, which is taken in a copy of its folder."""
    about = {"host": "h", "process": 7, "started": "1", "machine": "m", "job": "", "time": 1}

    def open(folder: Path, _: Random) -> None:
        copy = folder.parent / "run"
        shutil.copytree(folder, copy, symlinks=True, copy_function=copied)
        RunLock(copy).release()

    return LockTarget(sample, {"lock": json.dumps(about).encode()}, open)


def frames(sample: Path) -> FilesTarget:
    """Frames between ranks, some with the right checksum after the damage, and the messages in them."""
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    files = {f"message-{name}": _core.wire_encode(matrix, 0, 1, 4, name) for name in ("float32", "bf16", "int8")}
    files |= {f"frame-{kind.name}": pack(kind, "step 1", 7, b"content " * 3) for kind in Kind}

    def open(folder: Path, random: Random) -> None:
        (path,) = folder.iterdir()
        content = path.read_bytes()
        if path.name.startswith("frame"):
            if random.random() < 0.5 and len(content) >= OVERHEAD:
                content = pack(Kind(random.randrange(len(Kind))), "step 1", random.randrange(2**64), content[OVERHEAD:])
            found = unpack(content)
            if found is None:
                raise ConfigError("a damaged frame")
            assert len(found.content) == len(content) - OVERHEAD
            return
        out = np.zeros((3, 4), np.float32)
        try:
            _core.wire_decode(content, out, 0, 1, 4, random.random() < 0.5)
        except ValueError as error:
            assert not out.any()
            raise ConfigError(str(error)) from None

    return FilesTarget(sample, files, open)


def requests(sample: Path) -> FilesTarget:
    """Bodies of requests to a server."""
    bodies = {
        "text.json": {"text": "a b", "k": 3, "threshold": 0.5, "why": 2},
        "texts.json": {"texts": ["a", "b"], "limit": 1},
        "row.json": {"row": {"a": 1, "2": 0.5}}, "users.json": {"users": [["a", 1], []], "project": "x"},
    }  # fmt: skip
    files = {name: json.dumps(body).encode() for name, body in bodies.items()}
    files["form"] = b"text=a+b%20c&k=3&threshold=0.5"

    def open(folder: Path, random: Random) -> None:
        (path,) = folder.iterdir()
        kind = random.choice(["application/json", "application/x-www-form-urlencoded; charset=utf-8", ""])
        try:
            parse(path.read_bytes(), kind, ServeOptions("model", most_rows=10))
        except BadRequest as error:
            error.message.encode()  # becomes the body of an answer
            raise ConfigError(error.message) from None

    return FilesTarget(sample, files, open)


def relabelled(folder: Path, random: Random) -> None:
    """A model with labels removed and renamed as damaged lists say."""
    names = folder.parent / "names"
    content = bytes_mutated(random, NAMES)
    names.write_bytes(content)
    words = read_names(names)
    relabel(folder, folder.parent / "out", remove=words[:1], rename={word: word[::-1] for word in words[1:]})


def replicas(sample: Path) -> FilesTarget:
    """Messages of the side channel, by which a rank sends files to another one's disk."""
    name = b"step-000000012/weights-0-of-2.safetensors"
    files = {"0-begin": b"\0" + b"\1" * 8 + name, "1-piece": b"\1" + b"\1" * 8 + b"xyz" * 9,
             "2-end": b"\2" + b"\1" * 8 + b'{"size": 27, "crc32": 5}'}  # fmt: skip

    def open(folder: Path, random: Random) -> None:
        root = folder.parent / "disk"
        messages = [path.read_bytes() for path in sorted(folder.iterdir())]

        def work(comm: dslide.comm.Communicator) -> None:
            helper = Replicator(comm, root)
            for message in messages:
                kind, number, rest = message[0], int.from_bytes(message[1:9], "little"), memoryview(message[9:])
                helper._receive(0, kind % 3, number, rest)
            helper.close()

        run_ranks(1, work)
        files = [path for path in root.rglob("*") if path.is_file()] if root.exists() else []
        assert all(path.name.endswith((".partial", ".safetensors")) for path in files), files

    class Messages(FilesTarget):
        def damage(self, random: Random, path: Path, _: Path) -> None:
            path.mkdir()
            for file in self.sample.iterdir():
                content = file.read_bytes()
                damaged = content[:9] + bytes_mutated(random, content[9:]) if random.random() < 0.4 else content
                (path / file.name).write_bytes(damaged)

    return Messages(sample, files, open)
