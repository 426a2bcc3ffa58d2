"""Load tests of `dslide serve` by wrk: requests with a text each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.lib.tables import markdown_table

SECONDS, WARM_UP = 6, 2
SETTINGS = (
    ("approximate", 1, 8),
    ("approximate", 2, 16),
    ("approximate", 2, 32),
    ("approximate", 4, 32),
    ("exact", 1, 8),
)  # workers, connections
REQUESTS = """local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local next = 0
request = function()
  next = next %% #bodies + 1
  return wrk.format("POST", "/predict", {["Content-Type"] = "application/json"}, bodies[next])
end
"""


def load_tests(models: Sequence[Path], texts: Sequence[str]) -> str:
    """A table: requests a second, latency and memory of servers of each model."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        bodies, script = Path(place, "bodies"), Path(place, "requests.lua")
        bodies.write_text("\n".join(json.dumps({"text": text}) for text in texts), "utf-8")
        script.write_text(REQUESTS % bodies)
        for model in models:
            for mode, workers, connections in SETTINGS:
                with server(model, mode, workers) as (address, process):
                    for seconds in (WARM_UP, SECONDS):
                        load = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script)]
                        said = subprocess.run([*load, address], stdout=subprocess.PIPE, check=True, text=True).stdout
                    memory = proportional_kilobytes(process)
                if "Non-2xx" in said:
                    raise RuntimeError(said)
                figures = [re.search(rf"{name}\s+(\S+)", said) for name in ("Requests/sec:", "50%", "99%")]
                found = [each[1] if each else "" for each in figures]
                rows.append(
                    [f"{model.name}, {mode}", str(workers), str(connections), *found, f"{memory / 1000:.0f} MB"]
                )
    heads = ["server", "workers", "connections", "requests/s", "median", "p99", "memory (PSS)"]
    return markdown_table(heads, rows)


@contextmanager
def server(run: Path, mode: str, workers: int) -> Iterator[tuple[str, int]]:
    """A server; its address and first process."""
    command = [sys.executable, "-m", "dslide.cli", "serve", str(run), "--port", "0", "--workers", str(workers)]
    command += ["--approximate" if mode == "approximate" else "--no-approximate"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1] + "/predict", process.pid
    finally:
        process.terminate()
        process.wait(30)


def proportional_kilobytes(process: int) -> int:
    """Memory of a process and its children, that which several share counted once (PSS)."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    rollups = [Path(f"/proc/{each}/smaps_rollup").read_text() for each in (process, *children)]
    return sum(int(found[1]) for text in rollups if (found := re.search(r"^Pss:\s+(\d+) kB", text, re.M)))
