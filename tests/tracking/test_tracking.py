"""Runs reported to MLflow and Weights & Biases, read back by the services' own readers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import dslide
from dslide.tracking import MLflowLog
from dslide.tracking.tracker import Tracker

OPTIONS = {"epochs": 3, "hidden": (8,), "threads": 1, "batch_size": 20, "validation": 0}
WORDS = {"sea": "whale ship wave", "earth": "stone rock cave"}


@pytest.fixture
def data(tmp_path):
    lines = [f"{label}\t{text}\n" for label, text in WORDS.items()] * 30
    (tmp_path / "train.tsv").write_text("".join(lines))
    return tmp_path / "train.tsv"


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MLflow puts what it is not told where to
    found = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install '.[mlflow]'")
    pytest.importorskip("sqlalchemy", reason="MLflow's own store needs sqlalchemy")
    found.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    return found


class Stop(dslide.Callback):
    def on_epoch(self, trainer, info):
        raise KeyboardInterrupt


class Recorder(Tracker):
    """A service that keeps what it is told in lists."""

    service, package = "A service", "json"

    def __init__(self, reachable=True, works=True):
        super().__init__(every_seconds=0)
        self.reachable, self.works = reachable, works
        self.scalars, self.calls, self.files = [], [], {}

    def _begin(self, name, before, options):
        if not self.reachable:
            raise dslide.UserError("json: can't be reached")
        self.calls.append(("begin", name, before))
        self.options = options
        return "run-7"

    def _log(self, scalars, step):
        if not self.works:
            raise OSError("gone")
        self.scalars.append((step, dict(scalars)))

    def _add_result(self, report, summary):
        self.files = {"report": report.read_text(), "summary": summary}

    def _add_model(self, folder):
        self.files["model"] = sorted(path.name for path in folder.iterdir())

    def _finish(self, state):
        self.calls.append(state)


def test_a_run_is_reported_from_its_options_to_its_model(data, tmp_path):
    seen = Recorder()
    result = dslide.train(data, out=tmp_path / "run", test=data, callbacks=[seen], **OPTIONS)
    assert seen.calls == [("begin", "run", None), "finished"]
    assert (seen.options["hidden"], seen.options["rows"], seen.options["data"]) == ([8], 60, str(data))
    losses = [(step, found["train/loss"]) for step, found in seen.scalars if "train/loss" in found]
    assert [step for step, _ in losses] == list(range(1, 10))
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert losses[0] == next((record["step"], record["loss"]) for record in log if record["record"] == "step")
    assert seen.scalars[-1] == (
        9,
        {f"test/{name}": value for name, value in result.metrics.items() if "rows" not in name},
    )
    assert "<svg" in seen.files["report"]
    assert seen.files["summary"] == result.summary
    assert {"README.md", "weights.safetensors"} <= set(seen.files["model"])
    assert "optimizer.safetensors" not in seen.files["model"]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "checkpoints", "json-run", "log.jsonl", "summary.json"
    }  # fmt: skip


def test_a_run_that_is_resumed_goes_on_where_it_was(data, tmp_path):
    first, second = Recorder(), Recorder()
    result = dslide.train(data, out=tmp_path / "run", callbacks=[first, Stop()], **OPTIONS)
    assert result.interrupted
    dslide.resume(tmp_path / "run", data, callbacks=[second])
    assert first.calls == [("begin", "run", None), "interrupted"]
    assert second.calls == [("begin", "run", "run-7"), "finished"]


def test_an_error_of_training_ends_the_run_as_failed(data, tmp_path):
    class Fail(dslide.Callback):
        def on_step(self, trainer, info):
            raise ZeroDivisionError

    seen = Recorder()
    with pytest.raises(ZeroDivisionError):
        dslide.train(data, out=tmp_path / "run", callbacks=[seen, Fail()], **OPTIONS)
    assert seen.calls == [("begin", "run", None), "failed"]


def test_a_service_that_fails_ends_training_only_at_its_begin(data, tmp_path, capsys):
    with pytest.raises(dslide.UserError, match="can't be reached"):
        dslide.train(data, out=tmp_path / "first", callbacks=[Recorder(reachable=False)], **OPTIONS)
    result = dslide.train(data, out=tmp_path / "second", callbacks=[Recorder(works=False)], **OPTIONS)
    assert result.summary["epochs"] == 3
    assert capsys.readouterr().err.count("A service: can't be written: gone; training continues") == 1


def test_an_estimator_is_reported_too():
    seen = Recorder()
    dslide.SlideClassifier(**OPTIONS).fit(np.eye(4, dtype=np.float32).repeat(10, 0), np.arange(40) // 10, [seen])
    assert seen.calls == [("begin", None, None), "finished"]
    assert len(seen.scalars) == 9


def test_a_damaged_name_of_a_run_is_refused(data, tmp_path):
    dslide.train(data, out=tmp_path / "run", callbacks=[Recorder()], **OPTIONS)
    (tmp_path / "run/json-run").write_text("../elsewhere\n")
    with pytest.raises(dslide.UserError, match="json-run: damaged: expected the name of a run of A service"):
        dslide.resume(tmp_path / "run", data, epochs=4, callbacks=[Recorder()])


@pytest.mark.parametrize("package", ["mlflow", "wandb"])
def test_without_the_package_one_sentence_says_how_to_install_it(package, data, tmp_path):
    program = f"""
import sys
sys.modules[{package!r}] = None  # as if it were not installed
from dslide.cli import main
sys.exit(main(sys.argv[1:]))
"""
    words = ["train", str(data), "--out", "run", f"--{package}"]
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        f"dslide: error: {package}: the package {package} is not installed; pip install 'dslide[{package}]'\n",
    )
    assert not (tmp_path / "run").exists()


def test_mlflow_has_parameters_metrics_files_and_a_model_that_opens(mlflow, data, tmp_path):
    result = dslide.train(data, out=tmp_path / "run", test=data, callbacks=[MLflowLog()], **OPTIONS)
    (run,) = mlflow.search_runs(output_format="list")
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert (tmp_path / "run/mlflow-run").read_text().strip() == run.info.run_id
    assert (run.data.params["hidden"], run.data.params["rows"]) == ("[8]", "60")
    assert run.data.metrics["test/p_at_1"] == result.metrics["p_at_1"]
    client = mlflow.MlflowClient()
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"report.html", "summary.json"}
    assert [point.step for point in client.get_metric_history(run.info.run_id, "epoch/loss")] == [3, 6, 9]
    model = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model")
    assert model.metadata.flavors["python_function"]["loader_module"] == "dslide.tracking.mlflow_model"
    expected = [row.to_dict() for row in dslide.predict(result.folder, ["a whale", "a cave"], k=1)]
    assert model.predict(["a whale", "a cave"], params={"k": 1}) == expected
    assert [row["labels"][0]["name"] for row in expected] == ["sea", "earth"]


def test_a_model_of_numbers_opens_in_mlflow(mlflow, tmp_path):
    x, y = sp.csr_matrix(np.eye(6, dtype=np.float32).repeat(10, 0)), np.arange(60) // 10
    dslide.SlideClassifier(**OPTIONS).fit(x, y, [MLflowLog()], out=tmp_path / "run")
    model = mlflow.pyfunc.load_model(f"runs:/{(tmp_path / 'run/mlflow-run').read_text().strip()}/model")
    for rows in (x[::10], x[::10].toarray()):
        assert [row["labels"][0]["label"] for row in model.predict(rows, params={"k": 1})] == list(range(6))


def test_weights_and_biases_offline(data, tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install '.[wandb]'")
    program = f"""
import sys
import dslide, wandb
from dslide.tracking import WandbLog
options = {OPTIONS!r}
with wandb.init() as run:  # is used, and stays open
    result = dslide.train({str(data)!r}, out="run", test={str(data)!r}, callbacks=[WandbLog()], **options)
    assert run.config["hidden"] == [8], run.config
    assert run.summary["test/p_at_1"] == result.metrics["p_at_1"]
    assert run.summary["train/loss"] > 0
    assert "report" in run.summary.keys()
dslide.train({str(data)!r}, out="other", callbacks=[WandbLog(model=False)], **options)
"""
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    for name in ("run", "other"):
        number = Path(tmp_path / name / "wandb-run").read_text().strip()
        assert list((tmp_path / "wandb").glob(f"offline-run-*-{number}"))
