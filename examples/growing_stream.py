"""A stream that grows: batches of texts bring new words and classes, which partial_fit takes as they come; and a run of
`dslide.train` goes on with new rows, replaying old ones.

python examples/growing_stream.py
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import dslide
from dslide import SlideClassifier

DAYS = (("sport", "politics"), ("sport", "politics", "weather"), ("sport", "politics", "weather", "film"))


def batch(sections: tuple[str, ...], rows: int) -> tuple[list[str], list[str]]:
    """Texts, and the section of each; a section has words of its own."""
    chosen = random.choices(sections, k=rows)
    return [" ".join(f"{section}{random.randrange(10)}" for _ in range(4)) for section in chosen], chosen


def main() -> None:
    random.seed(1)
    model = SlideClassifier(epochs=3, hidden=(16,), learning_rate=0.05, batch_size=32, threads=1).fit(
        *batch(DAYS[0], 200)
    )
    for sections in DAYS[1:]:
        for _ in range(6):
            model.partial_fit(*batch(sections, 200))
        texts, truth = batch(sections, 100)
        print(f"{len(model.classes_)} classes, {model.n_features_in_} words, accuracy {model.score(texts, truth):.2f}")

    with tempfile.TemporaryDirectory() as folder:
        old, new, run = Path(folder) / "old.tsv", Path(folder) / "new.tsv", Path(folder) / "run"
        for path, sections in ((old, DAYS[0]), (new, DAYS[2])):
            path.write_text("".join(f"{label}\t{text}\n" for text, label in zip(*batch(sections, 300), strict=True)))
        dslide.train(old, out=run, epochs=5)
        grown = dslide.train(new, out=f"{run}-2", start_from=run, replay=old)
        print(
            "grown to", grown.summary["labels"], "labels:", next(dslide.predict(f"{run}-2", ["film1 film2"], k=1)).names
        )


if __name__ == "__main__":
    main()
