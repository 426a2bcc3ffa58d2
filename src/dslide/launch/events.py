"""What a supervisor tells: a line on stderr for each event, and a record in RUN/events.jsonl."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class Events:
    """Each event is told as it comes. Records wait until the run's folder is there, or is to be made: a command that
    was wrong leaves none behind."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._begin = time.monotonic()
        self._held: list[str] = []

    def tell(self, kind: str, text: str, hosts: Sequence[str] = (), step: int = 0) -> None:
        """One event; `hosts` it is about, and the step at hand."""
        now = time.time()
        print(f"dslide: elastic: {time.strftime('%H:%M:%S', time.localtime(now))} {text}", file=sys.stderr, flush=True)
        seconds = round(time.monotonic() - self._begin, 3)
        record = {"event": kind, "time": round(now, 3), "seconds": seconds, "hosts": list(hosts), "step": step}
        self._held.append(json.dumps(record | {"text": text}) + "\n")
        with suppress(OSError):  # a full disk must not end the run; records wait for the next event
            if step > 0:
                self._folder.mkdir(parents=True, exist_ok=True)
            if self._folder.is_dir():
                with open(self._folder / "events.jsonl", "a", encoding="utf-8") as file:
                    file.writelines(self._held)
                self._held.clear()
