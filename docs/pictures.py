"""The pictures of the concept pages: `python docs/pictures.py` writes docs/concepts/*.svg.

All are 400 units wide with text of 12 units or more, so that they can be read on a phone, and have a dark version. A
test checks that the files are what this script writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WIDTH = 400
STYLE = """
svg { --card: #f7f7f5; --ink: #1c1c1c; --soft: #5a5a5a; --rule: #c4c4be; --box: #fff;
  --a: #0072b2; --b: #c04b00; --c: #00795a; --at: #d5e8f4; --bt: #f8dfd0; --ct: #d2ece3;
  font: 12.5px system-ui, "Helvetica Neue", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { svg { --card: #1d2026; --ink: #e8e8e4; --soft: #b4b7bc; --rule: #4a4f58;
  --box: #2a2e36; --a: #56a8e6; --b: #f0803c; --c: #3fc79d; --at: #1f3c52; --bt: #50301d; --ct: #1c473a; } }
text { fill: var(--ink); } .soft { fill: var(--soft); } .bold { font-weight: 600; }
text.a { fill: var(--a); } text.b { fill: var(--b); } text.c { fill: var(--c); }
.box { fill: var(--box); stroke: var(--rule); } .none { fill: var(--rule); }
.fa { fill: var(--a); } .fb { fill: var(--b); } .fc { fill: var(--c); }
.ta { fill: var(--at); stroke: var(--a); } .tb { fill: var(--bt); stroke: var(--b); }
.tc { fill: var(--ct); stroke: var(--c); }
.cell { stroke: var(--card); stroke-width: 3; } .cell.ta { stroke: var(--card); }
line { stroke: var(--soft); stroke-width: 1.5; } line.thin { stroke: var(--rule); stroke-width: 1; }
line.a { stroke: var(--a); } line.b { stroke: var(--b); } line.c { stroke: var(--c); }
#head path { fill: var(--soft); }
"""  # fmt: skip
HEAD = """<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6"
 orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker></defs>"""
RANKS = "abc"  # classes of colours
Point = tuple[float, float]


class Picture:
    """Shapes in the order of drawing. Classes are those of STYLE."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str = "box", round: float = 4) -> None:
        self.parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round:g}"/>'
        )

    def circle(self, x: float, y: float, radius: float, kind: str) -> None:
        self.parts.append(f'<circle class="{kind}" cx="{x:.4g}" cy="{y:.4g}" r="{radius:g}"/>')

    def polygon(self, points: Sequence[Point], kind: str) -> None:
        self.parts.append(f'<polygon class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def middle(self, x: float, y: float, *lines: str, kind: str = "") -> None:
        """Lines of text centred on x, the first at y."""
        for number, words in enumerate(lines):
            self.text(x, y + 16 * number, words, kind, "middle")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "") -> None:
        self.parts.append(f'<line class="{kind}" x1="{x1:.4g}" y1="{y1:.4g}" x2="{x2:.4g}" y2="{y2:.4g}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, both: bool = False) -> None:
        ends = ' marker-start="url(#head)"' if both else ""
        place = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
        self.parts.append(f'<line {place} marker-end="url(#head)"{ends}/>')

    def svg(self, title: str, height: float) -> str:
        size = f'viewBox="0 0 {WIDTH} {height:g}" width="{1.3 * WIDTH:g}" height="{1.3 * height:g}"'
        card = f'<rect width="{WIDTH}" height="{height:g}" rx="8" fill="var(--card)"/>'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(title)}</title>'
        return "\n".join([start, f"<style>{STYLE}</style>", HEAD, card, *self.parts, "</svg>"]) + "\n"


def system() -> str:
    p = Picture()
    p.rect(12, 14, 376, 46)
    p.middle(200, 33, "training data: rows of features or text with their", "labels, on the disk of every machine")
    for i in range(3):
        p.arrow(70 + 130 * i, 62, 70 + 130 * i, 98)
    for i, rank in enumerate(RANKS):
        x = 12 + 130 * i
        p.rect(x, 102, 116, 112, "t" + rank)
        p.middle(x + 58, 122, f"machine {i + 1}", kind="bold " + rank)
        p.middle(x + 58, 144, "a third of the", "neurons, with", "their weights", "and hash tables")
        p.arrow(x + 58, 218, x + 58, 244, both=True)
    p.rect(12, 248, 376, 46)
    p.middle(200, 267, "network: in each step the activations and gradients", "of the hidden layer, but no weights")
    p.arrow(200, 296, 200, 320)
    p.rect(12, 324, 376, 30)
    p.middle(200, 344, "for a new row: the best of all labels, with scores")
    return p.svg("Machines share one network: each has a part of the neurons", 368)


def sharding() -> str:
    p = Picture()
    p.text(16, 26, "features of a row", "bold")
    p.text(384, 26, "read by every rank", "soft", "end")
    present = (2, 5, 9)
    hidden = [(58 + 57 * i, 140) for i in range(6)]
    labels = [(30 + 42.5 * i, 250) for i in range(9)]
    for i in present:
        p.line(32 + 30.5 * i, 55, hidden[1][0], 129, "b")
    for x, y in hidden:
        p.line(x, y + 11, labels[3][0], 239, "a")
    for i in range(12):
        p.rect(24 + 30.5 * i, 38, 16, 16, "none" if i in present else "box", 2)
    p.text(384, 110, "hidden units", "bold", "end")
    for i, (x, y) in enumerate(hidden):
        p.circle(x, y, 11, "f" + RANKS[i % 3])
    p.text(384, 222, "labels", "bold", "end")
    for i, (x, y) in enumerate(labels):
        p.circle(x, y, 11, "f" + RANKS[i % 3])
        p.middle(x, 280, str(i), kind="soft")
    for i, rank in enumerate(RANKS):
        p.rect(22 + 126 * i, 300, 104, 26, "t" + rank)
        p.middle(74 + 126 * i, 318, f"rank {i}", kind="bold " + rank)
    p.middle(200, 348, "The lines are all weights of hidden unit 1, kept", "by rank 1, and of label 3, kept by rank 0.",
             kind="soft")  # fmt: skip
    return p.svg("Neurons are dealt to the ranks in turn; weights lie with their neuron", 378)


def step() -> str:
    p = Picture()
    stages = (
        (("forward: its own", "hidden units"), ("activations", "B × H / R")),
        (("hits among its", "own labels"), ("rankings of hits", "B × hits")),
        (("logits of its own", "active labels"), ("sums for softmax", "2 B")),
        (("its part of the", "hidden gradient"), ("gradients", "B × H / R")),
        (("update of its", "own weights"), ()),
    )
    for i in range(2):
        p.middle(70 + 260 * i, 26, f"rank {i}", kind="bold " + RANKS[i])
    p.middle(200, 26, "on the wire", kind="bold")
    for number, (words, wire) in enumerate(stages):
        y = 40 + 72 * number
        for i in range(2):
            x = 8 + 260 * i
            p.rect(x, y, 124, 46, "t" + RANKS[i])
            p.middle(x + 62, y + 20, *words)
            if number + 1 < len(stages):
                p.arrow(x + 62, y + 47, x + 62, y + 70)
        if wire:
            p.arrow(136, y + 58, 264, y + 58, both=True)
            p.middle(200, y + 34, *wire[:1])
            p.middle(200, y + 50, *wire[1:], kind="soft")
    p.middle(
        200, 400, "B: rows of the batch. H: hidden units. R: ranks.", "Numbers sent to each other rank.", kind="soft"
    )
    return p.svg("One step on two ranks, and what they send each other", 430)


def active_set() -> str:
    p = Picture()
    rng = np.random.default_rng(7)
    columns, rows = 20, 9
    chosen = rng.permutation(columns * rows)
    kinds = dict.fromkeys(map(int, chosen[:6]), "fa") | dict.fromkeys(map(int, chosen[6:16]), "fb")
    kinds |= dict.fromkeys(map(int, chosen[16:30]), "fc")
    p.text(20, 28, f"{columns * rows} output neurons, one for each label", "bold")
    for i in range(columns * rows):
        x, y = 20 + 18.1 * (i % columns), 40 + 18.1 * (i // columns)
        p.rect(x, y, 15, 15, kinds.get(i, "box"), 2)
    legend = (
        ("fa", "6", "labels of the rows of the batch"),
        ("fb", "10", "hits: looked up, easily mistaken for a label"),
        ("fc", "14", "random negatives: stand for all the others"),
    )
    for i, (kind, count, words) in enumerate(legend):
        p.rect(20, 220 + 26 * i, 15, 15, kind, 2)
        p.text(72, 232 + 26 * i, count, "bold", "end")
        p.text(80, 232 + 26 * i, words)
    p.line(20, 300, 380, 300, "thin")
    p.text(72, 320, "30", "bold", "end")
    p.text(80, 320, "active: computed and updated for all rows")
    p.rect(20, 332, 15, 15, "box", 2)
    p.text(72, 344, "150", "bold", "end")
    p.text(80, 344, "not touched in this step")
    return p.svg("The active set of a batch is a small part of the output neurons", 360)


def hash_tables() -> str:
    p = Picture()
    p.text(16, 28, "hidden vector of a row", "bold")
    heights = (14, 4, 22, 9, 2, 18, 12, 6, 20, 3, 11, 16)
    for i, height in enumerate(heights):
        p.rect(24 + 14 * i, 66 - height, 10, height, "none", 1)
    p.text(212, 50, "3 codes for each table:", "soft")
    p.text(212, 66, "signs of random projections", "soft")
    tables = (
        ("101", (("011", "8, 61"), ("100", "23"), ("101", "4, 17, 52"), ("110", "75, 90"))),
        ("010", (("001", "52"), ("010", "17, 33"), ("011", "4, 90"), ("100", "8, 75"))),
        ("110", (("100", "23, 52"), ("101", "33"), ("110", "4, 17, 90"), ("111", "61"))),
    )
    for i, (address, buckets) in enumerate(tables):
        x = 12 + 128 * i
        p.arrow(x + 60, 78, x + 60, 98)
        p.middle(x + 60, 116, f"table {i + 1}: {address}", kind="bold")
        for j, (name, neurons) in enumerate(buckets):
            y = 126 + 28 * j
            p.rect(x, y, 120, 24, "tb" if name == address else "box")
            p.text(x + 8, y + 17, name, "soft")
            p.text(x + 44, y + 17, neurons, "bold b" if name == address else "")
        p.arrow(x + 60, 242, x + 60, 262)
    p.text(16, 282, "how many tables have found a label", "bold")
    found = ((17, 3), (4, 2), (33, 1), (52, 1), (90, 1))
    for i, (neuron, count) in enumerate(found):
        x = 12 + 76.5 * i
        p.rect(x, 292, 70, 44, "tb" if count > 1 else "box")
        p.middle(x + 35, 310, f"label {neuron}", kind="bold b" if count > 1 else "")
        p.middle(x + 35, 327, f"{count} of 3", kind="soft")
    p.middle(200, 358, "2 hits for this row: labels 17 and 4", kind="soft")
    return p.svg("Looking up labels in hash tables", 374)


def clipped(polygon: list[Point], keep: Callable[[Point], float]) -> list[Point]:
    """The part of a convex polygon where the linear function `keep` is positive."""
    found = []
    for one, other in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        a, b = keep(one), keep(other)
        if a > 0:
            found.append(one)
        if a * b < 0:
            share = a / (a - b)
            found.append((one[0] + share * (other[0] - one[0]), one[1] + share * (other[1] - one[1])))
    return found


def nearer(own: NDArray[np.float64], other: NDArray[np.float64]) -> Callable[[Point], float]:
    """Positive at points that are nearer to `own` than to `other`."""
    return lambda point: float(np.sum((np.array(point) - other) ** 2) - np.sum((np.array(point) - own) ** 2))


def cells() -> str:
    p = Picture()
    rng = np.random.default_rng(3)
    centres = np.array([(92.0, 92.0), (290.0, 84.0), (200.0, 182.0)])
    p.text(16, 26, "hidden vectors of recent rows, in 3 cells", "bold")
    frame: list[Point] = [(12, 38), (388, 38), (388, 232), (12, 232)]
    for i, rank in enumerate(RANKS):
        polygon = frame
        for j in range(3):
            if j != i:
                polygon = clipped(polygon, nearer(centres[i], centres[j]))
        p.polygon(polygon, f"cell t{rank}")
    points = np.concatenate([centre + rng.normal(size=(16, 2)) * (34, 19) for centre in centres]).clip(48, (382, 226))
    for x, y in points:
        p.circle(x, y, 3, "f" + RANKS[np.argmin(((centres - (x, y)) ** 2).sum(axis=1))])
    for (x, y), rank in zip(centres, RANKS, strict=True):
        p.rect(x - 7, y - 7, 14, 14, f"t{rank}", 0)
    p.line(346, 134, 297, 89, "")
    p.circle(346, 134, 5.5, "box")
    p.middle(344, 154, "new row")
    p.text(16, 256, "labels with the largest logits at each centre", "bold")
    lists = ("4, 52, 17, 8, …", "90, 33, 4, 61, …", "75, 23, 8, 33, …")
    for i, (rank, labels) in enumerate(zip(RANKS, lists, strict=True)):
        x = 12 + 128 * i
        p.rect(x, 266, 120, 28, "t" + rank)
        p.middle(x + 60, 285, labels, kind="bold" if i == 1 else "")
    p.arrow(200, 296, 200, 316)
    p.middle(200, 334, "The new row scores the labels of its cell", "by its own logits; the best are its hits.")
    return p.svg("Looking up labels in cells of hidden vectors", 364)


def label_prior() -> str:
    p = Picture()
    p.rect(40, 14, 320, 30)
    p.middle(200, 34, "features of a row: words, items, counts")
    p.arrow(100, 46, 100, 78)
    p.arrow(300, 46, 300, 78)
    p.rect(12, 82, 176, 150, "ta")
    p.middle(100, 102, "network", kind="bold a")
    for i in range(5):
        for j in range(7):
            p.line(44 + 28 * i, 146, 28 + 24 * j, 186, "thin")
    for i in range(5):
        p.circle(44 + 28 * i, 142, 7, "fa")
    for j in range(7):
        p.circle(28 + 24 * j, 190, 5, "box")
    p.middle(100, 124, "a few hidden units", kind="soft")
    p.middle(100, 218, "what features share", kind="soft")
    p.rect(212, 82, 176, 150, "tb")
    p.middle(300, 102, "label prior", kind="bold b")
    p.middle(300, 124, "feature × label, sparse", kind="soft")
    links = {(0, 2), (0, 9), (1, 5), (2, 0), (2, 6), (2, 11), (3, 3), (3, 8), (4, 1), (4, 10)}
    for i in range(5):
        for j in range(12):
            p.rect(222 + 13 * j, 134 + 13 * i, 11, 11, "fb" if (i, j) in links else "box", 1)
    p.middle(300, 218, "what a feature says alone", kind="soft")
    p.arrow(100, 234, 182, 264)
    p.arrow(300, 234, 218, 264)
    p.circle(200, 270, 15, "box")
    p.middle(200, 275, "+", kind="bold")
    p.arrow(200, 287, 200, 304)
    p.rect(90, 308, 220, 30)
    p.middle(200, 328, "logits of the active labels")
    return p.svg("The label prior adds to the logits of the network", 352)


PICTURES = {
    "system": system, "sharding": sharding, "step": step, "active-set": active_set, "hash-tables": hash_tables,
    "cells": cells, "label-prior": label_prior,
}  # fmt: skip

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / "concepts" / f"{name}.svg").write_text(draw(), encoding="utf-8")
