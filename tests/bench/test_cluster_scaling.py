"""Scaling and predictions, of invented measurements."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from bench.cluster import predictions, unequal
from bench.cluster.exchanges import rounds
from bench.cluster.labs import network_config
from bench.cluster.scaling import LATENCY, MODELLED_CORES, Scaling, check_table, modelled_table
from bench.cluster.scaling_runs import grown
from bench.lib.processes import Outcome
from bench.lib.workload import BATCH, Shape
from dslide.comm.frames import OVERHEAD
from dslide.config import Config
from dslide.planner.forecast import Forecast
from dslide.planner.memory import plan
from dslide.planner.step_time import MESSAGE_SECONDS, NetworkSpeed, NodeStep, node_step
from dslide.planner.traffic import bytes_per_step, messages_per_step, rounds_per_step
from dslide.planner.trial_rows import made_up
from dslide.training import phases

SHAPE = Shape(2560, 5_000, 60_000)
NODES = (1, 2, 4)


@pytest.fixture
def experiment() -> Scaling:
    return Scaling(Path("nowhere"), SHAPE, NODES, 1.0, cores=2)


def outcomes(experiment: Scaling) -> dict:
    """A rank alone: 40 ms / R on one core, of which half can be divided among cores; training at 1,000 samples/s for
    each node, or twice that at 100 Mbit/s."""
    found = {}
    for (n, threads, _), system in experiment.alone.items():
        result = {"milliseconds": 20 / n + 20 / n / threads, "rebuild_seconds": 0.0, "active": 100.0}
        found[system] = Outcome([result])
    for (n, rate, _), system in experiment.training.items():
        found[system] = Outcome([{"samples_per_second": 1000.0 * n * (2 if rate == "100mbit" else 1)}])
    return found


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_exchanges_are_those_of_a_step(ranks: int) -> None:
    config = network_config()
    sizes = rounds(config, 60_000, ranks)
    assert len(sizes) == rounds_per_step(config, 60_000)
    flat = [size for messages in sizes for size in messages]
    assert (ranks - 1) * len(flat) == messages_per_step(config, 60_000, ranks)
    assert (ranks - 1) * sum(size + OVERHEAD for size in flat) == bytes_per_step(config, 60_000, ranks)


def test_checks_compare_the_model_with_training(experiment: Scaling) -> None:
    checks = experiment.checks(outcomes(experiment))
    assert [(c["nodes"], c["threads"], c["rate"]) for c in checks] == [
        (1, 1, "unlimited"), (1, 2, "unlimited"), (2, 1, "unlimited"), (2, 1, "1gbit"), (2, 1, "100mbit"),
    ]  # fmt: skip
    assert checks[0]["modelled"] == pytest.approx(BATCH / 0.040)  # 10 steps of 256 rows an epoch, of 40 ms
    assert checks[1]["modelled"] == pytest.approx(BATCH / 0.030)
    two = node_step(network_config(), SHAPE.labels, 2, 0.020, NetworkSpeed(10**8, LATENCY))
    assert checks[-1]["modelled"] == pytest.approx(BATCH / two.total)
    assert checks[-1]["ratio"] == pytest.approx(checks[-1]["modelled"] / 4000)
    assert f"| 2 | 1 | 100mbit | {BATCH / two.total:,.0f} | 4,000 |" in check_table(checks)


def test_modelled_nodes_have_more_cores_and_are_said_to_be_modelled(experiment: Scaling) -> None:
    modelled = experiment.modelled(outcomes(experiment))
    assert len(modelled) == 2 * 3 * len(NODES)
    one = modelled[0]
    assert one["compute_ms"] == pytest.approx(20 + 20 / MODELLED_CORES)
    assert one["samples_per_second"] == pytest.approx(BATCH / 0.025)
    assert one["bottleneck"] == "compute"
    weak = [m for m in modelled if m["scaling"] == "weak" and m["rate"] == "1gbit"]
    assert [m["labels"] for m in weak] == [n * SHAPE.labels for n in NODES]
    assert weak[1]["messages_ms"] == pytest.approx(9e3 * MESSAGE_SECONDS)
    text = modelled_table(modelled)
    assert "**Modelled, not measured**" in text
    assert len(re.findall(r"^\| (strong|weak) ", text, re.MULTILINE)) == len(modelled)


def test_what_failed_is_left_out(experiment: Scaling) -> None:
    found = outcomes(experiment)
    found[experiment.alone[2, 1, False]] = Outcome(problem="failed", failed=True)
    assert all(c["nodes"] == 1 for c in experiment.checks(found))
    assert {m["nodes"] for m in experiment.modelled(found) if m["scaling"] == "strong"} == {1, 4}


def test_every_section_has_systems_that_can_be_called(experiment: Scaling) -> None:
    sections = experiment.sections()
    systems = [system for section in sections for system in section.systems]
    assert len({system.name for system in systems}) == len(systems)
    assert {s.function.split(":")[1] for s in systems} == {"trained", "alone", "exchanged"}
    for system in [*systems, *predictions.section(Path("nowhere"), SHAPE).systems]:
        module, name = system.function.split(":")
        inspect.signature(getattr(import_module(module), name)).bind(**system.arguments, seed=0)


def test_unequal_ranks_are_compared_with_the_sum_of_both_alone() -> None:
    made = unequal.Unequal(Path("nowhere"), SHAPE)
    speeds = {unequal.FIRST: 10.0, unequal.SECOND: 5.0, unequal.EQUAL: 9.0, unequal.MEASURED: 12.0}
    speeds[unequal.TWO_TO_ONE] = 11.0
    found = {
        system: Outcome([{"samples_per_second": speeds[ranks], "first_share": 0.5}] * 2)
        for (_, ranks), system in made.systems.items()
    }
    text = made.efficiency(found)
    assert "| defaults | equal shares | 0.60 (0.60 to 0.60) |" in text
    assert "| defaults | --shares -1 | 0.80 (0.80 to 0.80) |" in text
    for system in made.section().systems:
        inspect.signature(unequal.trained).bind(**system.arguments, seed=0)


def test_labels_grow_with_the_nodes() -> None:
    rows = made_up(64, 100, 500, 5, 3)
    more = grown(rows, 4)
    assert more.labels == 2000
    np.testing.assert_array_equal(more.y.indices // 4, rows.y.indices)
    np.testing.assert_array_equal(more.y.indices % 4, rows.y.indices % 4)  # as many for each rank


def test_each_case_is_predicted_and_measured() -> None:
    section = predictions.section(Path("nowhere"), SHAPE)
    assert len(section.systems) == 2 * len(predictions.CASES)
    for comparison in section.comparisons:
        assert comparison.of.arguments["nodes"] == comparison.to.arguments["nodes"]
        assert comparison.of.arguments["rate"] == comparison.to.arguments["rate"]
        assert comparison.of.name.startswith("plan: ")
        assert comparison.to.name.startswith("measured: ")


@pytest.mark.parametrize(("nodes", "slower"), [(1, 1), (2, 1), (4, 2)])
def test_nodes_that_share_cores_compute_longer(nodes: int, slower: float) -> None:
    step = NodeStep(0.01, 0.001, 0.002, 0.0004, 4)
    needed = plan(Config(), 1000, 1000, ranks=nodes)
    found = predictions.sharing_cores(Forecast(nodes, needed, 0, 4, step, phases.REST, 0.5, 0.1, 256), cores=2)
    assert found.step.compute == pytest.approx(slower * 0.01)
    assert found.rebuild == pytest.approx(slower * 0.5)
    assert found.step.wire == step.wire
