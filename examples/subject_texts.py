"""Subjects of texts: a table of titles with their subjects, named columns, predictions with names.

python examples/subject_texts.py
"""

from __future__ import annotations

import csv
import random
import tempfile
from pathlib import Path

import dslide

WORDS = {
    "organic chemistry": "carbon molecule synthesis reaction catalyst polymer",
    "marine biology": "ocean reef plankton whale coral current",
    "medieval history": "monastery crusade king manuscript castle plague",
    "machine learning": "network gradient training classifier sampling kernel",
}


def write_table(path: Path, rows: int, seed: int) -> None:
    """A table with a header, and subjects between semicolons."""
    random.seed(seed)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "title", "subjects"])
        for number in range(rows):
            subjects = random.sample(sorted(WORDS), random.choice([1, 1, 2]))
            words = [word for subject in subjects for word in random.sample(WORDS[subject].split(), 3)]
            table.writerow([number, " ".join(words), "; ".join(subjects)])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        train, test, run = (Path(folder) / name for name in ("train.csv", "test.csv", "run"))
        write_table(train, 800, seed=1)
        write_table(test, 100, seed=2)
        result = dslide.train(
            train, out=run, test=test, text_column="title", label_column="subjects", label_separator=";", epochs=5
        )
        print(f"precision of the best subject: {result.metrics['p_at_1']:.2f}")
        titles = ["coral and plankton of the ocean", "gradient of a network, catalyst of a reaction"]
        for title, row in zip(titles, dslide.predict(run, titles, k=2, probabilities=True), strict=True):
            print(f"{title}: {', '.join(row.names)}")


if __name__ == "__main__":
    main()
