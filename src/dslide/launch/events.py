"""The events of an elastic run: a line on stderr for each, and a record in RUN/events.jsonl."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class Events:
    """Prints each event at once. Records are held until the run's folder exists, or training has begun: a command with
    a mistake must not leave a folder behind."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._begin = time.monotonic()
        self._held: list[str] = []

    def record(self, kind: str, text: str, hosts: Sequence[str] = (), step: int = 0) -> None:
        """One event, about these hosts, after so many steps."""
        now = time.time()
        print(f"dslide: elastic: {time.strftime('%H:%M:%S', time.localtime(now))} {text}", file=sys.stderr, flush=True)
        seconds = round(time.monotonic() - self._begin, 3)
        record = {"event": kind, "time": round(now, 3), "seconds": seconds, "hosts": list(hosts), "step": step}
        self._held.append(json.dumps(record | {"text": text}) + "\n")
        with suppress(OSError):  # a full disk must not end the run; the next event tries again
            if step > 0:
                self._folder.mkdir(parents=True, exist_ok=True)
            if self._folder.is_dir():
                with open(self._folder / "events.jsonl", "a", encoding="utf-8") as file:
                    file.writelines(self._held)
                self._held.clear()
