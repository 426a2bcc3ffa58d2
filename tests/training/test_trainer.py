"""The training loop: schedules, batches, interruption and resuming, changed options, the same seed, divergence."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.inprocess import Fault, Injection, rank_outcomes, run_ranks
from support.plain import PLAIN

from dslide import _core
from dslide.config import Config
from dslide.data import Dataset, SparseRows
from dslide.errors import CommError, ConfigError, DataError, Diverged
from dslide.model.network import Network
from dslide.training.callbacks import Callback
from dslide.training.profiler import Profile
from dslide.training.schedules import RebuildSchedule, learning_rate
from dslide.training.trainer import Trainer
from dslide.util.threads import Speeds

FEATURES, LABELS = 25, 60
MODES = {
    "full": {"output": "full"},
    "lsh-shared": {"output": "lsh", "hash_hits": 3, "random_negatives": 10},
    "cells": {"output": "cells", "hash_hits": 3, "random_negatives": 10, "rebuild_every": 3},
    "lsh-row": {"output": "lsh", "active_sets": "row", "hash_hits": 5, "random_negatives": 10},
    "vanilla-fifo": {
        "output": "lsh",
        "active_sets": "row",
        "probe": "vanilla",
        "bucket_policy": "fifo",
        "bucket_size": 8,
    },
    "random": {"output": "random", "random_negatives": 15},
    "hidden-sampled": {"output": "lsh", "hidden_share": (0.5,), "hash_hits": 3, "random_negatives": 10},
    "dropout": {"output": "full", "dropout_input": 0.2, "dropout_hidden": 0.3},
    "sigmoid": {"output": "lsh", "loss": "sigmoid", "hash_hits": 3, "random_negatives": 10},
}


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def make_data(rows=100, seed=0, labels=LABELS):
    """Random features; the labels are functions of them, every fifth row has none."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, FEATURES)) * (rng.random((rows, FEATURES)) < 0.4)
    y = np.zeros((rows, labels))
    y[np.arange(rows), np.abs(x).argmax(axis=1) * 7 % labels] = 1.0
    y[np.arange(rows), x.argmin(axis=1) * 3 % labels] = 2.0
    y[::5] = 0
    return Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(y), source="data")


def make_config(**options):
    return Config(**PLAIN | {"hidden": (16,), "epochs": 3, "batch_size": 16, "learning_rate": 0.02, "rebuild_every": 3,
                     "threads": 2} | options)  # fmt: skip


def state_of(trainer):
    return {name: array.copy() for name, array in trainer.network.state().items()}


def assert_same_bits(got, wanted):
    for name in wanted:
        assert_array_equal(got[name], wanted[name], err_msg=name)


# ---- schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "warmup", "rates"),
    [
        ("trapezoid", 0.0, [1, 1, 1, 0.9375, 0.75, 0.5625, 0.375, 0.1875]),
        ("constant", 0.0, [1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", 0.0, [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ("constant", 0.25, [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1]),
        ("linear", 0.25, [1 / 3, 2 / 3, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ("cosine", 0.0, [(1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)]),
        ("cosine", 0.5, [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
        ("linear", 1.0, [i / 9 for i in range(1, 9)]),
    ],
)
def test_learning_rates_worked_out_by_hand(schedule, warmup, rates):
    config = Config(learning_rate=2.0, schedule=schedule, warmup=warmup)
    assert [learning_rate(config, step, 8) for step in range(8)] == pytest.approx([2 * r for r in rates])


def test_learning_rate_past_the_end_and_without_one():
    config = Config(learning_rate=2.0, schedule="linear")
    assert learning_rate(config, 9, 8) == 0.0
    assert learning_rate(config, 1000, 0) == 2.0


def test_rebuilds_worked_out_by_hand():
    def rebuilds(every, growth, steps):
        schedule = RebuildSchedule(every, growth)
        found = [step for step in range(steps) if schedule.due(step)]
        assert list(RebuildSchedule(every, growth).before(steps)) == found
        return found

    assert rebuilds(50, 1.0, 260) == [50, 100, 150, 200, 250]
    assert rebuilds(10, 2.0, 200) == [10, 30, 70, 150]
    assert rebuilds(3, 1.5, 40) == [3, 8, 15, 26]  # 3, 3 + 4.5, 8 + 6.75, 15 + 10.125, 26 + 15.2
    assert rebuilds(1, 1.0, 4) == [1, 2, 3]


@pytest.mark.parametrize(("every", "growth"), [(3, 1.5), (7, 1.0), (10, 1.3)])
def test_skipping_leaves_out_just_the_rebuilds_that_were_done(every, growth):
    whole = RebuildSchedule(every, growth)
    expected = [step for step in range(200) if whole.due(step)]
    for stop in range(1, 100):
        rest = RebuildSchedule(every, growth)
        rest.skip_to(stop)
        assert [step for step in range(stop, 200) if rest.due(step)] == [s for s in expected if s >= stop]


# ---- batches --------------------------------------------------------------------------------------------------------


class Watch(Callback):
    """Keeps what it hears; raises KeyboardInterrupt when step `stop` is done."""

    def __init__(self, stop=None):
        self.stop, self.steps, self.epochs, self.total, self.result = stop, [], [], None, None

    def on_start(self, trainer, total_steps):
        self.total = total_steps

    def on_step(self, trainer, info):
        self.steps.append(info)
        if info.step == self.stop:
            raise KeyboardInterrupt

    def on_epoch(self, trainer, info):
        self.epochs.append(info)

    def on_end(self, trainer, result):
        self.result = result


@pytest.mark.parametrize("batch_size", [1, 16, 80, 1000])
def test_an_epoch_takes_every_row_once_in_an_order_of_its_own(monkeypatch, batch_size):
    batches, take = [], Dataset.batch
    monkeypatch.setattr(Dataset, "batch", lambda self, rows: batches.append(rows.tolist()) or take(self, rows))
    Trainer(make_config(batch_size=batch_size, epochs=2, output="full"), FEATURES, LABELS).fit(make_data())
    rows = np.flatnonzero(np.arange(100) % 5).tolist()  # those with labels
    per_epoch = math.ceil(len(rows) / batch_size)
    assert len(batches) == 2 * per_epoch
    orders = []
    for epoch in (batches[:per_epoch], batches[per_epoch:]):
        assert all(len(batch) == batch_size for batch in epoch[:-1])
        orders.append([row for batch in epoch for row in batch])
        assert sorted(orders[-1]) == rows
    assert orders[0] != orders[1]


@pytest.mark.parametrize(("loss", "rows"), [("softmax", 80), ("sigmoid", 100)])
def test_rows_without_labels_teach_sigmoid_only(loss, rows):
    watch = Watch()
    result = Trainer(make_config(loss=loss, schedule="linear"), FEATURES, LABELS, callbacks=[watch]).fit(make_data())
    per_epoch = math.ceil(rows / 16)
    assert result.samples == 3 * rows
    assert watch.total == result.steps == len(watch.steps) == 3 * per_epoch
    assert [info.step for info in watch.steps] == list(range(1, 3 * per_epoch + 1))
    assert sum(info.rows for info in watch.steps[:per_epoch]) == rows
    assert [info.epoch for info in watch.epochs] == [1, 2, 3]
    first = watch.steps[:per_epoch]
    assert watch.epochs[0].loss == pytest.approx(sum(i.loss * i.rows for i in first) / rows)
    assert result.loss == watch.epochs[-1].loss < watch.epochs[0].loss
    assert [i.learning_rate for i in first[:2]] == pytest.approx([0.02, 0.02 * (1 - 1 / watch.total)])
    assert not result.interrupted
    assert watch.result == result


def test_what_callbacks_do_between_epochs_is_no_training(monkeypatch):
    """Neither its time nor its traffic counts, in the result and in the profile."""
    real, added = time.perf_counter, Counter()  # ranks are threads, each with a clock of its own
    monkeypatch.setattr("time.perf_counter", lambda: real() + added[threading.get_ident()])

    class Tests(Callback):
        def on_epoch(self, trainer, info):
            trainer.comm.gather_objects("much", "x" * 100_000)
            added[threading.get_ident()] += 1000

    def train(comm, callbacks):
        profile = Profile(Speeds(1.0, 1.0))
        config = make_config(threads=1, micro_batches=1)
        result = Trainer(config, FEATURES, LABELS, comm=comm, callbacks=callbacks, profile=profile).fit(make_data())
        return result.seconds, profile.seconds, result.load_balance["bytes_sent_per_step"]

    plain = run_ranks(2, lambda comm: train(comm, []))
    tested = run_ranks(2, lambda comm: train(comm, [Tests()]))
    assert list(added.values()) == [3000, 3000]
    assert all(seconds < 1000 and profiled < 1000 for seconds, profiled, _ in tested)
    assert [traffic for _, _, traffic in tested] == [traffic for _, _, traffic in plain]


def test_data_that_does_not_fit_is_refused():
    data = make_data()
    with pytest.raises(DataError, match=f"data: the data has {FEATURES} features but the network was made for 24"):
        Trainer(make_config(), FEATURES - 1, LABELS).fit(data)
    with pytest.raises(DataError, match="labels but the network was made for 59"):
        Trainer(make_config(), FEATURES, LABELS - 1).fit(data)
    nothing = Dataset(data.x, SparseRows.from_scipy(np.zeros((100, LABELS))), source="data")
    with pytest.raises(DataError, match="no row with a label"):
        Trainer(make_config(), FEATURES, LABELS).fit(nothing)


# ---- seeds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_bits(mode, threads):
    config = make_config(threads=threads, **MODES[mode])
    states = []
    for _ in range(2):
        trainer = Trainer(config, FEATURES, LABELS)
        trainer.fit(make_data())
        states.append(state_of(trainer))
    assert_same_bits(*states)
    other = Trainer(config.replace(seed=1), FEATURES, LABELS)
    other.fit(make_data())
    assert np.abs(state_of(other)["layer1.weights"] - states[0]["layer1.weights"]).max() > 1e-3


# ---- interruption ---------------------------------------------------------------------------------------------------


def resume(config, trainer, data):
    """A new trainer that continues where the other one stands."""
    after = Trainer(config, FEATURES, LABELS)
    after.network.load_state(state_of(trainer))
    after.load_progress(dict(trainer.progress()))
    after.fit(data)
    return after


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 10, 14, 15])  # 5 and 10 end an epoch, 15 ends the run
@pytest.mark.parametrize("mode", ["full", "random", "dropout"])
def test_resuming_after_an_interruption_changes_nothing(mode, stop):
    data, config = make_data(), make_config(**MODES[mode])
    whole = Trainer(config, FEATURES, LABELS)
    whole.fit(data)
    broken = Trainer(config, FEATURES, LABELS, callbacks=[Watch(stop)])
    result = broken.fit(data)
    assert result.interrupted
    assert (result.steps, broken.step) == (stop, stop)
    after = resume(config, broken, data)
    assert (after.step, after.epoch, after.samples) == (15, 3, 240)
    assert_same_bits(state_of(after), state_of(whole))


def test_continuing_in_the_same_trainer_changes_nothing_even_with_hash_tables():
    data, config = make_data(), make_config(**MODES["lsh-shared"])
    whole, broken = (Trainer(config, FEATURES, LABELS, callbacks=[w]) for w in (Watch(), Watch(7)))
    whole.fit(data)
    assert broken.fit(data).interrupted
    assert not broken.fit(data).interrupted
    assert_same_bits(state_of(broken), state_of(whole))


@pytest.mark.parametrize("stop", [16, 19])  # where a rebuild is due, and between two
def test_resuming_from_a_saved_state_with_hash_tables(stop):
    """Hash tables are part of the state."""
    data, config = make_data(300), make_config(rebuild_every=8, rebuild_growth=1.0, epochs=6, **MODES["lsh-shared"])
    whole, broken = (Trainer(config, FEATURES, LABELS, callbacks=[w]) for w in (Watch(), Watch(stop)))
    whole.fit(data)
    assert broken.fit(data).interrupted
    assert_same_bits(state_of(resume(config, broken, data)), state_of(whole))


def test_the_epoch_that_was_already_over_has_no_loss():
    config, watch = make_config(output="full"), Watch(5)
    trainer = Trainer(config, FEATURES, LABELS, callbacks=[watch])
    trainer.fit(make_data())
    trainer.fit(make_data())
    assert [info.epoch for info in watch.epochs] == [1, 2, 3]
    assert math.isnan(watch.epochs[0].loss)
    assert watch.epochs[1].loss > watch.epochs[2].loss > 0


class PressesCtrlC(Network):
    """Interrupts itself in the middle of step 7: the output's weights were stepped, the hidden layer's were not."""

    times = 1

    def __init__(self, *arguments):
        super().__init__(*arguments)
        learn = self.loss.learn

        def interrupted(*arguments):
            result = learn(*arguments)
            if self.output.arrays["bias_clock"].max() == 7:
                for _ in range(self.times):
                    signal.raise_signal(signal.SIGINT)
            return result

        self.loss.learn = interrupted


def test_ctrl_c_in_the_middle_of_a_step_waits_for_its_end():
    data, config = make_data(), make_config(output="full")
    whole = Trainer(config, FEATURES, LABELS)
    whole.fit(data)
    broken = Trainer(config, FEATURES, LABELS)
    broken.network = PressesCtrlC(config, FEATURES, LABELS)
    result = broken.fit(data)
    assert result.interrupted
    assert broken.step == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # as it was
    assert_same_bits(state_of(resume(config, broken, data)), state_of(whole))


def test_a_second_ctrl_c_breaks_off():
    trainer = Trainer(make_config(output="full"), FEATURES, LABELS)
    trainer.network = PressesCtrlC(trainer.config, FEATURES, LABELS)
    trainer.network.times = 2
    assert trainer.fit(make_data()).interrupted
    assert trainer.step == 6


def test_state_that_does_not_fit_is_refused():
    trainer, other = (Trainer(make_config(hidden=(n,)), FEATURES, LABELS) for n in (16, 32))
    with pytest.raises(Exception, match=r"array layer0.weights is float32\[25, 32\], expected float32\[25, 16\]"):
        trainer.network.load_state(other.network.state())


# ---- changed options ------------------------------------------------------------------------------------------------


def test_a_changed_wire_format_changes_the_bytes_that_are_sent():
    data = make_data()

    def work(comm):
        config = make_config(wire="float32", output="full", activation="linear", threads=1)
        trainer = Trainer(config, FEATURES, LABELS, comm=comm)
        sent = []
        for wire in ("float32", "bf16", "int8", "float32"):
            trainer.reconfigure(trainer.config.replace(wire=wire))
            before = comm.bytes_sent
            trainer.fit_pass(data)
            sent.append(comm.bytes_sent - before)
        return sent

    for float32, bf16, int8, again in run_ranks(2, work):
        assert int8 < bf16 < float32 == again
        # in 5 steps of 16 rows 8 units are gathered and 8 summed, of 4, 2 and about 1 bytes
        assert float32 - bf16 == 5 * 16 * 16 * 2
        assert float32 - int8 > 5 * 16 * 16 * 2


def test_a_changed_watchdog_changes_how_long_silence_is_tolerated():
    data = make_data()

    def work(comm):
        config = make_config(output="full", threads=1, micro_batches=1)
        trainer = Trainer(config, FEATURES, LABELS, comm=comm)
        trainer.reconfigure(config.replace(watchdog=0.5))
        begin = time.monotonic()
        try:
            trainer.fit_pass(data)
        except CommError as error:
            return str(error), time.monotonic() - begin
        return None

    outcomes = rank_outcomes(2, work, limit=60.0, injections=[Injection(Fault.SILENT, rank=1, piece=12)])
    message, seconds = outcomes[0]
    assert "rank 1 silent for 0.5 s; given up" in message
    assert 0.4 < seconds < 20


def test_other_changed_options_count_from_the_next_step_on():
    trainer = Trainer(make_config(output="full", threads=1), FEATURES, LABELS)
    data = make_data()
    trainer.fit_pass(data)
    assert trainer.step == 5
    trainer.reconfigure(trainer.config.replace(batch_size=40, learning_rate=0.0, threads=2))
    before = state_of(trainer)["layer0.weights"]
    trainer.fit_pass(data)
    assert trainer.step == 5 + 2  # of 80 rows with labels
    assert trainer.rate == 0
    assert_array_equal(state_of(trainer)["layer0.weights"], before)
    assert _core.threads() == 2


def test_ranks_that_change_different_options_are_refused():
    def work(comm):
        trainer = Trainer(make_config(threads=1), FEATURES, LABELS, comm=comm)
        trainer.reconfigure(trainer.config.replace(wire="int8" if comm.rank else "bf16"))

    with pytest.raises(ConfigError, match="ranks don't agree on wire: rank 0 has 'bf16', rank 1 has 'int8'"):
        run_ranks(2, work)


# ---- divergence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hidden", [(16,), (16, 16, 16)])
def test_divergence_is_named_and_leaves_finite_weights(mode, hidden):
    shares = {"hidden_share": (0.5,) * len(hidden)} if "hidden_share" in MODES[mode] else {}
    config = make_config(optimizer="sgd", learning_rate=1000.0, schedule="constant", hidden=hidden, epochs=200,
                         activation="linear", init_scale=100.0, **(MODES[mode] | shares))  # fmt: skip
    trainer = Trainer(config, FEATURES, LABELS)
    with pytest.raises(Diverged, match=r"layer\d \(\d+ x \d+\) .* at step \d+ with learning rate 1000"):
        trainer.fit(make_data())
    for name, array in trainer.network.state().items():
        assert np.isfinite(array).all(), name


def test_divergence_in_the_output_leaves_its_weights_alone():
    config = make_config(output="full", optimizer="sgd", activation="linear")
    trainer = Trainer(config, FEATURES, LABELS)
    trainer.network.layers[0].arrays["weights"][:, :16] = 3e38
    before = state_of(trainer)
    with pytest.raises(Diverged, match=f"layer1 \\(16 x {LABELS}\\) .* at step 1"):
        trainer.fit(make_data())
    assert_allclose(state_of(trainer)["layer1.weights"], before["layer1.weights"])
