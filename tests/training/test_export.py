"""Exports: a smaller model opens wherever a model opens and predicts nearly the same; arrays are the network's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dslide
from dslide.errors import ConfigError, DataError, ModelError
from dslide.training.export import export_arrays, export_model


@pytest.fixture(scope="module", params=["softmax", "sigmoid"])
def run(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    dslide.data.synthesize(folder / "toy", rows=1500, features=300, labels=200, test_rows=200, seed=0)
    dslide.train(folder / "toy/train.txt", out=folder / "run", hidden=(32,), epochs=6, threads=1, loss=request.param,
                 batch_size=64)  # fmt: skip
    return folder


def weights_size(folder: Path) -> int:
    return (folder / "weights.safetensors").stat().st_size


def test_int8_predicts_nearly_the_same(run: Path) -> None:
    export_model(run / "run", run / "small", "int8")
    export_model(run / "run", run / "plain")
    assert not (run / "small/optimizer.safetensors").exists()
    assert weights_size(run / "small") < weights_size(run / "plain")
    test = run / "toy/test.txt"
    full, small = (dslide.evaluate(run / name, test, threads=1) for name in ("run", "small"))
    assert full["p_at_1"] > 0.5
    for name in ("p_at_1", "p_at_5"):
        assert small[name] == pytest.approx(full[name], abs=0.03)
    assert small["loss"] == pytest.approx(full["loss"], rel=0.02)
    rows = [next(iter(dslide.predict(run / name, test, k=3, probabilities=True))) for name in ("run", "small")]
    assert_allclose(rows[0].probabilities, rows[1].probabilities, atol=0.05)
    assert dslide.Vectors.open(run / "small", "labels").matrix.shape == (200, 32)


def test_a_plain_export_predicts_the_same_and_can_be_resumed_only_with_the_optimizer(run: Path) -> None:
    export_model(run / "run", run / "whole", optimizer=True)
    test = run / "toy/test.txt"
    one, other = (dslide.evaluate(run / name, test, threads=1) for name in ("run", "whole"))
    assert one["p_at_5"] == other["p_at_5"]
    assert (run / "whole/optimizer.safetensors").exists()
    with pytest.raises(ConfigError, match="optimizer"):
        export_model(run / "run", run / "bad", "int8", optimizer=True)
    with pytest.raises(DataError, match="exists already"):
        export_model(run / "run", run / "whole")


def test_a_small_model_is_not_trained(run: Path) -> None:
    with pytest.raises(ConfigError, match="prediction only"):
        dslide.train(run / "toy/train.txt", out=run / "no", weights="int8", epochs=1, threads=1)


def test_damaged_scales_are_refused(run: Path) -> None:
    from dslide.checkpoint.saved_model import load_model, save_model

    export_model(run / "run", run / "damaged", "int8")
    saved = load_model(run / "damaged")
    name = "layer1.weights_scale"
    saved.state = {each: saved.state[each] for each in saved.state} | {name: saved.state[name][:-1]}
    save_model(run / "damaged2", saved, optimizer=False)
    with pytest.raises(ModelError, match=name):
        dslide.open_model(run / "damaged2")


def test_arrays_give_the_logits_of_the_network(run: Path) -> None:
    model = dslide.open_model(run / "run", threads=1)
    x = model.read(run / "toy/test.txt").x.part(0, 20)
    export_arrays(model, run / "arrays", x)
    vectors, biases, hidden = (np.load(run / f"arrays/{name}.npy") for name in ("vectors", "biases", "hidden"))
    assert vectors.shape == (200, 32)
    assert hidden.shape == (20, 32)
    model.network.prior = None
    model.network.calibration.reset()
    every = np.arange(200, dtype=np.int32)
    assert_allclose(hidden @ vectors.T + biases, model.network.scores(x, every), rtol=1e-3, atol=1e-3)
