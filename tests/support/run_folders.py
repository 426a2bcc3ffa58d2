"""Writes folders of runs as `dslide train` does, without training, for tests of reports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

Record = dict[str, Any]
BATCH = 100
BEGIN = 1_700_000_000.0  # seconds since 1970


def start(step: int = 0, ranks: int = 1, **more: Any) -> Record:
    return {
        "record": "start", "time": BEGIN + step, "rank": 0, "ranks": ranks, "host": "h", "process": 1,
        "config": {"hidden": [64, 32], "epochs": 3, "learning_rate": 0.01}, "features": 1000, "labels": 5000,
        "parameters": 123456, "threads": 2, "step": step, "samples": BATCH * step, "total_steps": 100,
        "versions": {}, "data": "train.txt", "rows": 900, "planned_bytes": 3 * 10**8,
    } | more  # fmt: skip


def step(number: int, seconds: float, ranks: int = 1, **more: Any) -> Record:
    return {
        "record": "step", "time": BEGIN + number, "step": number, "loss": 5 * math.exp(-number / 50) + number % 3 / 9,
        "active": 400.0 + number % 7, "learning_rate": 0.01, "rows": BATCH, "epoch": 1, "samples": BATCH * number,
        "seconds": seconds, "waited": 0.25 * seconds * (ranks > 1), "bytes_sent": 70_000 * number * (ranks > 1),
        "rss_bytes": 10**8 + 10**6 * min(number, 100),
    } | more  # fmt: skip


def measured(seconds: float, p: float, rows: int = 50) -> Record:
    metrics = {f"{name}_at_{k}": p / k for name in ("p", "r", "ndcg", "psp") for k in (1, 3, 5)}
    about = {"record": "test", "time": BEGIN, "epoch": 1, "step": 1, "seconds": seconds, "rows": rows, "loss": 4 - p}
    return about | metrics


def validated(seconds: float, ndcg: float) -> Record:
    about = {"record": "validation", "time": BEGIN, "epoch": 1, "step": 1, "seconds": seconds, "metric": "ndcg_at_5"}
    return about | {"ndcg_at_5": ndcg, "best": True}


def tables(number: int) -> Record:
    return {"record": "tables", "time": BEGIN, "layer": "layer2", "step": number, "mean": 3.0, "max": 17,
            "empty_share": 0.25, "dropped": 10, "by_size": [10, 20, 40, 15, 5]}  # fmt: skip


def retrieved(number: int, recall: float) -> Record:
    return {"record": "retrieval", "time": BEGIN, "step": number, "recall": recall, "cells": 256, "largest": 0.02,
            "seconds": 0.1}  # fmt: skip


def end(number: int, seconds: float, samples: int, ranks: int = 1, interrupted: bool = False) -> Record:
    each = {"active_neurons_mean": 1.0, "compute_seconds": seconds * 0.75, "comm_seconds": seconds * 0.25,
            "bytes_sent_per_step": 70_000.0}  # fmt: skip
    return {"record": "end", "time": BEGIN, "seconds": seconds, "samples": samples, "steps": number, "epochs": 3,
            "samples_per_second": 1.0, "active_neurons_mean": 1.0, "loss": 1.5, "interrupted": interrupted,
            "step": number,
            "load_balance": {"per_rank": [{"rank": rank, **each} for rank in range(ranks)]}}  # fmt: skip


def whole(ranks: int = 1, steps: int = 60) -> list[Record]:
    """A run from start to end, a step in a second."""
    records = [start(ranks=ranks), tables(1)]
    for number in range(1, steps + 1):
        records.append(step(number, float(number), ranks))
        if number % 20 == 0:
            records.append({"record": "checkpoint", "time": BEGIN, "step": number, "of_step": number})
            records.append(measured(float(number), number / steps))
            records.append(validated(float(number), number / steps))
            records.append(retrieved(number, number / steps))
    epoch = {"record": "epoch", "time": BEGIN, "epoch": 1, "loss": 2.25, "seconds": 9.0, "samples_per_second": 1.0}
    return [*records, epoch, end(steps, float(steps), BATCH * steps, ranks)]


def write(folder: Path, records: list[Record], **files: Any) -> Path:
    """Writes log.jsonl, and other files given by name without ending: lists as lines, what else as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"log": records, **files}.items():
        lines = isinstance(content, list)
        text = "".join(json.dumps(item) + "\n" for item in content) if lines else json.dumps(content)
        (folder / (f"{name}.jsonl" if lines else f"{name}.json")).write_text(text)
    return folder


PROFILE = {"phases": {"hashing": {"ms_per_step": 2.5}, "output": {"ms_per_step": 7.5}, "all": {"ms_per_step": 10.0}}}
EVENTS = [
    {"event": "start", "time": BEGIN, "seconds": 0, "hosts": [], "step": 0, "text": "starting 2 ranks"},
    {"event": "lost", "time": BEGIN + 30, "seconds": 30, "hosts": ["n1"], "step": 30, "text": "rank 1 (n1) was lost"},
]
