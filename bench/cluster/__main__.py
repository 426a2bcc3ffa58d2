"""Runs one experiment on emulated clusters, and writes its tables and charts.

    sudo python -m bench.cluster peers [--quick] [--rounds 3] [--out build/cluster/peers] [--data FOLDER]

Root is needed for the emulated links (dslide netlab). `python -m bench.cluster EXPERIMENT --help` lists the other
options of an experiment.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from bench.lib.measuring import run_command
from dslide.errors import UserError

# Modules of this package. Each has `run(options)`, the exit code, and may have `add_options(parser)`.
EXPERIMENTS = {
    "peers": "dslide beside PyTorch's distributed training, on slow links",
    "network": "link speeds and wire formats",
    "billion": "networks of about a billion parameters on four nodes",
    "scaling": "1 to 16 nodes: bytes, memory and time of a step",
    "speedup": "1 to 16 nodes with defaults: modelled speed (needs no root)",
    "phases": "1 to 16 nodes: where the time of a step goes, and what does not divide (needs no root)",
    "latency": "two nodes over one, on links with a latency",
    "target": "time to accuracy on real data: two nodes over one",
    "unequal": "two ranks, one of them at half speed (needs no root)",
    "predictions": "the predictions of dslide plan against measurements",
    "growth": "more labels, wider layers, larger batches",
    "cost": "time and price of a million samples",
}


def main() -> int:
    names = argparse.ArgumentParser(
        prog="python -m bench.cluster",
        description=__doc__.split("\n\n")[0],
        epilog="; ".join(f"{name}: {about}" for name, about in EXPERIMENTS.items()),
    )
    names.add_argument("experiment", choices=EXPERIMENTS, metavar="EXPERIMENT", help=f"of {', '.join(EXPERIMENTS)}")
    name = names.parse_args(sys.argv[1:2]).experiment
    module = importlib.import_module(f"{__package__}.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m bench.cluster {name}", description=EXPERIMENTS[name])
    parser.add_argument("--quick", action="store_true", help="a few minutes: less of everything")
    parser.add_argument("--rounds", type=positive, help="runs of every system")
    parser.add_argument("--data", type=Path, default=Path("build/bench-data"), help="folder for the data")
    parser.add_argument("--out", type=Path, default=Path("build/cluster") / name, help="folder for the report")
    if hasattr(module, "add_options"):
        module.add_options(parser)
    options = parser.parse_args(sys.argv[2:])
    try:
        return int(module.run(options))
    except UserError as error:
        sys.exit(f"{parser.prog}: error: {error}")


def positive(text: str) -> int:
    """A whole number above 0, as an option gives it."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, not {text!r}")
    return int(text)


if __name__ == "__main__":
    run_command(main)
