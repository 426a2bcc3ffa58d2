"""Modelled speed of more nodes, of invented measurements."""

from __future__ import annotations

import re
from pathlib import Path

from bench.cluster.speedup import GROWN, LINKS, Speedup, batches, configured
from bench.lib.processes import Outcome
from bench.lib.workload import BATCH, Shape
from dslide.training import phases

SHAPE = Shape(2560, 5_000, 60_000)
NODES = (1, 2, 8)


def test_nodes_without_links_between_them_are_cores_only() -> None:
    """A rank alone takes .16 ms a row / R on one core, half of it on two."""
    experiment = Speedup(Path("nowhere"), SHAPE, NODES, 1.0, cores=2)
    outcomes = {
        system: Outcome(
            [dict.fromkeys(phases.ALL, 0.0) | dict.fromkeys((phases.REST, "step"), 0.16 * batch / n / threads)]
        )
        for (n, batch, threads), system in experiment.systems.items()
    }
    lines = experiment.modelled(outcomes).splitlines()[-2 * len(LINKS) :]
    for fixed, grown in zip(lines[::2], lines[1::2], strict=True):
        speeds = [[float(n.replace(",", "")) for n in re.findall(r"([\d,]+) \(", line)] for line in (fixed, grown)]
        assert speeds[0][0] == speeds[1][0] == 25_000  # .04 ms a row on 4 cores
        assert all(a < b * n for n, a, b in zip(NODES[1:], speeds[0][1:], [25_000] * 2, strict=True))
        assert all(a < b for a, b in zip(speeds[0][1:], speeds[1][1:], strict=True))  # fewer messages for a row


def test_batches_grow_as_the_defaults_say() -> None:
    assert [batches(n)[-1] for n in (1, 2, 4, 16)] == [BATCH, 2 * BATCH, GROWN, GROWN]
    assert configured(4, GROWN, 60_000).prior_hits < configured(4, BATCH, 60_000).prior_hits
