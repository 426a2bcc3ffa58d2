"""Trains a two-tower recommender in PyTorch with `dslide.torch.OutputLayer`, or with plain PyTorch.

    python examples/torch_recommender.py TRAIN.txt TEST.txt [--epochs 20] [--plain]

Each line has a user and the items of that user, separated by spaces; test lines have other items of the same users.
Files may be .xz or .gz. Without files it makes small ones. One tower is a network over a part of a user's items, the
other has a vector for each item: the output layer. --plain: the same with torch.nn.Linear and cross-entropy over all
items. Needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from dslide.torch import OutputLayer

WIDTH, BATCH, TOP = 128, 256, 20
HIDDEN_SHARE = 0.3  # of a user's items that are hidden from the user tower, and have to be guessed


def write_tables(train: Path, test: Path, users: int) -> None:
    """Users who like one of four kinds of items."""
    random.seed(1)
    with train.open("w") as known, test.open("w") as held_out:
        for user in range(users):
            kind = random.randrange(4)
            items = [kind * 15 + number for number in random.sample(range(15), 10)]
            known.write(f"{user} {' '.join(map(str, items[:8]))}\n")
            held_out.write(f"{user} {' '.join(map(str, items[8:]))}\n")


def read_table(path: Path) -> dict[int, list[int]]:
    """The items of each user."""
    opened: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opened(path, "rt") as file:
        numbers = [[int(part) for part in line.split()] for line in file]
    return {line[0]: line[1:] for line in numbers if len(line) > 1}


class UserTower(torch.nn.Module):
    """The vector of a user, from those of items."""

    def __init__(self, items: int) -> None:
        super().__init__()
        self.items = torch.nn.EmbeddingBag(items, WIDTH, mode="mean", sparse=True)
        torch.nn.init.normal_(self.items.weight, std=0.3)
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))

    def forward(self, items: list[list[int]]) -> torch.Tensor:
        offsets = torch.tensor([0, *map(len, items[:-1])]).cumsum(0)
        h = self.items(torch.tensor([item for some in items for item in some]), offsets)
        return h + self.layers(h)


class PlainItems(torch.nn.Linear):
    """What `OutputLayer` does, in plain PyTorch: all items, all of the time."""

    def loss(self, h: torch.Tensor, items: list[list[int]]) -> torch.Tensor:
        target = torch.zeros(len(h), self.out_features)
        for row, some in enumerate(items):
            target[row, some] = 1 / len(some)
        return torch.nn.functional.cross_entropy(self(h), target)

    def topk(self, h: torch.Tensor, k: int, exclude: list[list[int]]) -> Any:
        scores = self(h)
        for row, some in enumerate(exclude):
            scores[row, some] = -torch.inf
        return scores.topk(k)


def split(items: list[int]) -> tuple[list[int], list[int]]:
    """A user's items, some of them hidden: what the tower sees, and what it has to guess."""
    some = random.sample(items, len(items))
    cut = max(1, round(HIDDEN_SHARE * len(some)))
    return some[cut:] or some, some[:cut]


def recall(tower: UserTower, output: Any, known: dict[int, list[int]], held_out: dict[int, list[int]]) -> float:
    """The mean share of a user's held-out items among the best TOP that the user does not have."""
    users, total = [user for user in held_out if user in known], 0.0
    with torch.no_grad():
        for at in range(0, len(users), BATCH):
            some = users[at : at + BATCH]
            items = [known[user] for user in some]
            best = output.topk(tower(items), TOP, exclude=items)[1].tolist()
            for user, found in zip(some, best, strict=True):
                total += len(set(found) & set(held_out[user])) / len(held_out[user])
    return total / len(users)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="train and test; none: made here")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="plain PyTorch instead of dslide.torch")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = given.files or [Path(folder) / "train.txt", Path(folder) / "test.txt"]
        if not given.files:
            write_tables(files[0], files[1], users=600)
        known, held_out = (read_table(path) for path in files)
    items = 1 + max(item for table in (known, held_out) for some in table.values() for item in some)

    torch.manual_seed(0)
    tower = UserTower(items)
    if given.plain:
        output: Any = PlainItems(WIDTH, items)
        loss_of = output.loss
        others = [torch.optim.Adam([*output.parameters(), *tower.layers.parameters()], lr=2e-3, fused=True)]
    else:
        output = loss_of = OutputLayer(WIDTH, items)
        counts = torch.bincount(torch.tensor([item for some in known.values() for item in some]), minlength=items)
        output.set_label_counts(counts, len(known))
        others = [torch.optim.Adam(tower.layers.parameters(), lr=2e-3), output.optimizer]
    optimizers = [torch.optim.SparseAdam(tower.items.parameters(), lr=2e-3), *others]
    users = list(known)
    batches = -(-len(users) // BATCH)
    schedules = [torch.optim.lr_scheduler.LinearLR(each, 1.0, 0.02, given.epochs * batches) for each in optimizers]

    begin = time.perf_counter()
    for epoch in range(given.epochs):
        random.shuffle(users)
        total = 0.0
        for at in range(0, len(users), BATCH):
            seen, hidden = zip(*(split(known[user]) for user in users[at : at + BATCH]), strict=True)
            loss = loss_of(tower(list(seen)), list(hidden))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
            total += loss.item()
        if epoch % 5 == 4 or epoch == given.epochs - 1:
            print(f"epoch {epoch + 1}: loss {total / batches:.3f}, {time.perf_counter() - begin:.0f} s")
    found = recall(tower, output, known, held_out)
    print(f"recall@{TOP} {found:.4f} of {len(held_out):,} users")
    if not given.files:
        kinds = [item // 15 for item in output.topk(tower([[1, 2, 3, 4]]), 5, exclude=[[1, 2, 3, 4]])[1][0].tolist()]
        print("for a new user with items of kind 0: kinds", *kinds)


if __name__ == "__main__":
    main()
