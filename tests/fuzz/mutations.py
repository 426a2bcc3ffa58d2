"""Ways to damage what is valid: bytes, JSON, safetensors, files of a folder. All follow from random numbers."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

WORDS = [  # that parsers may trip over
    b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n", b"\n\n", b"\t", b"\x0b", b" ",
    b"-", b"-1", b"0", b"1", b"2147483646", b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807",
    b"18446744073709551616", b"9" * 40, b"9" * 5000, b"0x" + b"f" * 4000, b"1e999999999", b"-1e-999999999", b"1e38",
    b"1e39", b"." * 3, b"1.", b".5", b"0" * 400 + b"1", b"nan", b"inf", b"NaN", b"-Infinity", b"null", b"true", b"[]",
    b"{}", b'"', b"'", b"\\ud800", b"\\u0000", b":", b",", b"#", b"=", b"[" * 3000, b"a={" * 1000, b"{\"a\":" * 3000,
    b"../../outside/secret", b"%s%n{0}", b"\x1f\x8b", b"\xfd7zXZ\x00", b"1 2147483647 2147483647\n",
]  # fmt: skip
VALUES: list[Any] = [  # that JSON may hold
    None, True, False, 0, 1, -1, 2, 3.5, 1e308, float("nan"), float("inf"), 2**31 - 1, 2**31, 2**32, 2**53 + 1,
    2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**4000, "", "x", "\x00", "\ud800", "a\nb", "9" * 50, "1",
    "<U999999999", "|O", "V8", "<f8", "../../outside/secret", "x" * 10_000, [], [1], [-1], ["x"], [[[]]], {}, {"x": 1},
    [2**62, 0], [0] * 40, [True], "F32", "I64", "U8", "auto", "lsh", "bf16", "sigmoid", "adam",
]  # fmt: skip


def bytes_mutated(random: Random, content: bytes) -> bytes:
    """With one to four small damages, mostly one."""
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        content = random.choice(_BYTES)(random, content)
    return content


def _flipped(random: Random, content: bytes) -> bytes:
    if not content:
        return content
    changed = bytearray(content)
    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(random: Random, content: bytes) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _span(random: Random, content: bytes) -> tuple[int, int]:
    begin = random.randrange(len(content) + 1)
    return begin, min(len(content), begin + random.choice([1, 2, 5, 20, 200]))


def _without(random: Random, content: bytes) -> bytes:
    begin, end = _span(random, content)
    return content[:begin] + content[end:]


def _spliced(random: Random, content: bytes) -> bytes:
    begin, end = _span(random, content)
    at = random.randrange(len(content) + 1)
    return content[:at] + content[begin:end] * random.choice([1, 1, 2, 50]) + content[at:]


def _inserted(random: Random, content: bytes) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + random.choice(WORDS) + content[at:]


def _renumbered(random: Random, content: bytes) -> bytes:
    found = list(re.finditer(rb"\d+", content[:10_000]))
    if not found:
        return content
    where = random.choice(found)
    return content[: where.start()] + random.choice(WORDS) + content[where.end() :]


_BYTES = [_flipped, _cut, _without, _spliced, _inserted, _renumbered]


def json_mutated(random: Random, content: bytes) -> bytes:
    """A JSON text with one value changed, left out or added, or a key given twice; now and then any damage at all."""
    if random.random() < 0.1:
        return bytes_mutated(random, content)
    value = json.loads(content)
    places = list(_places(value))
    if not places:
        return json.dumps(random.choice(VALUES)).encode()
    holder, key = random.choice(places)
    what = random.random()
    if what < 0.6:
        holder[key] = random.choice(VALUES)
    elif what < 0.7:
        del holder[key]
    elif what < 0.8 and isinstance(holder, dict):
        holder[random.choice(["x", "", "../x", "\ud800", "__metadata__"])] = random.choice(VALUES)
    elif what < 0.9:
        holder[key] = json.loads(json.dumps(random.choice(places)[0]))
    else:
        value = random.choice(VALUES)
    text = json.dumps(value)
    if what > 0.55 and what < 0.6:  # the first key again
        text = re.sub(r'^\{\s*("[^"]*": )', r"{\g<1>null, \g<1>", text)
    return text.encode()


def _places(value: Any) -> Any:
    """Where a value can be put: containers and keys."""
    keys = value.keys() if isinstance(value, dict) else range(min(len(value), 5)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def tensors_mutated(random: Random, content: bytes) -> bytes:
    """A safetensors file with a damaged header of the right length, with damaged arrays, or with any damage."""
    what = random.random()
    (length,) = struct.unpack("<Q", content[:8])
    if what < 0.6:
        header = json_mutated(random, content[8 : 8 + length])
        return struct.pack("<Q", len(header)) + header + content[8 + length :]
    if what < 0.9:
        data = bytearray(content[8 + length :])
        for _ in range(random.choice([1, 4])):
            if len(data) >= 8:
                at = random.randrange(0, len(data) - 7, 4)
                data[at : at + 4] = random.choice([b"\xff" * 4, b"\0\0\xc0\x7f", b"\0\0\x80\x7f", os_bytes(random)])
        return content[: 8 + length] + bytes(data)
    return bytes_mutated(random, content)


def os_bytes(random: Random) -> bytes:
    """Any four bytes."""
    return random.randrange(1 << 32).to_bytes(4, "little")


def file_replaced(random: Random, path: Path, outside: Path) -> None:
    """Something else in place of a file: nothing, a folder, a pipe, or a link to somewhere else."""
    path.unlink()
    kind = random.choice(["nothing", "folder", "pipe", "outside", "dangling", "zero", "itself"])
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "nothing":
        path.symlink_to({"outside": outside, "dangling": "missing", "zero": "/dev/zero", "itself": path.name}[kind])


Mutation = Callable[[Random, bytes], bytes]


def folder_mutated(random: Random, sample: Path, folder: Path, outside: Path) -> None:
    """Copies the sample with one or two of its files damaged, each as its kind asks for."""
    shutil.copytree(sample, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in random.sample(files, min(len(files), random.choice([1, 1, 1, 2]))):
        if random.random() < 0.05:
            file_replaced(random, path, outside)
            continue
        mutation: Mutation = {".json": json_mutated, ".safetensors": tensors_mutated}.get(path.suffix, bytes_mutated)
        path.write_bytes(mutation(random, path.read_bytes()))


def sealed(folder: Path) -> None:
    """Brings sizes and checksums in a model's manifest in line with its files, as an attacker would."""
    path = folder / "manifest.json"
    if path.is_symlink() or not path.is_file():
        return
    try:
        manifest = json.loads(path.read_bytes())
        for name, entry in manifest["files"].items():
            file = folder / name
            content = file.read_bytes() if file.is_file() and file.resolve().parent == folder.resolve() else b""
            entry |= {"size": len(content), "crc32": zlib.crc32(content)}
        path.write_text(json.dumps(manifest))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # damaged beyond that
