"""One run of dslide, or of a peer on the same rows, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.commands import as_arguments, read_records, read_summary
from dslide.cli import main
from dslide.data import load
from dslide.training.metrics import KS, Evaluation

PEERS = Path(__file__).with_name("peers.py")


def train(data: str, options: dict[str, Any], curve: str, out: str, seed: int) -> dict[str, Any]:
    """`dslide train` with these options: the numbers of its summary, its options as they were decided, and a metric
    over seconds of training."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        run = Path(folder) / "run"
        code = main(["train", data, "--quiet", f"--out={run}", f"--seed={seed}", *as_arguments(options)])
        if code:
            raise SystemExit(code)  # the reason is on stderr
        summary, records = read_summary(run), read_records(run / "log.jsonl")
    numbers = {name: value for name, value in summary.items() if isinstance(value, float)}
    return numbers | {
        "peak_gigabytes": summary["peak_rss_bytes"] / 1e9,
        "config": summary["config"],
        "curve": [[record["seconds"], record[curve]] for record in records if record["record"] == "test"],
    }


def peer(name: str, settings: dict[str, Any], folder: str, python: str, limit: float, seed: int) -> dict[str, Any]:
    """A peer by its name in peers.py, run with another Python for at most `limit` seconds, on the bag of words in the
    folder: the same metrics as of dslide."""
    arguments = json.dumps(settings | {"folder": folder, "top": max(KS), "seed": seed})
    done = subprocess.run(
        [python, str(PEERS), name, arguments], capture_output=True, text=True, timeout=limit, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr.strip() or f"exit code {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    rows, test = load(f"{folder}/train.txt", base=0), load(f"{folder}/test.txt", base=0)
    ids = np.full((len(test), max(KS)), -1)
    for row, labels in enumerate(found["predicted"]):
        ids[row, : len(labels)] = labels
    evaluation = Evaluation(KS, rows.label_counts, len(rows))
    evaluation.update(ids, test.y)
    result = evaluation.result()
    return result | {
        "seconds": found["seconds"],
        "peak_gigabytes": found["peak_bytes"] / 1e9,
        "curve": [[found["seconds"], result["p_at_1"]]],
    }
