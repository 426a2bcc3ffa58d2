"""JSON files from an untrusted source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dslide.errors import UserError
from dslide.util.memory import check_memory, rss_bytes
from dslide.util.plain import open_plain

SMALL = 1 << 24  # bytes; smaller files are read without a check of free memory
JSON_GROWTH = 8  # bytes of memory per byte of JSON, about


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
