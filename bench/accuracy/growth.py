"""A model that grows by a fifth of the rows and their labels, beside one that is trained from scratch.

    python -m bench.accuracy.growth TRAIN TEST [--format interactions] [--threads 1] [--seed 0] [--out build/growth]

Labels are drawn at random, frequent ones (more than 1 % of the rows) left out, until a fifth of the rows have one of
them. A model is trained on the other rows, which have none of these labels, and grows by the fifth: without earlier
rows and with them (`--replay`). P@1 is that of all test rows, of those without new labels and of those with some. The
seconds are of processor time, of `dslide train` as a whole, reading included.

Of interactions, items drawn at random are new, until a fifth of the interactions are with one of them; R@20 is that of
all test items, of those that are not new, and of those that are.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from bench.lib.commands import read_summary
from bench.lib.measuring import run_command
from dslide import evaluate, open_model
from dslide.data import Dataset, SparseRows, load, open_dataset, write_dataset

SHARE, MOST_ROWS = 0.2, 0.01  # of the rows: those with new labels, and most that a new label has
PARTS = ("test", "old-test", "new-test")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy.growth", description=__doc__.split("\n\n")[0])
    parser.add_argument("train", metavar="TRAIN", help="training data with numbered labels")
    parser.add_argument("test", metavar="TEST", help="test data")
    parser.add_argument("--threads", type=int, default=1, help="of training (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of labels and of training (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("build/growth"), help="folder to make for data and runs")
    parser.add_argument(
        "--format", choices=("auto", "interactions"), default="auto", help="of the data (default: auto)"
    )
    options = parser.parse_args()
    if options.format == "interactions":
        return grow_items(options.train, options.test, options.threads, options.seed, options.out)
    train = load(options.train)
    print(divide(train, load(options.test, base=train.base), options.seed, options.out), flush=True)
    out, shared = options.out, [f"--threads={options.threads}", f"--seed={options.seed}", "--quiet"]
    print("| | " + " | ".join(PARTS) + " | seconds of CPU |\n|---|" + "---|" * (len(PARTS) + 1), flush=True)
    for name, data, more in (
        ("from scratch", "all", []),
        ("the smaller model", "old", []),
        ("grown, --replay", "new", [f"--from={out / 'run-old'}", f"--replay={out / 'old'}"]),
        ("grown, new rows alone", "new", [f"--from={out / 'run-old'}"]),
    ):
        run = out / f"run-{data}{len(more)}" if more else out / f"run-{data}"
        seconds = train_seconds([str(out / data), f"--out={run}", *shared, *more])
        scores = [f"{precision(out, run, part):.3f}" for part in PARTS]
        print(f"| {name} | {' | '.join(scores)} | {seconds:.0f} |", flush=True)
    return 0


def grow_items(train: str, test: str, threads: int, seed: int, out: Path) -> int:
    """The same of interactions."""
    data = load(train, format="interactions")
    held_out = load(test, format="interactions", history=data)
    counts = data.label_counts
    order = np.random.default_rng(seed).permutation(data.labels)
    new = np.zeros(max(data.labels, held_out.labels), bool)
    new[order[np.cumsum(counts[order]) <= SHARE * counts.sum()]] = True
    out.mkdir(parents=True)
    is_new, is_new_in_test = new[data.y.indices], new[held_out.y.indices]
    write_items(data, is_new | True, out / "all.txt")
    write_items(data, ~is_new, out / "old.txt")
    write_items(data, is_new, out / "new.txt")
    for name, chosen in zip(PARTS, (is_new_in_test | True, ~is_new_in_test, is_new_in_test), strict=True):
        write_items(held_out, chosen, out / f"{name}.txt")
    print(
        f"{is_new.sum():,} of {len(is_new):,} interactions are with one of {new.sum():,} new items, of {data.labels:,}"
    )
    print("| | " + " | ".join(PARTS) + " | seconds of CPU |\n|---|" + "---|" * (len(PARTS) + 1), flush=True)
    shared = ["--format=interactions", f"--threads={threads}", f"--seed={seed}", "--quiet"]
    for name, rows, more in (
        ("from scratch", "all", []),
        ("the smaller model", "old", []),
        ("grown, --replay", "new", [f"--from={out / 'run-old'}", f"--replay={out / 'old.txt'}"]),
    ):
        run = out / f"run-{rows}"
        seconds = train_seconds([str(out / f"{rows}.txt"), f"--out={run}", *shared, *more])
        model, history = open_model(run, threads=1), out / ("old.txt" if rows == "old" else "all.txt")
        scores = [
            f"{evaluate(model, out / f'{part}.txt', history=history, format='interactions', k=20)['r_at_20']:.3f}"
            for part in PARTS
        ]
        print(f"| {name} | {' | '.join(scores)} | {seconds:.0f} |", flush=True)
    return 0


def write_items(data: Dataset, chosen: np.ndarray, path: Path) -> None:
    """A line for each user with some of the interactions, as a file of numbers."""
    y = data.y.where(chosen)
    rows = [(user, y.indices[y.indptr[row] : y.indptr[row + 1]]) for row, user in enumerate(data.users.tolist())]
    path.write_text("".join(f"{user} {' '.join(map(str, items))}\n" for user, items in rows if len(items)))


def divide(train: Dataset, test: Dataset, seed: int, out: Path) -> str:
    """Writes the parts of the data as folders, with new labels numbered after the others; says how large they are."""
    counts, has_new, is_new = train.label_counts, np.zeros(len(train), bool), np.zeros(train.labels, bool)
    rows_of = train.y.to_scipy().tocsc()
    for label in np.random.default_rng(seed).permutation(np.flatnonzero(counts)):
        if has_new.mean() >= SHARE:
            break
        if counts[label] <= MOST_ROWS * len(train):
            has_new[rows_of.indices[rows_of.indptr[label] : rows_of.indptr[label + 1]]] = is_new[label] = True
    order = np.argsort(is_new, kind="stable")
    known = int(np.count_nonzero(~is_new))
    out.mkdir(parents=True)

    def write(name: str, data: Dataset, chosen: np.ndarray, labels: int) -> None:
        y = data.y.take(np.flatnonzero(chosen)).to_scipy()[:, order][:, :labels]
        write_dataset(Dataset(data.x.take(np.flatnonzero(chosen)), SparseRows.from_scipy(y)), out / name)

    write("all", train, np.ones(len(train), bool), train.labels)
    write("old", train, ~has_new, known)
    write("new", train, has_new, train.labels)
    of_new = np.asarray(test.y.to_scipy()[:, np.flatnonzero(is_new[: test.labels])].sum(axis=1)).ravel() > 0
    for name, chosen in zip(PARTS, (np.ones(len(test), bool), ~of_new, of_new), strict=True):
        write(name, test, chosen, train.labels)
    labels = np.count_nonzero(counts)
    return (
        f"{has_new.sum():,} of {len(train):,} rows have one of {is_new.sum():,} new labels, of {labels:,}; "
        f"{of_new.sum():,} of {len(test):,} test rows"
    )


def train_seconds(arguments: list[str]) -> float:
    """Processor time of `dslide train`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "dslide.cli", "train", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def precision(out: Path, run: Path, part: str) -> float:
    """P@1 of a run's model on a part of the test rows."""
    assert read_summary(run)["interrupted"] is False
    model, rows = open_model(run, threads=1), open_dataset(out / part)
    return evaluate(model, rows, k=1)["p_at_1"]


if __name__ == "__main__":
    run_command(main)
