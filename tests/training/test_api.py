"""dslide.train, resume and evaluate: they do what the command line does, and print nothing."""

from __future__ import annotations

import dataclasses
import inspect
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inprocess import run_ranks

import dslide
from dslide import Callback, Config, RunInfo, RunResult, UserError, load_model
from dslide.cli import main
from dslide.data import TokenOptions, load_tokens
from dslide.errors import ConfigError, DataError, ModelError

OPTIONS: dict[str, Any] = {"hidden": (16,), "batch_size": 32, "threads": 1, "epochs": 2, "schedule": "constant"}
WORDS = ["--hidden", "16", "--batch-size", "32", "--threads", "1", "--epochs", "2", "--schedule", "constant"]
TIMES = ("seconds", "second", "rss_bytes", "overlap", "imbalance_compute", "per_rank")  # differ from run to run


@pytest.fixture(scope="module")
def s(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic train.txt and test.txt, and `run`, what the command line makes of them."""
    folder = tmp_path_factory.mktemp("api")
    size = ["--rows", "600", "--test-rows", "80", "--features", "300", "--labels", "20"]
    assert main(["synth", str(folder / "s"), *size]) == 0
    data = [str(folder / "s/train.txt"), "--test", str(folder / "s/test.txt")]
    assert main(["train", *data, "--out", str(folder / "s/run"), "--quiet", *WORDS]) == 0
    return folder / "s"


def summary(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return content


def without_times(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.endswith(TIMES)}


def kinds(run: Path) -> list[str]:
    """Kinds of records in the log; how many steps have one depends on the time they took."""
    found = [json.loads(line)["record"] for line in (run / "log.jsonl").read_text().splitlines()]
    return [kind for kind in found if kind not in ("step", "tables")]


def assert_same_network(one: Path, other: Path) -> None:
    a, b = (load_model(folder, optimizer=True) for folder in (one, other))
    assert set(a.state) == set(b.state)
    for name in a.state:
        np.testing.assert_array_equal(a.state[name], b.state[name], err_msg=name)
    assert a.progress == b.progress


class Stop(Callback):
    """Presses Ctrl-C after some steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer: Any, info: Any) -> None:
        if info.step == self.step:
            raise KeyboardInterrupt


# ---- train ----------------------------------------------------------------------------------------------------------


def test_train_does_what_the_command_does_and_prints_nothing(
    s: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = dslide.train(s / "train.txt", Config(**OPTIONS), out=tmp_path / "run", test=s / "test.txt")
    assert capfd.readouterr() == ("", "")
    assert isinstance(result, RunResult)
    assert (result.folder, result.interrupted, result.profile) == (tmp_path / "run", False, None)
    assert result.summary == summary(tmp_path / "run")
    assert without_times(result.summary) == without_times(summary(s / "run"))
    assert {path.name for path in result.folder.iterdir()} == {path.name for path in (s / "run").iterdir()}
    assert kinds(result.folder) == kinds(s / "run")
    assert_same_network(result.folder, s / "run")
    assert result.metrics["p_at_1"] == summary(s / "run")["p_at_1"] > 0.2
    x = dslide.load(s / "test.txt").x
    found, _ = result.network.predict_topk(x, 3)
    assert np.array_equal(found, dslide.open_model(result.folder).network.predict_topk(x, 3)[0])


def test_options_in_every_form(s: Path, tmp_path: Path) -> None:
    for number, (config, options) in enumerate(((OPTIONS, {}), (None, OPTIONS), (Config(hidden=4), OPTIONS))):
        dslide.train(s / "train.txt", config, out=tmp_path / str(number), **options)
        assert_same_network(tmp_path / str(number), s / "run")


def test_data_that_is_loaded_already(s: Path, tmp_path: Path) -> None:
    train, test = dslide.load(s / "train.txt"), dslide.load(s / "test.txt")
    result = dslide.train(train, out=tmp_path / "run", test=test, **OPTIONS)
    assert without_times(result.summary) == without_times(summary(s / "run"))
    assert_same_network(result.folder, s / "run")
    with pytest.raises(ConfigError, match="base: is for reading files, but the data is loaded already"):
        dslide.train(train, out=tmp_path / "other", base=1)
    wide = dataclasses.replace(test, x=dataclasses.replace(test.x, columns=301))
    with pytest.raises(DataError, match=r"test.txt: has 301 features, but the model was trained with 300"):
        dslide.train(train, out=tmp_path / "other", test=wide)
    assert not (tmp_path / "other").exists()


def test_the_next_free_folder_is_named_after_the_data(s: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = dslide.load(s / "train.txt")
    assert dslide.train(s / "train.txt", epochs=1, hidden=4).folder == Path("runs/train-1")
    assert dslide.train(data, epochs=1, hidden=4).folder == Path("runs/train-2")
    assert summary(tmp_path / "runs/train-2")["epochs"] == 1


def test_evaluation_during_the_run_on_rows_held_out(s: Path, tmp_path: Path) -> None:
    options = ["--hold-out", "0.25", "--test-every", "1", "--test-rows", "50", "--k", "1,2"]
    assert main(["train", str(s / "train.txt"), "--out", str(tmp_path / "cli"), "--quiet", *options, *WORDS]) == 0
    result = dslide.train(
        s / "train.txt", out=tmp_path / "api", hold_out=0.25, test_every=1, test_rows=50, k=(2, 1), **OPTIONS
    )
    assert without_times(result.summary) == without_times(summary(tmp_path / "cli"))
    assert kinds(tmp_path / "api") == kinds(tmp_path / "cli")
    assert result.ks == (1, 2)
    assert result.metrics["rows"] == 150


def test_progress_and_callbacks(s: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Watch(Callback):
        infos: list[RunInfo] = []  # noqa: RUF012

        def on_run(self, info: RunInfo) -> None:
            assert not info.folder.exists()  # nothing is made yet
            self.infos.append(info)

    dslide.train(s / "train.txt", out=tmp_path / "run", callbacks=[Watch()], progress=True, **OPTIONS)
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    (info,) = Watch.infos
    assert (info.folder, len(info.data), info.test, info.resumed_from) == (tmp_path / "run", 600, None, None)
    assert info.plan[0].startswith("plan: ")


def test_a_profile(s: Path, tmp_path: Path) -> None:
    result = dslide.train(s / "train.txt", out=tmp_path / "run", profile=True, tensorboard=True, **OPTIONS)
    assert result.profile is not None
    assert result.profile.steps == result.summary["steps"]
    assert json.loads((tmp_path / "run/profile.json").read_text())["steps"] == result.profile.steps
    assert len(list((tmp_path / "run/tensorboard").iterdir())) == 1
    assert_same_network(tmp_path / "run", s / "run")


def test_streams_of_words_and_texts(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("the cat sat on the mat and the dog on the cat\n" * 20)
    options = OPTIONS | {"format": "tokens", "window": 2, "subsample": 0}
    result = dslide.train(tmp_path / "words.txt", out=tmp_path / "words", **options)
    assert load_model(result.folder).tokens == {"window": 2, "min_count": 2, "subsample": 0}
    with pytest.raises(ConfigError, match="window: the run was begun with 2, which can't change"):
        dslide.resume(tmp_path / "words", tmp_path / "words.txt", epochs=3, window=3)
    data = load_tokens(tmp_path / "words.txt", TokenOptions(window=2, subsample=0))
    assert dslide.resume(tmp_path / "words", data, epochs=3).summary["epochs"] == 3
    (tmp_path / "t.tsv").write_text("ships\tthe boat sails\nplanes\tthe jet flies\n" * 8)
    recipe = {"format": "tsv", "min_df": 9} | OPTIONS
    result = dslide.train(tmp_path / "t.tsv", recipe, out=tmp_path / "text")
    assert load_model(result.folder).feature_names == ["the"]


def test_mistakes_are_the_sentences_of_the_command_line(
    s: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train, out = s / "train.txt", tmp_path / "run"
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"epochs": -1}, ["--epochs", "-1"]),
        ({"loss": "sofmax"}, ["--loss", "sofmax"]),
        ({"hold_out": 2.0}, ["--hold-out", "2"]),
        ({"test_every": 1}, ["--test-every", "1"]),
        ({"test": tmp_path / "none"}, ["--test", str(tmp_path / "none")]),
        ({"k": 0}, ["--k", "0"]),
        ({"min_df": 3}, ["--min-df", "3"]),
        ({"window": 3}, ["--window", "3"]),
        ({"features": 7}, ["--features", "7"]),
        ({"hidden": 2**24, "labels": 20}, ["--hidden", str(2**24), "--labels", "20"]),
    ]
    for options, words in cases:
        with pytest.raises(UserError) as caught:
            dslide.train(train, out=out, **options)
        assert main(["train", str(train), "--out", str(out), *words]) == 2
        assert capfd.readouterr().err == f"dslide: error: {caught.value}\n"
        assert not out.exists()
    with pytest.raises(ConfigError, match="there is no option 'epocs'; did you mean 'epochs'"):
        dslide.train(train, epocs=3)
    with pytest.raises(ConfigError, match="there is no option 'labl_names'; did you mean 'label_names'"):
        dslide.train(train, labl_names=[])
    with pytest.raises(ConfigError, match=rf"{s}/run: exists already"):
        dslide.train(train, out=s / "run")


# ---- resume ---------------------------------------------------------------------------------------------------------


def test_a_resumed_run_is_the_unbroken_one(s: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = dslide.train(s / "train.txt", out=tmp_path / "run", callbacks=[Stop(25)], test=s / "test.txt", **OPTIONS)
    assert broken.interrupted
    assert (broken.metrics, broken.summary["steps"], broken.summary["p_at_1"]) == ({}, 25, None)
    result = dslide.resume(tmp_path / "run", s / "train.txt", test=s / "test.txt")
    assert not result.interrupted
    assert_same_network(tmp_path / "run", s / "run")
    assert result.metrics["p_at_1"] == summary(s / "run")["p_at_1"]
    assert kinds(tmp_path / "run").count("start") == 2
    assert capfd.readouterr() == ("", "")


def test_what_may_change_on_resuming(s: Path, tmp_path: Path) -> None:
    data, run = s / "train.txt", tmp_path / "run"
    dslide.train(data, out=run, **OPTIONS | {"epochs": 1})
    with pytest.raises(ConfigError, match=r"all 1 epochs are done; give more epochs to resume; to go on .* --from"):
        dslide.resume(run, data)
    with pytest.raises(ConfigError, match=r"hidden: the run was begun with \(16,\), and on resuming only epochs, "):
        dslide.resume(run, data, epochs=2, hidden=(8,))
    with pytest.raises(DataError, match=f"{s / 'test.txt'}: not the data that {run} was trained on"):
        dslide.resume(run, s / "test.txt", epochs=2)
    with pytest.raises(ModelError, match="there is no such run to resume"):
        dslide.resume(tmp_path / "none", data)
    before = load_model(run).state["layer0.weights"].copy()
    result = dslide.resume(run, data, epochs=2, learning_rate=0.0, hidden=(16,))
    assert result.summary["config"]["learning_rate"] == 0
    np.testing.assert_array_equal(load_model(run).state["layer0.weights"], before)


def test_a_run_that_exists_is_resumed_if_that_is_wanted(s: Path, tmp_path: Path) -> None:
    data, run, config = s / "train.txt", tmp_path / "run", Config(**OPTIONS)
    steps = []
    for stop in (10, 30, 0, 0):
        result = dslide.train(data, config, out=run, resume_existing=True, callbacks=[Stop(stop)])
        steps.append((result.summary["steps"], result.interrupted))
    assert steps == [(10, True), (30, True), (38, False), (38, False)]
    assert_same_network(run, s / "run")
    with pytest.raises(ConfigError, match="seed: the run was begun with 0"):
        dslide.train(data, config.replace(seed=1), out=run, resume_existing=True)


def test_sigterm_saves_and_says_so(s: Path, tmp_path: Path) -> None:
    program = f"""
import signal, dslide
class Stop(dslide.Callback):
    def on_step(self, trainer, info):
        if info.step == 7:
            signal.raise_signal(signal.SIGTERM)
dslide.train({str(s / "train.txt")!r}, {OPTIONS!r}, out="run", callbacks=[Stop()])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "dslide.errors.Terminated: this process received SIGTERM after 8 steps; the network is saved in run\n"
    )
    assert load_model(tmp_path / "run", optimizer=True).progress["step"] == 8
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# ---- evaluate -------------------------------------------------------------------------------------------------------


def test_evaluate_repeats_what_training_measured(s: Path, capfd: pytest.CaptureFixture[str]) -> None:
    values, data = summary(s / "run"), dslide.load(s / "test.txt")
    model = dslide.open_model(s / "run", threads=1)
    assert model.saved.labels == 20
    for metrics in (dslide.evaluate(s / "run", s / "test.txt"), dslide.evaluate(model, data)):
        for name in ("p_at_1", "r_at_3", "ndcg_at_5", "psp_at_5"):
            assert metrics[name] == values[name]
        assert metrics["loss"] == pytest.approx(values["test_loss"], rel=1e-6)
        assert (metrics["rows"], metrics["rows_without_labels"]) == (80, 0)
        assert not any(name.startswith("approximate") for name in metrics)
    metrics = dslide.evaluate(model, s / "test.txt", k=[2, 1], approximate=True)
    assert {name for name in metrics if "_at_" in name} == {
        f"{prefix}{name}_at_{k}"
        for k in (1, 2)
        for prefix, names in (
            ("", ["p", "r", "ndcg", "psp", "coverage"]),
            ("approximate_", ["p", "r", "ndcg", "psp", "coverage", "recall_of_exact"]),
        )
        for name in names
    }
    assert 0.5 < metrics["approximate_recall_of_exact_at_1"] <= 1
    assert metrics["approximate_index_seconds"] >= 0
    assert capfd.readouterr() == ("", "")


def test_what_evaluate_refuses(s: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such model folder"):
        dslide.evaluate(tmp_path / "none", s / "test.txt")
    with pytest.raises(ConfigError, match="there is no option 'epochs'"):
        dslide.evaluate(s / "run", s / "test.txt", epochs=3)
    with pytest.raises(ConfigError, match="k: expected whole numbers from 1 to 10000 like 1,3,5, not '1,x'"):
        dslide.evaluate(s / "run", s / "test.txt", k=[1, "x"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="history: only interactions have one"):
        dslide.evaluate(s / "run", s / "test.txt", history=s / "train.txt")


# ---- several ranks --------------------------------------------------------------------------------------------------


def test_the_calls_are_collective(s: Path, tmp_path: Path) -> None:
    """Ranks as threads; every one gets the same result."""
    options = OPTIONS | {"wire": "float32", "out": tmp_path / "run", "test": s / "test.txt"}

    def work(comm: Any) -> tuple[RunResult, RunResult, dict[str, float]]:
        broken = dslide.train(s / "train.txt", callbacks=[Stop(9)], comm=comm, **options)
        whole = dslide.resume(tmp_path / "run", s / "train.txt", test=s / "test.txt", comm=comm)
        return broken, whole, dslide.evaluate(tmp_path / "run", s / "test.txt", comm=comm)

    (broken, whole, metrics), (also_broken, also_whole, also_metrics) = run_ranks(2, work)
    assert broken.summary == also_broken.summary
    assert whole.summary == also_whole.summary == summary(tmp_path / "run")
    assert (broken.summary["steps"], whole.summary["steps"], whole.summary["ranks"]) == (9, 38, 2)
    for name in ("p_at_1", "p_at_5", "loss"):
        assert metrics[name] == also_metrics[name] == pytest.approx(whole.metrics[name])
    assert whole.summary["loss"] == pytest.approx(summary(s / "run")["loss"], rel=0.02)
    assert (tmp_path / "run/log-1.jsonl").exists()


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["dslide.training.trainer", "dslide.cli.train", "dslide.sklearn.estimator"])
def test_train_is_the_function_whatever_is_imported(module: str) -> None:
    program = (
        f"import {module}, dslide; print(dslide.train.__module__, callable(dslide.train), dslide.training.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "dslide.api True dslide.training\n"


def test_the_public_functions_share_their_parameters() -> None:
    train, resume = (set(inspect.signature(call).parameters) for call in (dslide.train, dslide.resume))
    assert train - resume == {"config", "out", "resume_existing", "start_from"}
    assert resume - train == {"run"}
