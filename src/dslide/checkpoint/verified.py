"""Files whose checksums were verified before on this machine: opening a large model again reads only what it uses.

A list in the user's cache folder has their size, inode, times of change and checksum. A file with another one of these
is verified again, and so is one that changed within moments of being verified, whose times may not tell. Where the list
can't be written, files are verified each time.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dslide.errors import ModelError, UserError
from dslide.util.atomic import AtomicFile
from dslide.util.json_files import read_plain_json

MOST = 1000  # files in the list; those verified last stay
SETTLED = 2.0  # seconds without a change, after which times tell of any further one


def is_verified(path: Path, entry: dict[str, int]) -> bool:
    """Whether the file is as it was when it had the checksum of its entry in the manifest."""
    with suppress(OSError):
        return _read().get(os.path.realpath(path)) == _facts(path, entry)
    return False


def remember(path: Path, entry: dict[str, int]) -> None:
    """Notes that the file has the checksum of its entry."""
    with suppress(OSError, UserError):
        facts, place = _facts(path, entry), _place()
        if time.time() - max(facts[3], facts[4]) / 1e9 < SETTLED:
            return
        known = _read()
        known.pop(name := os.path.realpath(path), None)
        kept = dict([*known.items(), (name, facts)][-MOST:])
        place.parent.mkdir(parents=True, exist_ok=True)
        with AtomicFile(place) as file:
            file.write(json.dumps(kept).encode())


def _place() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "dslide" / "verified.json"


def _read() -> dict[str, Any]:
    try:
        content = read_plain_json(_place(), ModelError)
    except UserError:  # none yet, or not a list that this program wrote
        return {}
    return content if isinstance(content, dict) else {}


def _facts(path: Path, entry: dict[str, int]) -> list[int]:
    found = os.stat(path)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, entry["crc32"]]
