"""Accuracy of the recipes on real data, beside defaults, full softmax and peers: report.md, report.json and charts.

    python -m bench.accuracy DATA_FOLDER [--only gnd ...] [--seeds 0 1 2] [--quick] [--out build/accuracy]

DATA_FOLDER has the raw files (RAW in bench/accuracy/recipes.py); recipes without files are left out. `--only ablation`
changes one option of the recipe for GND at a time. Systems run in interleaved rounds, each time in a fresh process.
Parabel is run if omikuji is installed (pip install omikuji), PECOS if libpecos is; its wheel needs an environment with
numpy<2 and scipy<1.14 and none of its other requirements (pip install --no-deps libpecos).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.accuracy.recipes import QUICK_EPOCHS, RAW, run
from bench.lib.measuring import run_command


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER", help="folder with the raw files")
    names = [*RAW, "ablation"]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_EPOCHS} epochs and the first seed")
    parser.add_argument("--out", type=Path, default=Path("build/accuracy"), help="folder for report and charts")
    options = parser.parse_args()
    seeds = options.seeds[:1] if options.quick else options.seeds
    return run(options.data, options.only, seeds, options.quick, options.out)


if __name__ == "__main__":
    run_command(main)
