"""Networks whose weights and moments are stored as bf16: layers against the slow network, training, hashing, saving."""

from __future__ import annotations

import json
import struct
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import support.planted as planted
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference.network import LOSSES, Activity, ReferenceLayer, to_slots
from support.bf16 import STORED, UNIT, nearest
from support.inprocess import run_ranks
from support.layer_cases import (
    KINDS,
    any_input,
    dense_input,
    make_active,
    make_layer,
    make_targets,
    softmax_learn,
    sparse_input,
)
from support.plain import PLAIN

from dslide import _core
from dslide.checkpoint.collective_load import load_on_all_ranks
from dslide.checkpoint.saved_model import SavedModel, load_model, save_model
from dslide.config import Config
from dslide.errors import ModelError
from dslide.model.hash_parameters import automatic
from dslide.model.layer import Layer
from dslide.model.layout import LayerSpec
from dslide.model.network import Network
from dslide.model.storage import widened
from dslide.training.trainer import Trainer
from dslide.util.arrays import aligned_zeros, padded

SMALL_BF16 = PLAIN | {"hidden": (24,), "batch_size": 64, "epochs": 1, "weights": "bf16", "moments": "bf16"}
COMBINATIONS = [dict(zip(("weights", "moments"), pair, strict=True)) for pair in product(STORED, STORED)]
base = Config(optimizer="adam", learning_rate=0.05, weight_decay=0.1, epsilon=1e-2, beta1=0.8, beta2=0.9)
few = settings(max_examples=40, deadline=None)
shapes = {
    "rows": st.sampled_from([1, 2, 5, 97]),
    "neurons": st.sampled_from([1, 16, 65, 130]),
    "inputs": st.sampled_from([1, 16, 17, 130]),
    "kind": st.sampled_from(KINDS),
    "optimizer": st.sampled_from(["adam", "adagrad", "sgd"]),
    "storage": st.sampled_from(COMBINATIONS),
    "seed": st.integers(0, 2**32 - 1),
}


def reference_of(layer: Layer, config: Config) -> ReferenceLayer:
    """The slow layer in the state that the fast one is in now."""
    reference = ReferenceLayer(layer, config)
    for which, numbers in (("weights", reference.weights), ("bias", reference.bias)):
        for moment in ("moment1", "moment2"):
            if (stored := layer.arrays.get(f"{which}_{moment}")) is None:
                continue
            matrix = widened(stored).astype(np.float64)
            if which == "bias":
                setattr(numbers, moment, matrix[:, 0])
            else:
                width = layer.neurons if layer.sparse_input else layer.inputs
                setattr(numbers, moment, matrix[:, :width] if layer.sparse_input else matrix[:, :width].T)
    reference.weights_clock = layer.arrays["weights_clock"].astype(np.float64)
    reference.bias_clock = layer.arrays["bias_clock"].astype(np.float64)
    return reference


def assert_a_rounding_away(layer: Layer, reference: ReferenceLayer) -> None:
    """What is stored as bf16 is one of the two numbers around the slow layer's; the rest is equal to rounding."""
    for name, expected in reference.arrays().items():
        if (array := layer.arrays.get(name)) is None:
            continue
        rtol = UNIT + 1e-4 if array.dtype == np.uint16 else 1e-4
        width = expected.shape[-1]
        assert_allclose(widened(array)[..., :width], expected, rtol=rtol, atol=1e-5, err_msg=name)
        if array.ndim == 2:
            assert not array[:, width:].any()  # padding stays zero


@pytest.mark.parametrize("sparse", [False, True])
@few
@given(**shapes)
def test_learning(sparse, rows, neurons, inputs, kind, optimizer, storage, seed):
    """Three steps, each from the state that the one before left: gradients of inputs, weights, moments."""
    config = base.replace(optimizer=optimizer, **storage)
    layer = make_layer(inputs, neurons, sparse, config, seed)
    for step in range(3):
        reference = reference_of(layer, config)
        active = make_active(kind, neurons, rows, seed + step)
        activity = Activity.of(active, neurons)
        x, matrix, present = any_input(sparse, rows, inputs, seed + step)
        dz = np.random.default_rng(seed + step).standard_normal((rows, neurons)) * activity.mask / rows
        slots = to_slots(active, dz)
        fine, dx = layer.learn(x, active, slots.reshape(rows if active.is_everything else 1, -1))
        expected_dx = reference.learn(matrix, present, activity, dz, config.learning_rate)
        assert fine
        assert_allclose(dx if sparse else dx[:, :inputs], expected_dx[np.nonzero(present)] if sparse else expected_dx,
                        rtol=1e-4, atol=1e-4)  # fmt: skip
        assert_a_rounding_away(layer, reference)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@few
@given(**shapes)
def test_loss_and_learning_in_one_pass(loss, rows, neurons, inputs, kind, optimizer, storage, seed):
    config = base.replace(optimizer=optimizer, **storage)
    layer = make_layer(inputs, neurons, False, config, seed)
    kind = "shared" if kind == "row" else kind
    for step in range(2):
        reference = reference_of(layer, config)
        x, matrix = dense_input(rows, inputs, seed + step)
        targets = make_targets(rows, neurons, seed + step, loss == "softmax")
        active = make_active(kind, neurons, rows, seed + step, (targets.indptr, targets.indices))
        activity = Activity.of(active, neurons)
        labels = _core.FoundLabels(active, targets.indptr, targets.indices, targets.values)
        expected_loss, dz = LOSSES[loss](reference.forward(matrix, activity), activity, targets.matrix)
        dx = np.full_like(x.values, np.nan)
        if loss == "softmax":
            fine, got, _ = softmax_learn(layer, x, active, labels, dx, 1 / rows)
        else:
            fine, got = layer.native.sigmoid_learn(x.values, active, labels, 1 / rows, dx, layer.optimizer)
        dz = np.where(activity.mask, dz, 0) / rows
        expected_dx = reference.learn(matrix, np.ones_like(matrix, bool), activity, dz, config.learning_rate)
        assert fine
        assert_allclose(got, expected_loss, rtol=1e-4, atol=1e-4)
        assert_allclose(dx[:, :inputs], expected_dx, rtol=1e-4, atol=1e-4)
        assert_a_rounding_away(layer, reference)


def test_a_row_rounds_differently_at_each_step_and_rows_from_each_other():
    """Equal rows, stepped alike by a fraction of the last place: some numbers move, and not the same ones."""
    layer = make_layer(128, 64, False, base.replace(optimizer="sgd", weight_decay=0.0, weights="bf16"))
    layer.arrays["weights"][:] = nearest(np.full((64, 128), 0.75))
    x, _ = dense_input(1, 128, 0)
    x.values[:] = 1
    moved = []
    for _ in range(2):
        before = layer.arrays["weights"].copy()
        layer.learn(x, layer.everything(1), np.full((1, 64), -0.02, np.float32))  # a step of 0.001, units are 0.0039
        moved.append(layer.arrays["weights"] != before)
    for share in (moved[0].mean(), moved[1].mean()):
        assert share == pytest.approx(0.256, abs=0.02)
    # numbers of a row are spread evenly, which for equal ones leaves 2 x 128 ways, and 57 of 64 rows different
    assert len({row.tobytes() for row in moved[0]}) > 45
    assert (moved[0] == moved[1]).mean() < 0.8  # by chance: .26^2 + .74^2 = .62


def test_sampled_columns_are_rounded_as_those_of_a_whole_row():
    config = base.replace(weights="bf16", moments="bf16")
    whole, sampled = (make_layer(6, 40, True, config) for _ in range(2))
    x, _, _ = sparse_input(5, 6, 3)
    every = np.arange(40, dtype=np.int32)
    offsets = np.arange(6, dtype=np.int64) * 40
    active = _core.ActiveSet.sampled(True, 40, offsets, np.tile(every, 5), None, None, 0, 0, False)
    dz = np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32)
    whole.learn(x, whole.everything(5), dz)
    sampled.learn(x, active, dz.reshape(1, -1))
    for name, array in whole.arrays.items():
        if array.dtype == np.uint16:
            assert np.count_nonzero(array != sampled.arrays[name]) <= 2, name  # sums are added up in another order
            assert array.any()


def test_fresh_weights_are_the_nearest_to_those_of_float32():
    exact, stored = aligned_zeros(50, padded(130)), aligned_zeros(50, padded(130), np.uint16)
    for value in (exact, stored):
        _core.initialise(value, 130, 0.25, 9)
    assert_array_equal(stored, nearest(exact))


@pytest.mark.parametrize("sparse", [False, True])
def test_neurons_are_hashed_by_what_their_weights_are(sparse, monkeypatch):
    monkeypatch.setattr("dslide.model.layer.COPIED_BYTES", 1000)  # in several pieces
    spec = LayerSpec(0, 20, 90, sparse, 1.0, False, automatic(90, 20, "simhash"))
    layer = Layer(spec, base.replace(weights="bf16"), 1, scale=0.3)
    functions, ids = layer.lsh.functions, np.arange(3, 90, 2, dtype=np.int32)
    weights = widened(layer.arrays["weights"])
    rows = weights[:, :90].T if sparse else weights[:, :20]
    assert_array_equal(layer.codes(functions, ids), functions.dense(np.ascontiguousarray(rows[ids])))


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prototypes():
    return planted.prototypes(500, 600)


OUTPUTS = {
    "full": {"output": "full", "epochs": 8},
    "lsh": {"output": "lsh", "hash_hits": 4, "random_negatives": 100, "epochs": 16},
    "row": {"output": "lsh", "active_sets": "row", "hash_hits": 32, "random_negatives": 64, "epochs": 8},
}


def learned(problem, **options) -> float:
    config = Config(**PLAIN | {"hidden": (64,), "batch_size": 64, "threads": 2} | options)
    trainer = Trainer(config, problem.train.features, problem.train.labels)
    trainer.fit(problem.train)
    return problem.precision(trainer.network)


@pytest.mark.parametrize("options", OUTPUTS.values(), ids=OUTPUTS)
def test_networks_learn_as_well(options, prototypes):
    """P@1 of 1,000 rows; chance is 0.002."""
    float32, *others = (learned(prototypes, **options, **storage) for storage in COMBINATIONS)
    assert float32 > 0.8
    for precision in others:
        assert precision > float32 - 0.03


def test_the_same_seed_gives_the_same_bits(prototypes):
    states = []
    for _ in range(2):
        config = Config(**SMALL_BF16 | {"threads": 2})
        trainer = Trainer(config, prototypes.train.features, prototypes.train.labels)
        trainer.fit(prototypes.train)
        states.append(trainer.network.state())
    for name, array in states[0].items():
        assert_array_equal(array, states[1][name], err_msg=name)


# ---- saved models ---------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(prototypes):
    config = Config(**SMALL_BF16 | {"threads": 1})
    trainer = Trainer(config, prototypes.train.features, prototypes.train.labels)
    trainer.fit(prototypes.train)
    return trainer.network


def saved(network: Network, folder: Path) -> Path:
    model = SavedModel(network.config, network.features, network.labels, network.state(), progress={"step": 1})
    save_model(folder, model)
    return folder


def test_a_model_is_what_it_was_on_any_number_of_ranks(trained, prototypes, tmp_path):
    folder = saved(trained, tmp_path / "m")
    expected, _ = trained.predict_topk(prototypes.test.x, 3)
    near, _ = trained.predict_topk_approximate(prototypes.test.x, 3)
    state = load_model(folder, optimizer=True).state
    for name, array in trained.state().items():
        assert_array_equal(state[name], array, strict=True, err_msg=name)

    def work(comm):
        loaded = load_on_all_ranks(folder, comm)
        network = Network(loaded.config, loaded.features, loaded.labels, comm=comm, trainable=False,
                          weights=loaded.state)  # fmt: skip
        return (network.predict_topk(prototypes.test.x, 3)[0],
                network.predict_topk_approximate(prototypes.test.x, 3)[0])  # fmt: skip

    for size in (1, 2, 3):
        for ids, approximate in run_ranks(size, work):
            assert (ids == expected).mean() > 0.999  # equal but for ties to rounding
            assert (approximate == near).mean() > 0.999


def test_files_have_half_the_size_and_say_bf16(trained, tmp_path):
    folder = saved(trained, tmp_path / "m")
    content = (folder / "weights.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert {name: entry["dtype"] for name, entry in header.items()} == {
        "layer0.weights": "BF16", "layer0.bias": "F32", "layer1.weights": "BF16", "layer1.bias": "F32",
        "calibration": "F32",
    }  # fmt: skip
    assert len(content) < 2 * (600 + 500) * padded(24) + 4 * 600 + trained.calibration.array.nbytes + 2000


def test_a_model_of_another_storage_is_refused_in_a_sentence(trained, tmp_path):
    folder = saved(trained, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    assert config["weights"] == config["moments"] == "bf16"
    other = trained.config.replace(weights="float32")
    with pytest.raises(ModelError, match=r"^array layer0.weights is bf16\[600, 32\], expected float32\[600, 32\]$"):
        Network(other, trained.features, trained.labels).load_state(trained.state())
    with pytest.raises(ModelError, match=r"^array layer0.weights is bf16\[600, 32\], expected float32\[600, 32\]$"):
        Network(other, trained.features, trained.labels, trainable=False, weights=trained.state())
    save_model(folder, SavedModel(other, trained.features, trained.labels, trained.state()))
    with pytest.raises(ModelError, match=r"weights.safetensors: array layer0.weights is bf16\[600, 32\], expected"):
        load_model(folder)
