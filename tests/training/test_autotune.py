"""Autotune: trials decide open options, and nothing else changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.contexts import OPTIONS, ROWS, contexts
from support.mpi_run import run_mpi
from support.run_state import assert_same, state

import dslide
from dslide import Callback, Config, SlideClassifier, TrialInfo
from dslide.cli import main
from dslide.comm import solo
from dslide.data import Dataset, load
from dslide.errors import TERMINATED, ConfigError, DataError, MemoryNeeded, UserError
from dslide.model.defaults import ResolvedConfig, resolve
from dslide.training import autotune as module
from dslide.training.autotune import SPACE, Tuned, autotune, given_options

HOUR = {"autotune": 3600.0}  # more than any test takes: the search ends because nothing is left, or after some trials


@pytest.fixture(scope="module")
def data() -> Dataset:
    return contexts()


@pytest.fixture(scope="module")
def text(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [f"{ROWS} {data.features} {data.labels}"]
    for row in range(ROWS):
        x, y = data.rows(row, row + 1)
        features = " ".join(f"{i}:{v:g}" for i, v in zip(x.indices, x.values, strict=True))
        lines.append(f"{','.join(map(str, y.indices))} {features}")
    path = tmp_path_factory.mktemp("autotune") / "data.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def enough(config: ResolvedConfig) -> None:
    """There is memory for everything."""


def search(data: Dataset, options: dict[str, Any], **more: Any) -> Tuned:
    return autotune(Config(**HOUR | options), options, data, solo(), more.pop("memory", enough), **more)


def words(options: dict[str, Any]) -> list[str]:
    return [w for name, v in options.items() for w in (f"--{name.replace('_', '-')}", str(v).strip("(),"))]


class Trials(Callback):
    """Remembers them."""

    def __init__(self) -> None:
        self.infos: list[TrialInfo] = []

    def on_trial(self, info: TrialInfo) -> None:
        self.infos.append(info)


# ---- decisions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ks", "loss"), [((1, 5), "softmax"), ((1,), "sigmoid")])
def test_the_loss_that_ranks_better_wins(data: Dataset, ks: tuple[int, ...], loss: str) -> None:
    default, tuned = resolve(Config(**OPTIONS), data.labels, data), search(data, OPTIONS, ks=ks)
    assert default.loss == "sigmoid"
    assert tuned.config.loss == loss
    assert tuned.ended == "done"
    assert [trial.options for trial in tuned.trials] == [{}, {"loss": "softmax"}]
    first, second = tuned.trials
    assert (first.best, first.better) == (None, None)
    assert (second.best, second.better) == (first.score, loss == "softmax")
    assert tuned.options == ({} if loss == "sigmoid" else {"loss": "softmax", "validation": 0.25})
    assert tuned.default_score == first.score
    assert tuned.score == (second if loss == "softmax" else first).score


@pytest.mark.parametrize(("chance", "kept"), [(0.05, True), (0.2, False)])
def test_a_difference_that_chance_may_give_changes_nothing(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, chance: float, kept: bool
) -> None:
    monkeypatch.setattr(module, "by_chance", lambda rows: chance)
    tuned = search(data, OPTIONS)
    assert tuned.score is not None
    assert tuned.default_score is not None
    assert 0.05 < tuned.score - tuned.default_score < 0.2
    assert tuned.trials[1].better  # another change would be added to it
    assert tuned.config.loss == ("softmax" if kept else "sigmoid")
    assert bool(tuned.options) == kept


def test_given_options_are_never_changed(data: Dataset) -> None:
    given = {"loss": "sigmoid", "learning_rate": 0.05, "batch_size": 32, "validation": 0.25, "threads": 1}
    tried = {name for trial in search(data, given, most_trials=4).trials for name in trial.options}
    assert tried
    assert not tried & given.keys()
    opened = search(data, given | {"loss": "auto"}, most_trials=2).trials[-1].options
    assert opened == {"loss": "softmax"}  # given, but left open


def test_a_good_change_is_taken_further_at_once(data: Dataset) -> None:
    """Too few epochs: each one more is better."""
    given = OPTIONS | {"loss": "softmax", "learning_rate": 0.002}
    del given["epochs"]
    config = Config(**HOUR | given, patience=50)
    assert resolve(config, data.labels, data).epochs == 8
    tuned = autotune(config, given, data, solo(), enough, most_trials=3)
    assert [trial.options for trial in tuned.trials] == [{}, {"epochs": 10}, {"epochs": 15}]
    assert tuned.config.epochs == 15
    assert tuned.config == resolve(Config(**HOUR | given | tuned.options, patience=50), data.labels, data)


def test_only_what_makes_a_difference_is_tried(data: Dataset) -> None:
    tried = {
        name for trial in search(data, OPTIONS | {"loss": "sigmoid", "hidden": (-1,)}).trials for name in trial.options
    }
    assert tried == {"hidden"}  # there is no label prior, and all outputs are active


def test_items_of_users_have_other_options(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{user} " + " ".join(map(str, rng.choice(50, 5, replace=False))) for user in range(300)]
    (tmp_path / "users.txt").write_text("\n".join(lines) + "\n")
    users = load(tmp_path / "users.txt", format="interactions")
    given = {"epochs": 1, "loss": "softmax", "hidden": (8,), "validation": 0.3, "threads": 1}
    tuned = search(users, given, most_trials=5)
    assert tuned.metric == "ndcg_at_20"
    assert [list(trial.options)[-1:] for trial in tuned.trials[:2]] == [[], ["prior_boost"]]  # the prior is not trained
    tried = {name for trial in tuned.trials for name in trial.options}
    assert not tried & {"prior_learning_rate", "prior_hits", "linear_negatives", "random_negatives"}


def test_networks_of_trials_are_freed(data: Dataset) -> None:
    class Networks(Callback):
        def __init__(self) -> None:
            self.found: list[weakref.ref[Any]] = []
            self.alive: list[int] = []  # at the start of each trial, its own included

        def on_start(self, trainer: Any, total_steps: int) -> None:
            self.found.append(weakref.ref(trainer.network))
            self.alive.append(sum(found() is not None for found in self.found))

        def on_step(self, trainer: Any, info: Any) -> None:
            if len(self.found) == 3:
                os.kill(os.getpid(), signal.SIGINT)

    networks = Networks()
    given = {name: value for name, value in OPTIONS.items() if name != "hidden"}
    assert search(data, given, trial_callbacks=[networks]).ended == "interrupted"
    assert networks.alive == [1, 1, 1]
    assert [found() for found in networks.found] == [None] * 3


def test_options_beyond_memory_are_not_tried(data: Dataset) -> None:
    def memory(config: ResolvedConfig) -> None:
        if config.hidden > most:
            raise MemoryNeeded("not here")

    given, most = OPTIONS | {"loss": "sigmoid", "hidden": (-1,)}, (256,)
    assert [trial.options for trial in search(data, given, memory=memory).trials] == [{}, {"hidden": (128,)}]
    most = (128,)
    with pytest.raises(MemoryNeeded, match="not here"):  # the defaults themselves
        search(data, given, memory=memory)


def test_a_diverging_change_loses(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPACE", {"learning_rate": (0.05, 1000.0)})
    given = {name: v for name, v in OPTIONS.items() if name != "learning_rate"} | {
        "optimizer": "sgd",
        "hidden": (16, 16),
    }
    tuned = search(data, given)
    assert tuned.trials[1].score == -1
    assert tuned.options == {}


def test_large_data_is_sampled_first(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 600)
    options = OPTIONS | {"epochs": 20, "patience": 20}
    better, worse = (search(data, options, ks=ks) for ks in ((5,), (1,)))
    changed = {"loss": "softmax"}
    assert [(trial.rows, trial.options) for trial in better.trials] == [
        (150, {}),
        (150, changed),
        (600, {}),
        (600, changed),
    ]
    assert [trial.better for trial in better.trials] == [None, True, None, True]
    assert better.config.loss == "softmax"
    assert [(trial.rows, trial.options) for trial in worse.trials] == [(150, {}), (150, changed)]
    assert worse.default_score is None  # all rows were not needed


def test_defaults_of_a_config_count_as_not_given() -> None:
    tuned, plain = Config(autotune=60, batch_size=64, seed=0), Config(batch_size=64)
    assert given_options(plain) == plain.to_dict()
    given = given_options(tuned)
    assert given["batch_size"] == 64
    assert given["seed"] == 0
    assert not given.keys() & (SPACE.keys() - {"batch_size"})


# ---- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dslide.RunResult]:
    folder = tmp_path_factory.mktemp("tuned") / "run"
    return folder, dslide.train(data, OPTIONS | HOUR, out=folder)


def test_without_a_budget_nothing_is_tried(data: Dataset, tmp_path: Path) -> None:
    trials = Trials()
    dslide.train(data, OPTIONS, out=tmp_path / "plain")
    result = dslide.train(data, OPTIONS | {"autotune": 0}, out=tmp_path / "zero", callbacks=[trials])
    assert trials.infos == []
    assert result.summary["autotune"] is None
    assert_same(state(tmp_path / "plain"), state(tmp_path / "zero"))


def test_the_run_says_what_was_tried(run: tuple[Path, dslide.RunResult]) -> None:
    folder, result = run
    assert result.summary["config"]["loss"] == "softmax"
    found = result.summary["autotune"]
    assert found["options"] == {"loss": "softmax", "validation": 0.25}
    assert found["ended"] == "done"
    assert found["held_out"] == ROWS // 4
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert records[0]["record"] == "start"
    logged = [record for record in records if record["record"] == "trial"]
    assert [record["options"] for record in logged] == [{}, {"loss": "softmax"}]
    assert [record["score"] for record in logged] == [trial["score"] for trial in found["trials"]]
    assert main(["report", str(folder), "--out", str(folder / "page.html")]) == 0


def test_the_printed_options_train_the_same_network(
    text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train = ["train", str(text), *words(OPTIONS)]
    assert main([*train, "--out", str(tmp_path / "tuned"), "--autotune", "3600"]) == 0
    out, err = capfd.readouterr()
    assert "trial 2: loss softmax: trained on 600 rows in " in err
    assert "autotune: 2 trials in " in out
    again = out.partition("the same training without autotune: ")[2].splitlines()[0]
    assert again == "--loss softmax --validation 0.25"
    assert main([*train, "--out", str(tmp_path / "again"), *again.split()]) == 0
    assert_same(state(tmp_path / "tuned"), state(tmp_path / "again"))


def test_a_budget_for_no_trial_keeps_the_defaults(
    text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train = ["train", str(text), *words(OPTIONS)]
    assert main([*train, "--out", str(tmp_path / "short"), "--autotune", "1e-6"]) == 0
    out = capfd.readouterr().out
    assert "autotune: 0 trials in " in out
    assert ", the time is over; nothing could be compared: the defaults are kept\n" in out
    assert main([*train, "--out", str(tmp_path / "plain")]) == 0
    assert_same(state(tmp_path / "short"), state(tmp_path / "plain"))


def test_bad_test_data_is_refused_before_any_trial(data: Dataset, tmp_path: Path) -> None:
    trials = Trials()
    with pytest.raises(DataError, match=r"nothing\.txt"):
        dslide.train(data, OPTIONS | HOUR, test=tmp_path / "nothing.txt", out=tmp_path / "run", callbacks=[trials])
    assert trials.infos == []


def test_a_folder_that_another_run_takes_meanwhile_is_not_written_to(data: Dataset, tmp_path: Path) -> None:
    class Other(Callback):
        def on_trial(self, info: TrialInfo) -> None:
            (tmp_path / "run").mkdir(exist_ok=True)

    with pytest.raises(UserError, match=r"run: exists already"):
        dslide.train(data, OPTIONS | HOUR, out=tmp_path / "run", callbacks=[Other()])


def test_a_resumed_run_keeps_what_was_decided(
    data: Dataset, run: tuple[Path, dslide.RunResult], tmp_path: Path
) -> None:
    class Stop(Trials):
        def on_step(self, trainer: Any, info: Any) -> None:
            if info.step == 30:
                raise KeyboardInterrupt

    stopped, resumed = Stop(), Trials()
    assert dslide.train(data, OPTIONS | HOUR, out=tmp_path / "run", callbacks=[stopped]).interrupted
    assert len(stopped.infos) == 2
    with pytest.raises(ConfigError, match=r"autotune: the run was begun with 3600\.0, and on resuming only epochs, "):
        dslide.resume(tmp_path / "run", data, autotune=5)
    again = dslide.train(data, OPTIONS | HOUR, out=tmp_path / "run", resume_existing=True, callbacks=[resumed])
    assert resumed.infos == []
    assert [trial["options"] for trial in again.summary["autotune"]["trials"]] == [{}, {"loss": "softmax"}]
    assert again.summary["config"]["loss"] == "softmax"
    assert_same(state(tmp_path / "run"), state(run[0]))


# ---- interruptions --------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_the_trials_and_the_best_so_far_is_trained(data: Dataset, tmp_path: Path) -> None:
    class Interrupt(Trials):
        def on_trial(self, info: TrialInfo) -> None:
            super().on_trial(info)
            if info.better:
                os.kill(os.getpid(), signal.SIGINT)

    given = {name: value for name, value in OPTIONS.items() if name != "hidden"}
    result = dslide.train(data, given | HOUR, out=tmp_path / "run", callbacks=[Interrupt()])
    assert not result.interrupted
    assert result.summary["autotune"]["ended"] == "interrupted"
    assert len(result.summary["autotune"]["trials"]) == 2
    assert result.summary["config"]["loss"] == "softmax"


def test_ctrl_c_within_a_trial_ends_it(data: Dataset) -> None:
    class Interrupt(Callback):
        steps = 0

        def on_step(self, trainer: Any, info: Any) -> None:
            self.steps += 1
            if self.steps == 5:
                os.kill(os.getpid(), signal.SIGINT)

    interrupt = Interrupt()
    tuned = search(data, OPTIONS, trial_callbacks=[interrupt])
    assert tuned.ended == "interrupted"
    assert tuned.trials == []
    assert interrupt.steps == 6
    assert tuned.options == {}


@pytest.mark.waiting
def test_a_trial_ends_when_the_time_is_over(data: Dataset) -> None:
    class Slow(Callback):
        steps = 0

        def on_step(self, trainer: Any, info: Any) -> None:
            self.steps += 1
            if self.steps == 5:
                time.sleep(3)

    slow = Slow()
    tuned = search(data, OPTIONS | {"autotune": 3.0}, trial_callbacks=[slow])
    assert (tuned.ended, tuned.trials, slow.steps) == ("time", [], 6)


@pytest.mark.waiting
def test_sigterm_ends_the_program(text: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dslide.cli", "train", str(text), "--out", str(tmp_path / "run"), "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--validation", "0.25", "--autotune", "3600"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("trial 1: defaults: ")
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == TERMINATED
    assert "dslide: error: this process received SIGTERM after " in err
    assert err.endswith("of autotune; nothing is saved\n")
    assert not (tmp_path / "run").exists()


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_what_autotune_is_not_for_is_refused(data: Dataset, tmp_path: Path) -> None:
    for options, message in (
        ({"validation": 0}, "compares networks on held-out rows, and of these none are held out"),
        (OPTIONS | {"loss": "softmax"}, "there is nothing to try, since all options that it could change are given"),
    ):
        with pytest.raises(ConfigError, match=f"^autotune: {message}"):
            dslide.train(data, options, autotune=5, out=tmp_path / "run")
    (tmp_path / "words.txt").write_text("one two three four five six " * 50)
    with pytest.raises(
        ConfigError, match=r"^autotune: compares networks on held-out rows, and of a stream of words none"
    ):
        dslide.train(tmp_path / "words.txt", format="tokens", autotune=5, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- ranks ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
from support.contexts import OPTIONS, contexts
from dslide import Config
from dslide.comm import job
from dslide.training.autotune import autotune

given = {name: value for name, value in OPTIONS.items() if name not in ("hidden", "epochs")} | {"wire": "float32"}
comm = job()
tuned = autotune(Config(autotune=3600, **given), given, contexts(), comm, lambda config: None, most_trials=5)
tried = [[trial.options, round(trial.score, 2), trial.better] for trial in tuned.trials]
every = comm.gather_objects("decisions", [tried, tuned.options])
if comm.rank == 0:
    print(json.dumps(every))
"""


def test_ranks_decide_as_one() -> None:
    one, three = (run_mpi(size, PROGRAM) for size in (1, 3))
    assert (one.code, three.code) == (0, 0), one.stderr + three.stderr
    (alone,) = json.loads(one.stdout)
    assert len(alone[0]) == 5
    assert alone[1]["loss"] == "softmax"
    assert json.loads(three.stdout) == [alone] * 3


# ---- the estimator --------------------------------------------------------------------------------------------------


def test_the_estimator_decides_as_a_run(
    data: Dataset, run: tuple[Path, dslide.RunResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    y, trials = data.y.to_scipy(), Trials()
    model = SlideClassifier(**OPTIONS, **HOUR, verbose=True).fit(data.x, y, callbacks=[trials])
    assert [trial.options for trial in trials.infos] == [{}, {"loss": "softmax"}]
    assert "trial 2: loss softmax: " in capsys.readouterr().err
    assert model.loss == "auto"
    assert model.network_.config.loss == "softmax"
    assert_same({name: np.array(array) for name, array in model.network_.state().items()}, state(run[0]))
    again = SlideClassifier(**OPTIONS, **HOUR).fit(data.x, y, out=tmp_path / "run")
    assert again.network_.config == model.network_.config


def test_what_was_decided_stays_when_training_goes_on(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPACE", {"batch_size": (32, 256)})
    given = {name: value for name, value in OPTIONS.items() if name != "batch_size"} | {"loss": "softmax", "epochs": 4}
    y = data.y.to_scipy()
    model = SlideClassifier(**given, **HOUR).fit(data.x, y, out=tmp_path / "run")
    assert (model.batch_size, model.network_.config.batch_size) == (0, 32)
    resumed = SlideClassifier(**given | {"epochs": 5}, **HOUR).fit(data.x, y, out=tmp_path / "run")
    assert resumed.n_iter_ == 5
    assert resumed.network_.config.batch_size == 32
    assert resumed.partial_fit(data.x, y).trainer_.config.batch_size == 32
    assert resumed.set_params(batch_size=64).partial_fit(data.x, y).trainer_.config.batch_size == 64
