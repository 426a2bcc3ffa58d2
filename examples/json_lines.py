"""JSON Lines in and out: objects with a text and labels, predictions as objects with names and probabilities.

python examples/json_lines.py
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import dslide

TAGS = {"Python": "def import pip class", "C++": "template header pointer cmake", "Rust": "borrow crate cargo trait"}


def write_rows(path: Path, rows: int, seed: int) -> None:
    random.seed(seed)
    with path.open("w") as file:
        for _ in range(rows):
            tag = random.choice(sorted(TAGS))
            text = " ".join(random.choices(TAGS[tag].split(), k=4))
            file.write(json.dumps({"text": text, "labels": [tag, "code"]}) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        train, test, run = (Path(folder) / name for name in ("train.jsonl", "test.jsonl", "run"))
        write_rows(train, 400, seed=1)
        write_rows(test, 50, seed=2)
        dslide.train(train, out=run, epochs=5)
        print({name: round(value, 2) for name, value in dslide.evaluate(run, test, k=2).items() if name.endswith("_2")})
        for row in dslide.predict(run, ["a crate with a trait", "pip import"], k=2, probabilities=True):
            print(json.dumps(row.to_dict()))


if __name__ == "__main__":
    main()
