"""The numbers of a run's records by the names that TensorBoard, MLflow and Weights & Biases show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_METRIC = re.compile(r"[a-z]+_at_[0-9]+|loss")


class Scalars:
    """Makes numbers of the records that `RecordLog` makes; rates are those since the step record before."""

    def __init__(self) -> None:
        self._before: Mapping[str, Any] = {}  # the last step since the start

    def of(self, record: Mapping[str, Any]) -> dict[str, float]:
        match record["record"]:
            case "start":
                self._before = {}
            case "test" | "validation" as kind:
                return measured(kind, record)
            case "epoch":
                return {"epoch/loss": record["loss"], "epoch/samples_per_second": record["samples_per_second"]}
            case "tables":
                names = ("mean", "max", "empty_share")
                return {f"tables/{record['layer']}_{name}": record[name] for name in names}
            case "retrieval":
                return {f"retrieval/{name}": record[name] for name in ("recall", "largest", "seconds")}
            case "step":
                return self._of_step(record)
        return {}

    def _of_step(self, record: Mapping[str, Any]) -> dict[str, float]:
        scalars = {
            "train/loss": record["loss"],
            "train/learning_rate": record["learning_rate"],
            "train/active_neurons": record["active"],
            "machine/rss_bytes": record["rss_bytes"],
        }
        before, self._before = self._before, record
        seconds = record["seconds"] - before.get("seconds", record["seconds"])
        if seconds > 0:
            scalars["train/samples_per_second"] = (record["samples"] - before["samples"]) / seconds
            scalars["machine/waiting_share"] = (record["waited"] - before["waited"]) / seconds
            steps = record["step"] - before["step"]
            scalars["machine/bytes_sent_per_step"] = (record["bytes_sent"] - before["bytes_sent"]) / max(steps, 1)
        return scalars


def measured(kind: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of test data or of held-out rows."""
    return {f"{kind}/{name}": value for name, value in metrics.items() if _METRIC.fullmatch(name)}
