"""Files in a folder from an untrusted source, and JSON in them."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

from dslide.errors import UserError
from dslide.util.memory import check_memory, rss_bytes

SMALL = 1 << 24  # bytes; smaller files are read without a check of free memory
JSON_GROWTH = 8  # bytes of memory per byte of JSON, about


def open_plain(path: str | Path, error: type[UserError]) -> IO[bytes]:
    """Opens a regular file for reading. Symbolic links are refused, since they may point out of the folder, and so are
    pipes and devices, which may never end."""
    try:
        # without O_NONBLOCK, opening a pipe waits for a writer
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        reason = "is a link, expected a file" if problem.errno == errno.ELOOP else f"can't be read: {problem.strerror}"
        raise error(f"{path}: {reason}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise error(f"{path}: is not a regular file")
    return os.fdopen(handle, "rb")


def read_plain_json(path: str | Path, error: type[UserError]) -> Any:
    """The value in a JSON file; duplicate keys, NaN and infinity are refused."""
    with open_plain(path, error) as file:
        size = os.fstat(file.fileno()).st_size
        if size > SMALL:
            check_memory(rss_bytes() + JSON_GROWTH * size, f"reading {path}", "it is larger than it should be")
        try:
            return strict_json(file.read())
        except OSError as problem:
            raise error(f"{path}: can't be read: {problem.strerror}") from None
        except (ValueError, RecursionError):
            raise error(f"{path}: damaged: not valid JSON") from None


def strict_json(content: bytes) -> Any:
    """The value of a JSON text. Raises ValueError if it is invalid, RecursionError if it is nested too deeply."""
    return json.loads(content, object_pairs_hook=_distinct, parse_constant=_no_number)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
