"""Trains a small text encoder in PyTorch with `dslide.torch.OutputLayer`, or with plain PyTorch.

    python examples/torch_text.py TRAIN.tsv TEST.tsv [--epochs 3] [--plain]

Each line has labels, separated by spaces, and a text, in its last two columns; files may be .xz or .gz. Without files
it makes small ones. --plain: the same with torch.nn.Linear and cross-entropy over all labels. Needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import random
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from dslide.torch import OutputLayer

BUCKETS, WIDTH, BATCH, MOST_WORDS = 1 << 18, 128, 256, 400
THEMES = {
    "music": "guitar choir melody rhythm opera", "cooking": "oven flour butter recipe spice",
    "sailing": "harbour mast anchor tide rope", "chess": "bishop opening gambit rook endgame",
}  # fmt: skip


def write_table(path: Path, rows: int, seed: int) -> None:
    """A table of themes and texts."""
    random.seed(seed)
    with path.open("w") as file:
        for _ in range(rows):
            themes = random.sample(sorted(THEMES), random.choice([1, 1, 2]))
            words = [word for theme in themes for word in random.sample(THEMES[theme].split(), 3)]
            file.write(f"{' '.join(themes)}\t{' '.join(words)}\n")


def read_table(path: Path) -> list[tuple[list[str], torch.Tensor]]:
    """Each row's labels, and its words as numbers of buckets."""
    opened: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    rows = []
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            *_, labels, text = line.rstrip("\n").split("\t")
            words = [zlib.crc32(word.encode()) % BUCKETS for word in text.lower().split()[:MOST_WORDS]]
            rows.append((labels.split(), torch.tensor(words or [0])))
    return rows


class Encoder(torch.nn.Module):
    """A text's vector, from those of its words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.EmbeddingBag(BUCKETS, WIDTH, mode="mean", sparse=True)
        torch.nn.init.normal_(self.words.weight, std=0.3)
        self.dense = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, texts: list[torch.Tensor]) -> torch.Tensor:
        offsets = torch.tensor([0, *map(len, texts[:-1])]).cumsum(0)
        h = self.words(torch.cat(texts), offsets)
        return h + torch.relu(self.dense(h))


class PlainOutput(torch.nn.Linear):
    """What `OutputLayer` does, in plain PyTorch: all labels, all of the time."""

    def loss(self, h: torch.Tensor, labels: list[list[int]]) -> torch.Tensor:
        target = torch.zeros(len(h), self.out_features)
        for row, some in enumerate(labels):
            target[row, some] = 1 / len(some)
        return torch.nn.functional.cross_entropy(self(h), target)

    def topk(self, h: torch.Tensor, k: int) -> Any:
        return self(h).topk(k)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="train and test; none: made here")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="plain PyTorch instead of dslide.torch")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = given.files or [Path(folder) / "train.tsv", Path(folder) / "test.tsv"]
        if not given.files:
            write_table(files[0], 2000, seed=1)
            write_table(files[1], 200, seed=2)
        train, test = (read_table(path) for path in files)
    counts = Counter(label for labels, _ in train for label in labels)
    names = [name for name, _ in counts.most_common()]
    numbers = {name: number for number, name in enumerate(names)}

    torch.manual_seed(0)
    encoder = Encoder()
    if given.plain:
        output: Any = PlainOutput(WIDTH, len(names))
        loss_of = output.loss
        others = [torch.optim.Adam([*output.parameters(), *encoder.dense.parameters()], lr=2e-3, fused=True)]
    else:
        output = loss_of = OutputLayer(WIDTH, len(names))
        output.set_label_counts([counts[name] for name in names], len(train))
        others = [torch.optim.Adam(encoder.dense.parameters(), lr=2e-3), output.optimizer]
    optimizers = [torch.optim.SparseAdam(encoder.words.parameters(), lr=2e-3), *others]
    steps = given.epochs * (len(train) // BATCH)
    schedules = [torch.optim.lr_scheduler.LinearLR(each, 1.0, 0.02, steps) for each in optimizers]

    begin = time.perf_counter()
    for epoch in range(given.epochs):
        random.shuffle(train)
        total = 0.0
        for at in range(0, len(train) - BATCH + 1, BATCH):
            rows = train[at : at + BATCH]
            h = encoder([text for _, text in rows])
            loss = loss_of(h, [[numbers[label] for label in labels] for labels, _ in rows])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / (len(train) // BATCH):.3f}, {time.perf_counter() - begin:.0f} s")

    hits, ks = Counter[int](), (1, 3, 5) if len(names) > 5 else (1, 3)
    with torch.no_grad():
        for at in range(0, len(test), BATCH):
            rows = test[at : at + BATCH]
            best = output.topk(encoder([text for _, text in rows]), ks[-1])[1]
            for (labels, _), found in zip(rows, best.tolist(), strict=True):
                right = [names[number] in labels for number in found]
                hits.update({k: sum(right[:k]) for k in ks})
        print(", ".join(f"P@{k} {hits[k] / k / len(test):.3f}" for k in ks), f"on {len(test):,} texts")
        if not given.files:
            text = torch.tensor([zlib.crc32(word.encode()) % BUCKETS for word in ("gambit", "rook")])
            print("gambit rook:", names[int(output.topk(encoder([text]), 1)[1])])


if __name__ == "__main__":
    main()
