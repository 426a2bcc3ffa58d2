"""Growth: settings near the best, storage of networks, and a report of invented results."""

from __future__ import annotations

import inspect
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cluster import growth, sweeps
from bench.lib.processes import Outcome, System
from bench.lib.training import map_labels
from bench.lib.workload import AMAZON
from dslide import Config
from dslide.data import SparseRows

curves = st.lists(st.tuples(st.integers(1, 10**7), st.floats(1, 1e5)), min_size=1, max_size=9, unique_by=lambda p: p[0])


@given(curve=curves.map(sorted))
@settings(deadline=None)
def test_near_the_best_are_those_that_differ_by_little(curve: list[tuple[float, float]]) -> None:
    best = max(value for _, value in curve)
    of_best = [at for at, value in curve if value == best]
    for near in (sweeps.near_share, sweeps.near_difference):
        chosen = near(curve)
        assert set(of_best) <= set(chosen)
        assert chosen == sorted(chosen)
    assert sweeps.near_share(curve, 1.0) == sweeps.near_difference(curve, 0.0) == of_best
    assert sweeps.near_share(curve, 0.0) == sweeps.near_difference(curve, best) == [at for at, _ in curve]


def test_descriptions_of_sweeps() -> None:
    speed, precision = [(1, 50.0), (2, 98.0), (4, 100.0), (8, 80.0)], [(1, 0.9), (2, 0.895), (4, 0.7), (8, 0.5)]
    assert sweeps.describe_speed("hits", speed) == (
        "- hits, speed: best at 4 (100 samples/s); at least 95% of that from 2 to 4; 80% of it at 8."
    )
    assert "best at 1 (P@1 0.900); at most 0.01 below that from 1 to 2" in sweeps.describe_precision("hits", precision)
    assert sweeps.describe_choice("hits", speed, precision, 4) == (
        "- **hits: 2 is the fastest of those within 0.01 of the best P@1** (98 samples/s, P@1 0.895); the default, 4, "
        "has 102% of its speed and P@1 0.700."
    )
    assert sweeps.describe_choice("hits", speed, precision, 3).endswith("the default, 3, has no results.")
    assert sweeps.describe_choice("hits", speed, [], 4) == "- hits: no setting has results of both."
    assert sweeps.describe_speed("hits", []) == sweeps.describe_precision("hits", []) == "- hits: no results."


def test_systems_without_results_are_no_points() -> None:
    systems = {at: System(str(at), "x:y", {}) for at in (2, 1, 3)}
    outcomes = {system: Outcome([{"samples_per_second": 10.0 * at}]) for at, system in systems.items()}
    outcomes[systems[3]] = Outcome(problem="skipped: needs 9 GB of memory, and 1 GB are available")
    assert sweeps.points(systems, outcomes, growth.SPEED) == [(1, 10.0), (2, 20.0)]


def test_larger_networks_are_stored_in_16_bits() -> None:
    stored = {hidden: growth._stored({"hidden": hidden}, AMAZON) for hidden in growth.FULL.hidden}
    assert stored[64] == ["float32"]
    assert stored[1024] == ["float32", "bf16"]
    assert stored[2048] == ["bf16"]
    assert growth._least({"hidden": 2048} | growth.STORAGES["bf16"], AMAZON) < growth.MOST_BYTES


@pytest.mark.parametrize("sizes", [growth.FULL, growth.QUICK], ids=["full", "quick"])
def test_defaults_are_among_the_settings(sizes: growth.Sweeps) -> None:
    """They can't be compared with the best otherwise."""
    config = growth.resolve(Config(**growth.NETWORK), sizes.speed.labels)
    hits, negatives = config.hits_per_row, config.random_negatives
    assert growth.BATCH in sizes.batches
    assert hits in sizes.hash_hits
    assert negatives in sizes.random_negatives


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> growth.Growth:
    return growth.Growth(growth.QUICK, tmp_path_factory.mktemp("data"), threads=1)


def test_every_system_can_be_called(quick: growth.Growth) -> None:
    for system in (system for section in quick.sections for system in section.systems):
        module, name = system.function.split(":")
        inspect.signature(getattr(import_module(module), name)).bind(**system.arguments, seed=0)
        options = {key: value for key, value in system.arguments.items() if key in vars(Config())}
        Config(**(growth.NETWORK | options))


def test_a_report_of_invented_results(quick: growth.Growth, tmp_path: Path) -> None:
    systems = [system for section in quick.sections for system in section.systems]
    outcomes = {system: Outcome([{"long_run": 100.0 + i, "p_at_1": 0.5}]) for i, system in enumerate(systems)}
    words = quick.conclude(outcomes)
    assert words.startswith("## Settings near the best")
    assert "- labels, float32, speed: best at 20,000" in words
    assert "- labels, bf16: no results." in words  # none of the quick sizes needs it
    assert "- **rows in a batch: 256 is the fastest" in words
    assert "the default, 4, has 100% of its speed and P@1 0.500" in words
    quick.draw(tmp_path, outcomes)
    for name in ("labels", "hidden", "batch", "hash-hits", "random-negatives"):
        ET.parse(tmp_path / f"{name}.svg")
    for name in ("batch", "hash-hits", "random-negatives"):
        ET.parse(tmp_path / f"{name}-accuracy.svg")


def test_speed_with_the_bytes_of_a_sample(quick: growth.Growth) -> None:
    arguments = quick.batches[128].arguments | {"seconds": 0.01}
    found = growth.speed(**arguments, seed=0)
    assert found["samples_per_second"] > 0
    config = Config(**growth.NETWORK, batch_size=128)
    assert found["bytes_per_sample"] == 4 * growth.bytes_per_step(config, growth.QUICK.speed.labels, 4) / 128
    assert found["rebuild_seconds"] > 0
    assert 0 < found["long_run"] < found["samples_per_second"]
    assert growth.speed(**quick.hits[0].arguments | {"seconds": 0.01}, seed=0)["rebuild_seconds"] == 0  # no tables


def test_rebuilds_in_a_long_run() -> None:
    """9 steps of all rows of Amazon-670K at 10 samples a second; tables are rebuilt before the steps
    2, 4, 6 and 8, and built before all."""
    config = Config(batch_size=490_449, rebuild_every=2, rebuild_growth=1, epochs=9)
    samples = 9 * 490_449
    assert growth.long_run(config, 10.0, 0.0) == pytest.approx(10.0)
    assert growth.long_run(config, 10.0, 1000.0) == pytest.approx(samples / (samples / 10 + 5 * 1000))


@given(st.lists(st.sets(st.integers(0, 9), max_size=4), max_size=5), st.integers(1, 40))
@settings(deadline=None)
def test_labels_are_mapped_row_by_row(rows: list[set[int]], labels: int) -> None:
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    indices = np.array([label for row in rows for label in sorted(row)], np.int32)
    mapped = map_labels(SparseRows(indptr, indices, np.ones(len(indices), np.float32), 10), labels)
    step = max(1, labels // 10)
    found = [mapped.indices[a:b].tolist() for a, b in zip(mapped.indptr, mapped.indptr[1:], strict=False)]
    assert found == [sorted({label * step % labels for label in row}) for row in rows]
    assert mapped.columns == labels
