"""Accuracy on every data set of a folder: defaults beside recipes and peers, in report.md, report.json and charts.

    python -m bench.accuracy DATA_FOLDER [--sets gnd ...] [--seeds 0 1 2] [--peers-python PATH] [--out build/accuracy]
    python -m bench.accuracy DATA_FOLDER --only constants      # or some of them: --only hidden epochs
    python -m bench.accuracy DATA_FOLDER --only ablation

Sets are pairs of files NAME.train.EXT and NAME.test.EXT, or NAME/train.EXT and NAME/test.EXT, in any format that dslide
detects; one that recipes/ has a recipe for also runs with that. Systems run in interleaved rounds, each time in a fresh
process. Results of finished runs are kept in OUT/results: the same command goes on where it was interrupted.

Parabel is run if omikuji is installed, PECOS if libpecos is, here or in the environment of `--peers-python`: libpecos
needs numpy<2 and scipy<1.14 and none of its other requirements (pip install --no-deps libpecos).

`--only constants` chooses each constant of the defaults on all sets but one and scores it on that one.
`--only ablation` changes one option of the recipe for GND at a time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.accuracy.ablation import ABLATION_OF, ablation
from bench.accuracy.comparison import compare
from bench.accuracy.constants import CONSTANTS, check_constants
from bench.accuracy.sets import QUICK_EPOCHS, find_sets
from bench.lib.measuring import exit_code, measure, run_command


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER", help="folder with the sets")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="only these sets")
    names = ["ablation", "constants", *CONSTANTS]
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="WHAT", help=f"of {', '.join(names)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_EPOCHS} epochs and the first seed")
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH", help="Python that has the peers")
    parser.add_argument("--out", type=Path, default=Path("build/accuracy"), help="folder for report and charts")
    return run(parser.parse_args())


def run(options: argparse.Namespace) -> int:
    """Measures what the options say; returns 1 if a system failed."""
    data, only = options.data, options.only
    if not data.is_dir():
        sys.exit(f"{data}: is not a folder")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    sets = find_sets(data, out, options.quick, options.peers_python)
    for name in options.sets or ():
        if name not in sets:
            sys.exit(f"{name}: there is no such set in {data}, only {', '.join(sets) or 'none at all'}")
    if not sets:
        sys.exit(f"{data}: contains no set, neither NAME.train.EXT with NAME.test.EXT nor NAME/train.EXT with test.EXT")
    chosen = [sets[name] for name in options.sets or sets]
    seeds = options.seeds[:1] if options.quick else options.seeds
    details = {"seeds": list(seeds), "quick": options.quick}
    code = 0
    if "ablation" in only:
        if ABLATION_OF not in sets or sets[ABLATION_OF].recipe is None:
            sys.exit(f"ablation: {data} lacks the files of the recipe {ABLATION_OF}")
        code |= exit_code(measure([ablation(sets[ABLATION_OF])], seeds, out / "ablation", details))
    if constants := list(CONSTANTS) if "constants" in only else [name for name in CONSTANTS if name in only]:
        code |= check_constants([each for each in chosen if each.kind.labelled], constants, out)
    return code if only else compare(chosen, seeds, out, details)


if __name__ == "__main__":
    run_command(main)
