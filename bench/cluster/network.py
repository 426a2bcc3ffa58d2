"""Trains on an emulated cluster (dslide netlab) at several link speeds, in several wire formats; prints one table.

    sudo python -m bench.network [--nodes 4] [--rounds 3] [--rates unlimited,1gbit,100mbit] [--wires float32,bf16,int8]
                                 [--data FOLDER] [--json FILE]

Amazon-670K's shape, hidden 128, batch 256, a thread on each node. Settings take turns, each in fresh processes. Speed
is that of the epochs after the first, which has the first build of the hash tables in it. "Lost" is what a run is
slower than with unlimited links in the same round; "waiting" the share of time in which ranks could only wait for
others, which on machines with fewer cores than nodes includes waiting for a core. Bytes are those on the interfaces.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dslide import Config, netlab
from dslide.traffic import bytes_per_step

from .workload import AMAZON, FEATURES, HIDDEN, LABELS, NETWORK, RATE, make_data

BATCH, EPOCHS = 256, 3
TIMEOUT = 600  # seconds for one run
LAB = "bench"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.network", description=__doc__.split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=4, help="nodes, with a rank on each (default: 4)")
    parser.add_argument("--rounds", type=int, default=3, help="times that every setting runs (default: 3)")
    parser.add_argument("--rates", default="unlimited,1gbit,100mbit", help="link speeds; unlimited comes first")
    parser.add_argument("--wires", default="float32,bf16,int8", help="wire formats")
    parser.add_argument("--data", type=Path, default=Path("build/bench-data"), help="folder for the data")
    parser.add_argument("--json", type=Path, help="file to write all figures to as well")
    options = parser.parse_args()

    train = make_data(options.data, AMAZON) / "train.txt"
    settings = [(wire, rate) for wire in options.wires.split(",") for rate in options.rates.split(",")]
    runs: dict[tuple[str, str], list[dict[str, float]]] = {setting: [] for setting in settings}
    netlab.up(options.nodes, "unlimited", LAB)
    try:
        for number in range(options.rounds):
            for wire, rate in settings:
                print(f"round {number + 1} of {options.rounds}: {wire}, {rate}", file=sys.stderr, flush=True)
                netlab.set_rate(rate, LAB)
                runs[wire, rate].append(run(train, ["--wire", wire]))
    finally:
        netlab.down(LAB)
    print(table(runs, options.nodes))
    if options.json:
        listed = [{"wire": wire, "rate": rate, "runs": found} for (wire, rate), found in runs.items()]
        options.json.write_text(json.dumps({"nodes": options.nodes, "settings": listed}, indent=1) + "\n")


def run(train: Path, options: Sequence[str], lab: str = LAB, epochs: int = EPOCHS) -> dict[str, float]:
    """One training run on the lab as it is, with these options of `dslide train` as well."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [
            sys.executable, "-m", "dslide.cli", "train", str(train.resolve()), "--out", str(out), "--quiet",
            "--batch-size", str(BATCH), "--epochs", str(epochs), "--threads", "1",
            "--hidden", str(HIDDEN), "--links", "0", "--dropout-input", "0", "--dropout-hidden", "0",
            "--optimizer", "adam", "--learning-rate", str(RATE), *options,
        ]  # fmt: skip
        result = netlab.run(command, name=lab, limit=TIMEOUT, stdout=subprocess.DEVNULL)
        if result.code != 0:
            raise SystemExit(f"the run failed with code {result.code}")
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        epochs = [record for record in log if record["record"] == "epoch"][1:]
        return {
            "samples_per_second": statistics.median(epoch["samples_per_second"] for epoch in epochs),
            "waiting": summary["comm_seconds"] / summary["seconds"],
            "overlap": summary["overlap"],
            "imbalance": summary["imbalance"],
            "bytes_counted": summary["bytes_sent_per_step"],
            "bytes_on_wire": statistics.mean(node.sent for node in result.traffic) / summary["steps"],
            "peak_rss_bytes": summary["peak_rss_bytes"],
            "planned_bytes": summary["planned_bytes"],
        } | ({"p_at_1": summary["p_at_1"]} if summary["test_rows"] else {})


def table(runs: dict[tuple[str, str], list[dict[str, float]]], nodes: int) -> str:
    """The medians, with the lowest and highest speed; speeds are compared within a round."""
    lines = [
        "| wire | links | samples/s | lost | waiting | hidden | KB a step: on wire, counted, formula | MB at most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (wire, rate), found in runs.items():
        free = runs.get((wire, "unlimited"), found)
        lost = [1 - a["samples_per_second"] / b["samples_per_second"] for a, b in zip(found, free, strict=True)]
        speeds = [figures["samples_per_second"] for figures in found]
        formula = bytes_per_step(Config(**NETWORK, batch_size=BATCH, wire=wire), LABELS, nodes)

        def median(name: str, found: list[dict[str, float]] = found) -> float:
            return statistics.median(figures[name] for figures in found)

        lines.append(
            f"| {wire} | {rate} | {median('samples_per_second'):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f}) "
            f"| {statistics.median(lost):.0%} ({min(lost):.0%} to {max(lost):.0%}) | {median('waiting'):.0%} "
            f"| {median('overlap'):.0%} | {median('bytes_on_wire') / 1e3:.0f}, {median('bytes_counted') / 1e3:.0f}, "
            f"{formula / 1e3:.0f} | {median('peak_rss_bytes') / 1e6:.0f} |"
        )
    about = f"{nodes} nodes, {FEATURES:,} features, {LABELS:,} labels, hidden {HIDDEN}, batch {BATCH}"
    return f"{about}\n\n" + "\n".join(lines)


if __name__ == "__main__":
    main()
