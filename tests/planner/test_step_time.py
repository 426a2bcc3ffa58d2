"""Time model: a rank without the others, rows for trials, the formula, and forecasts from measurements."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslide import Config
from dslide.data import Dataset, SparseRows
from dslide.errors import DataError
from dslide.model.collectives import Collectives
from dslide.model.retriever import Hits
from dslide.planner import calibration, trial_rows
from dslide.planner.calibration import Calibration, calibrate, on_cores
from dslide.planner.forecast import Forecast, forecast, rebuild_cost, recommended, recommended_wire
from dslide.planner.lone_rank import LoneRank
from dslide.planner.memory import plan
from dslide.planner.step_time import (
    MESSAGE_SECONDS,
    UNEVEN,
    NetworkSpeed,
    NodeStep,
    node_step,
    overlapping_parts,
)
from dslide.planner.traffic import HEADER_BYTES, PACKET_BYTES, bytes_on_wire, bytes_per_step, rounds_per_step
from dslide.planner.trial_rows import TrialRows, made_up, rows_of
from dslide.planner.trial_steps import StepTime, time_step
from dslide.training import phases
from dslide.training.schedules import RebuildSchedule
from dslide.util.csr import Lists

PLAIN = {"hidden": (24,), "batch_size": 128, "prior_labels": 0, "threads": 1}
KINDS = [
    {},
    {"output": "lsh"},
    {"output": "lsh", "prior_labels": 8},
    {"output": "cells"},
    {"output": "full", "loss": "sigmoid", "wire": "float32"},
    {"output": "lsh", "active_sets": "row", "hash_hits": 5, "wire": "int8"},
    {"output": "random", "hidden": (24, 17)},
    {"output": "lsh", "hidden": (40, 33), "hidden_share": (0.5, 1.0), "probe": "vanilla"},
    {"output": "lsh", "hidden": (40,), "hidden_share": (0.25,)},
]


# ---- a lone rank ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_every_kind_of_network_trains_on_a_lone_rank(options: dict, ranks: int) -> None:
    comm = LoneRank(ranks)
    try:
        step = time_step(Config(**PLAIN | options), made_up(128, 300, 401, 10, 3), comm, seconds=0.01)
    finally:
        comm.close()
    assert step.compute > 0
    assert set(step.phases) <= set(phases.ALL)
    assert (phases.PACKING in step.phases) == (ranks > 1)
    assert (phases.LABEL_PRIOR in step.phases) == (options.get("prior_labels", 0) > 0)


def test_a_lone_rank_sends_what_the_formula_says() -> None:
    config = Config(**PLAIN | {"hidden": (32,), "output": "lsh", "activation": "linear", "dropout_hidden": 0})
    comm, count = LoneRank(4), 0
    post = comm.post

    def counted(name: str, outgoing: list) -> object:
        nonlocal count
        count += name == "summary"
        return post(name, outgoing)

    comm.post = counted  # type: ignore[method-assign]
    time_step(config, made_up(128, 300, 400, 10, 3), comm, seconds=0.01)
    comm.close()
    assert comm.bytes_sent / count == pytest.approx(bytes_per_step(config, 400, 4), rel=0.02)


def test_a_lone_rank_keeps_its_share_of_hits() -> None:
    """A row's hits compete with those of other rows, not with themselves: about a quarter of them stays."""
    comm, rows, want = LoneRank(4), 400, 4
    ranking = np.random.default_rng(0).integers(1, 2**31, rows * want).astype(np.uint32)
    lists = Lists(np.arange(rows + 1, dtype=np.int64) * want, np.arange(rows * want, dtype=np.int32))
    kept = Collectives(comm, "float32").best_hits(Hits(lists, ranking), want).wait().indices
    comm.close()
    assert len(kept) / len(ranking) == pytest.approx(1 / 4, rel=0.15)
    assert len(set((kept // want).tolist())) > rows / 2  # of many rows


# ---- rows for trials -----------------------------------------------------------------------------------------------


@given(
    st.integers(1, 40), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 90), st.integers(1, 6),
    st.integers(1, 500), st.integers(1, 500),
)  # fmt: skip
def test_fewer_columns_keep_the_structure_of_rows(batch, features, labels, per_row, labels_per_row, most, most_labels):
    rows = made_up(batch, features, labels, per_row, labels_per_row)
    few = rows.fewer(most, most_labels)
    for before, after in ((rows.x, few.x), (rows.y, few.y)):
        np.testing.assert_array_equal(before.indptr, after.indptr)
        assert after.columns <= before.columns
        inside = np.diff(after.indices)[np.setdiff1d(np.arange(after.nnz - 1), after.indptr[1:-1] - 1)]
        assert (inside > 0).all()  # ascending in each row
        assert after.indices.min() >= 0
        assert after.indices.max() < after.columns
        # the mapping of columns is one to one
        assert len(set(zip(before.indices.tolist(), after.indices.tolist(), strict=True))) == len(
            set(after.indices.tolist())
        )
    assert few.x.columns <= max(most, len(np.unique(rows.x.indices)))


def test_long_rows_and_large_batches_limit_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_rows, "MOST_VALUES", 1000)
    assert len(made_up(4, 1000, 10, 5, 5).x) == 8 * 4
    assert len(made_up(100, 1000, 10, 5, 5).x) == 100
    assert len(made_up(4, 5000, 10, 2000, 1).x) == 1


def test_fewer_labels_are_balanced_over_ranks() -> None:
    few = made_up(256, 10, 10**6, 3, 5).fewer(10, 160_000)
    shares = np.bincount(few.y.indices % 16, minlength=16) / few.y.nnz
    assert shares.max() < 0.12


def some_data(rows: int, labels: list[int]) -> Dataset:
    indptr = np.arange(rows + 1, dtype=np.int64)
    x = SparseRows(indptr, np.zeros(rows, np.int32), np.ones(rows, np.float32), 7)
    begin = np.concatenate([[0], np.cumsum([label >= 0 for label in labels])]).astype(np.int64)
    ids = np.array([label for label in labels if label >= 0], np.int32)
    return Dataset(x, SparseRows(begin, ids, np.ones(len(ids), np.float32), 9), source="made up")


def test_rows_of_data_have_labels() -> None:
    found = rows_of(some_data(4, [3, -1, -1, 5]), 16, seed=0)
    assert sorted(found.y.indices.tolist()) == [3, 5]
    assert (found.features, found.labels, found.rows) == (7, 9, 4)
    with pytest.raises(DataError, match="made up: there is no row with a label"):
        rows_of(some_data(2, [-1, -1]), 16, seed=0)


def test_prior_labels_are_no_more_than_co_occur_in_rows() -> None:
    rows = made_up(64, 1000, 500, 1, 1)  # 1 feature, 1 label
    assert rows.prior_labels(64) == 64
    assert dataclasses.replace(rows, rows=20_000).prior_labels(64) == 20
    assert dataclasses.replace(rows, rows=10**6).prior_labels(64) == 64


# ---- time model ----------------------------------------------------------------------------------------------------


def test_the_shorter_of_busy_and_wire_is_hidden_except_for_one_part() -> None:
    assert NodeStep(0.015, 0.005, 0.008, 0.001, parts=4).total == pytest.approx(0.020 + 0.002 + 0.001)
    assert NodeStep(0.005, 0.003, 0.020, 0.001, parts=4).total == pytest.approx(0.020 + 0.002 + 0.001)
    assert NodeStep(0.015, 0.005, 0.008, 0.001, parts=1).total == pytest.approx(0.029)


@given(*[st.floats(0, 1) for _ in range(4)], st.integers(1, 64))
def test_a_step_takes_at_least_its_longest_part_and_at_most_the_sum(compute, messages, wire, latency, parts):
    step = NodeStep(compute, messages, wire, latency, parts)
    assert max(compute + messages, wire) + latency <= step.total * (1 + 1e-9)
    assert step.total <= (compute + messages + wire + latency) * (1 + 1e-9)
    named = {"compute": compute, "messages": messages, "link bandwidth": wire, "link latency": latency}
    assert named[step.bottleneck] == max(named.values())


def test_messages_wire_and_latency_of_a_step() -> None:
    config = Config(hidden=(128,), prior_labels=0, batch_size=256, output="lsh", loss="softmax")
    step = node_step(config, 1000, 4, 0.01, NetworkSpeed(10**8, 2e-4))
    assert step.wire == pytest.approx(8 * bytes_on_wire(config, 1000, 4) / 1e8)
    assert step.latency == pytest.approx(4 * 2e-4)
    assert rounds_per_step(config, 1000) == 4
    assert step.parts == 2
    assert step.messages == pytest.approx(3 * (4 * 2 + 1) * MESSAGE_SECONDS)  # four exchanges in parts, the summary
    free = node_step(config, 1000, 4, 0.01, NetworkSpeed(None, 0.0))
    assert free.total == pytest.approx(UNEVEN * 0.01 + step.messages)
    assert node_step(config, 1000, 1, 0.01, NetworkSpeed(10**5, 1.0)).total == 0.01  # one node sends nothing


def test_headers_are_those_of_packets() -> None:
    config = Config(hidden=(64,), batch_size=64, output="full", loss="sigmoid", wire="float32", micro_batches=1)
    sent = bytes_per_step(config, 300, 2)
    messages = 3  # activations, gradients, the summary
    assert bytes_on_wire(config, 300, 2) == sent + round(HEADER_BYTES * (sent / PACKET_BYTES + messages))
    assert bytes_on_wire(config, 300, 1) == 0


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"batch_size": 256}, 2),
        ({"batch_size": 100}, 1),
        ({"batch_size": 255}, 1),
        ({"batch_size": 512, "micro_batches": 4}, 4),
        ({"batch_size": 256, "micro_batches": 4}, 2),
        ({"batch_size": 256, "active_sets": "row"}, 1),
        ({"batch_size": 256, "hidden_share": (0.5,)}, 1),
    ],
    ids=str,
)
def test_overlapping_parts(options: dict, parts: int) -> None:
    assert overlapping_parts(Config(**options)) == parts


# ---- from measurements to forecasts --------------------------------------------------------------------------------


def made_step(packing: float, output: float, rebuild: float = 0.0) -> StepTime:
    return StepTime({phases.PACKING: packing, phases.SECOND_PASS: output}, 0.0, rebuild, 100.0)


def test_unmeasured_ranks_are_interpolated() -> None:
    found = Calibration({1: made_step(1, 8), 2: made_step(1, 4), 16: made_step(1, 0.5)}, 1, (1,))
    assert found.step(2).phases == {phases.PACKING: 1, phases.SECOND_PASS: 4}
    between = found.step(8)
    assert between.phases[phases.PACKING] == pytest.approx(1)
    assert between.phases[phases.SECOND_PASS] == pytest.approx(1)
    assert found.step(64).compute == pytest.approx(1.5)  # beyond all, the last


def test_more_cores_by_amdahls_law() -> None:
    measured = {1: made_step(1.0, 8.0, 4.0), 2: made_step(1.0, 5.0, 2.0)}  # 8 = 2 + 6 / 1, 5 = 2 + 6 / 2
    four = on_cores(measured, 4)
    assert four.phases[phases.PACKING] == pytest.approx(1.0)
    assert four.phases[phases.SECOND_PASS] == pytest.approx(2 + 6 / 4)
    assert four.rebuild == pytest.approx(1.0)
    assert on_cores({1: measured[1]}, 4) == measured[1]
    slower = {1: made_step(1.0, 1.0), 2: made_step(1.5, 1.0)}
    assert on_cores(slower, 16).phases[phases.PACKING] == pytest.approx(1.5)  # no worse than measured


def test_calibration_stops_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "TRIAL_SECONDS", 0.01)
    config, rows = Config(**PLAIN, output="lsh"), made_up(128, 100, 200, 5, 2)
    found = calibrate(lambda ranks: config, rows, [1, 8, 4, 2], cores=1, seconds=0.0)
    assert list(found.measured) == [1, 8]  # at least two
    assert not found.is_extrapolated
    every = calibrate(lambda ranks: config, rows, [1, 3, 3], cores=1000)
    assert list(every.measured) == [1, 3]
    assert every.is_extrapolated


def test_rebuild_cost_follows_the_schedule() -> None:
    for every, growth in ((50, 1.3), (1, 1.0), (7, 1.05), (20, 3.0)):
        schedule = RebuildSchedule(every, growth)
        due = np.cumsum([schedule.due(step) for step in range(400)])
        config = Config(rebuild_every=every, rebuild_growth=growth)
        for steps in (1, every, every + 1, 123, 400):
            assert rebuild_cost(config, steps, 1e9) == 1 + due[steps - 1]  # a step changes all neurons


def test_rebuild_cost_is_proportional_to_changed_neurons() -> None:
    config = Config(rebuild_every=50, rebuild_growth=2.0)  # at 50 and 150
    expected = 1 + (1 - np.exp(-50 * 0.01)) + (1 - np.exp(-100 * 0.01))
    assert rebuild_cost(config, 200, 0.01) == pytest.approx(expected)


def forecasts(speeds: dict[int, float], memory: dict[int, int]) -> dict[int, Forecast]:
    config = Config(hidden=(64,), prior_labels=0)
    made = {}
    for nodes, speed in speeds.items():
        planned = dataclasses.replace(plan(config, 10, 10, ranks=nodes), parts={"weights": memory[nodes]})
        step = NodeStep(100 / speed)
        made[nodes] = Forecast(nodes, planned, 0, 0, step, phases.SECOND_PASS, 0.0, 0.0, 100)
    return made


@pytest.mark.parametrize(
    ("speeds", "memory", "nodes", "why"),
    [
        ({1: 100, 2: 140, 4: 300}, {1: 50, 2: 30, 4: 20}, 1, "the network fits on one; 2 would be 1.40 times as fast"),
        ({1: 100, 2: 150, 4: 230, 8: 300}, {1: 50, 2: 30, 4: 20, 8: 10}, 4, "1.53 times as fast as 2; 8 would be 1.30"),
        ({1: 100, 2: 190, 4: 200}, {1: 500, 2: 90, 4: 50}, 2, "the fewest that have enough memory; 4 would be 1.05"),
        ({1: 100, 2: 190}, {1: 50, 2: 30}, 2, "1.90 times as fast as 1; more were not considered"),
        ({1: 100, 2: 190}, {1: 500, 2: 300}, None, ""),
    ],
)
def test_recommended_nodes(speeds: dict, memory: dict, nodes: int | None, why: str) -> None:
    found, said = recommended(forecasts(speeds, memory), 100)
    assert found == nodes
    assert said.startswith(why)


def test_a_forecast_names_the_bottleneck() -> None:
    config = Config(hidden=(64,), prior_labels=0, output="lsh", loss="softmax", batch_size=256, activation="linear")
    timed = Calibration({1: made_step(0, 0.02, 0.5), 4: made_step(0.007, 0.002, 0.5), 8: made_step(0, 0, 0)}, 1, (1,))
    for nodes, network, bottleneck in (
        (1, NetworkSpeed(10**6, 1.0), f"compute ({phases.SECOND_PASS})"),
        (4, NetworkSpeed(10**9, 1e-5), f"compute ({phases.PACKING})"),
        (4, NetworkSpeed(10**7, 1e-5), "link bandwidth"),
        (4, NetworkSpeed(10**9, 1e-2), "link latency"),
        (8, NetworkSpeed(10**9, 1e-5), "messages"),
    ):
        found = forecast(config, 1000, plan(config, 1000, 1000, ranks=nodes), timed, network)
        assert found.bottleneck(10**9) == bottleneck
        assert found.bottleneck(10) == "memory"
        assert found.samples_per_second == pytest.approx(256 / found.step.total)
    one = forecast(config, 1000, plan(config, 1000, 1000), timed, network)
    assert one.changed == pytest.approx(0.1)  # 100 of 1000 are active
    assert one.seconds(config, 10) == pytest.approx(10 * 0.02 + 0.5)  # the tables are built once


def test_fewer_bits_are_recommended_where_links_are_slow() -> None:
    config = Config(hidden=(64,), prior_labels=0, output="random", loss="sigmoid", batch_size=256)
    timed = Calibration({1: made_step(0, 0.02, 0.5), 4: made_step(0, 0.005, 0.5)}, 1, (1,))
    for bits, wire in ((10**6, "int8"), (10**10, "bf16"), (None, "bf16")):
        network = NetworkSpeed(bits, 1e-4)
        found, gain = recommended_wire(config, 1000, plan(config, 1000, 1000, ranks=4), timed, network)
        assert found == wire
        assert 1.5 < gain < 2 if wire == "int8" else gain == 1


def test_means_of_trial_rows() -> None:
    rows = TrialRows(*some_data(4, [1, 2, 3, -1]).rows(0, 4))
    assert rows.values_per_row == (1.0, 0.75)
