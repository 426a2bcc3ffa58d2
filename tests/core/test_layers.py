"""Dense and sparse layers against the reference network, for all kinds of active sets and shapes that fit no block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference.network import LOSSES, Activity, ReferenceLayer, from_slots, softmax_loss, to_slots
from support.bf16 import STORED
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

from dslide import _core
from dslide.config import Config
from dslide.errors import ModelError
from dslide.model.calibration import Calibration
from dslide.model.network import Network
from dslide.util.arrays import padded

OPTIMIZERS = ["adam", "adagrad", "sgd"]
CLOSE = {"rtol": 2e-5, "atol": 2e-5}  # float32 sums of up to 130 products of numbers about 1
STEPPED = {"rtol": 1e-4, "atol": 1e-4}  # after several steps of 0.05 with gradients divided by their own size
few = settings(max_examples=50, deadline=None)
# epsilon: where a gradient is 0 but for rounding, dividing it by its own size must not make a step of it
base = Config(optimizer="adam", learning_rate=0.05, weight_decay=0.1, epsilon=1e-2, beta1=0.8, beta2=0.9)
shapes = {
    "rows": st.sampled_from([1, 2, 5, 96, 97, 128, 200]),
    "neurons": st.sampled_from([1, 2, 16, 64, 65, 130]),
    "inputs": st.sampled_from([1, 16, 17, 130]),
    "kind": st.sampled_from(KINDS),
    "seed": st.integers(0, 2**32 - 1),
    "threads": st.sampled_from([1, 2, 3]),
}


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def logits_of(layer, x, active):
    z = layer.forward(x, active)
    assert not z[:, layer.neurons :].any() or not active.is_everything  # padding
    return from_slots(active, z[:, : layer.neurons] if active.is_everything else z, layer.neurons)


def gradients_for(layer, active, dz):
    """dz in the layout that `Layer.learn` takes."""
    slots = to_slots(active, dz)
    return slots.reshape(active.rows, -1) if active.is_everything else slots.reshape(1, -1)


def assert_same_state(layer, reference):
    expected = reference.arrays()
    for name, array in layer.arrays.items():
        width = expected[name].shape[-1]
        assert_allclose(array[..., :width], expected[name], err_msg=name, **STEPPED)
        if array.ndim == 2:
            assert not array[:, width:].any()  # padding stays zero


@few
@given(stored=st.sampled_from(STORED), **shapes)
def test_dense_forward(stored, rows, neurons, inputs, kind, seed, threads):
    _core.set_threads(threads)
    layer = make_layer(inputs, neurons, False, base.replace(weights=stored), seed)
    x, matrix = dense_input(rows, inputs, seed)
    active = make_active(kind, neurons, rows, seed)
    expected = ReferenceLayer(layer, base).forward(matrix, Activity.of(active, neurons))
    assert_allclose(logits_of(layer, x, active), expected, **CLOSE)


@few
@given(stored=st.sampled_from(STORED), **shapes)
def test_sparse_forward(stored, rows, neurons, inputs, kind, seed, threads):
    _core.set_threads(threads)
    layer = make_layer(inputs, neurons, True, base.replace(weights=stored), seed)
    x, matrix, _ = sparse_input(rows, inputs, seed)
    active = make_active(kind, neurons, rows, seed)
    expected = ReferenceLayer(layer, base).forward(matrix, Activity.of(active, neurons))
    assert_allclose(logits_of(layer, x, active), expected, **CLOSE)


@pytest.mark.parametrize("sparse", [False, True])
@few
@given(optimizer=st.sampled_from(OPTIMIZERS), **shapes)
def test_learning_over_several_steps(sparse, optimizer, rows, neurons, inputs, kind, seed, threads):
    """Weights, moments, clocks and gradients of inputs over four steps, each with an active set of its own."""
    _core.set_threads(threads)
    config = base.replace(optimizer=optimizer)
    layer = make_layer(inputs, neurons, sparse, config, seed)
    reference = ReferenceLayer(layer, config)
    for step in range(4):
        active = make_active(kind, neurons, rows, seed + step)
        activity = Activity.of(active, neurons)
        x, matrix, present = any_input(sparse, rows, inputs, seed + step)
        dz = np.random.default_rng(seed + step).standard_normal((rows, neurons)) * activity.mask / rows
        dz = dz.astype(np.float32).astype(np.float64)
        before = {name: array.copy() for name, array in layer.arrays.items()}
        finite, dx = layer.learn(x, active, gradients_for(layer, active, dz))
        expected_dx = reference.learn(matrix, present, activity, dz, config.learning_rate)
        assert finite
        if sparse:
            assert_allclose(dx, expected_dx[np.nonzero(present)], **STEPPED)
        else:
            assert_allclose(dx[:, :inputs], expected_dx, **STEPPED)
            assert not dx[:, inputs:].any()
        assert_same_state(layer, reference)
        untouched = ~present.any(axis=0) if sparse else ~activity.mask.any(axis=0)
        for name in before:
            rest = untouched if name.startswith("weights") else ~activity.mask.any(axis=0)
            assert_array_equal(layer.arrays[name][rest], before[name][rest], err_msg=name)  # bit for bit


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@few
@given(optimizer=st.sampled_from(OPTIMIZERS), keep=st.booleans(), cut=st.sampled_from([0, 128]), **shapes)
def test_loss_and_learning_in_one_pass(loss, optimizer, keep, cut, rows, neurons, inputs, kind, seed, threads):
    """softmax_forward, _backward and _step, with logits kept or computed twice; sigmoid_learn: three steps."""
    _core.set_threads(threads)
    if kind == "row":
        kind = "shared"
    config = base.replace(optimizer=optimizer)
    layer = make_layer(inputs, neurons, False, config, seed)
    reference = ReferenceLayer(layer, config)
    for step in range(3):
        x, matrix = dense_input(rows, inputs, seed + step)
        targets = make_targets(rows, neurons, seed + step, loss == "softmax")
        active = make_active(kind, neurons, rows, seed + step, (targets.indptr, targets.indices))
        activity = Activity.of(active, neurons)
        labels = _core.FoundLabels(active, targets.indptr, targets.indices, targets.values)
        z = reference.forward(matrix, activity)
        expected_loss, dz = LOSSES[loss](z, activity, targets.matrix)
        dx = np.full_like(x.values, np.nan)
        if loss == "softmax":
            kept = np.full(layer.native.kept_size(active), np.nan, np.float32) if keep else None
            finite, got, norm = softmax_learn(layer, x, active, labels, dx, 1 / rows, kept, cut)
            shifted = np.where(activity.mask, z + np.log(np.where(activity.mask, activity.weight, 1)), -np.inf)
            assert_allclose(norm, np.log(np.exp(shifted).sum(axis=1)), **STEPPED)
        else:
            finite, got = layer.native.sigmoid_learn(x.values, active, labels, 1 / rows, dx, layer.optimizer)
        expected_dx = reference.learn(
            matrix, np.ones_like(matrix, bool), activity, np.where(activity.mask, dz, 0) / rows, 0.05
        )
        assert finite
        assert_allclose(got, expected_loss, rtol=1e-4, atol=1e-4)
        assert_allclose(dx[:, :inputs], expected_dx, **STEPPED)
        assert not dx[:, inputs:].any()
        assert_same_state(layer, reference)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@few
@given(rows=shapes["rows"], neurons=shapes["neurons"], kind=shapes["kind"], seed=shapes["seed"])
def test_losses_on_slots(loss, rows, neurons, kind, seed):
    targets = make_targets(rows, neurons, seed, loss == "softmax")
    active = make_active(kind, neurons, rows, seed, (targets.indptr, targets.indices))
    activity = Activity.of(active, neurons)
    z = 3 * np.random.default_rng(seed).standard_normal((rows, neurons)) * activity.mask
    slots = to_slots(active, z)
    labels = (targets.indptr, targets.indices, targets.values)
    if loss == "softmax":
        maximum, total = np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32)
        _core.softmax_stats(active, slots, maximum, total)
        got = _core.softmax_gradient(active, slots, *labels, maximum + np.log(total), 0.5)
    else:
        got = _core.sigmoid_gradient(active, slots, *labels, 0.5)
    expected, dz = LOSSES[loss](z, activity, targets.matrix)
    assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    assert_allclose(from_slots(active, slots, neurons), np.where(activity.mask, 0.5 * dz, 0), **CLOSE)


def test_labels_that_are_not_active_are_left_out():
    """Losses of an active set that lacks some of the labels: those count for nothing."""
    rng = np.random.default_rng(3)
    active = _core.ActiveSet.sampled(
        False, 100, np.array([0, 2, 3]), np.array([5, 50, 70], np.int32), None, None, 0, 0, True
    )
    z = np.zeros((2, 100))
    z[:, [5, 50, 70]] = rng.standard_normal((2, 3))
    slots = to_slots(active, z)
    offsets, ids, values = np.array([0, 2, 4]), np.array([5, 6, 7, 70], np.int32), np.full(4, 0.5, np.float32)
    maximum, total = np.full(2, -np.inf, np.float32), np.zeros(2, np.float32)
    _core.softmax_stats(active, slots, maximum, total)
    log_norm = maximum + np.log(total)
    got = _core.softmax_gradient(active, slots, offsets, ids, values, log_norm, 1.0)
    assert got == pytest.approx(0.5 * (log_norm[0] - z[0, 5]) + 0.5 * (log_norm[1] - z[1, 70]), rel=1e-5)


def topk_logits(layer, x):
    """The logits that top-k ranks, to the bit: few rows are multiplied otherwise than many."""
    if x.rows > 4:
        return layer.forward(x, layer.everything(x.rows))[:, : layer.neurons]
    dot, weights = _core.Kernels(_core.isa()).dot, layer.arrays["weights"]
    z = np.array([[dot(row, np.ascontiguousarray(w)) for w in weights] for row in x.values], np.float32)
    return z.reshape(x.rows, layer.neurons) + layer.arrays["bias"][:, 0]


@few
@given(k=st.sampled_from([1, 2, 5, 64, 131, 200]), ties=st.booleans(),
       **{name: shapes[name] for name in ("rows", "neurons", "inputs", "seed", "threads")})  # fmt: skip
def test_topk_is_a_stable_sort_of_all_logits(k, ties, rows, neurons, inputs, seed, threads):
    _core.set_threads(threads)
    layer = make_layer(inputs, neurons, False, base, seed)
    x, _ = dense_input(rows, inputs, seed)
    if ties:  # few different logits, exactly representable
        layer.arrays["weights"][:, :inputs] = np.sign(layer.arrays["weights"][:, :inputs])
        layer.arrays["bias"][:] = 0
        x.values[:, :inputs] = np.sign(x.values[:, :inputs])
    z = topk_logits(layer, x)
    ids, scores = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
    layer.native.topk(x.values, ids, scores)
    order = np.argsort(-z, axis=1, kind="stable")[:, :k]
    real = min(k, neurons)
    assert_array_equal(ids[:, :real], order)
    assert_array_equal(scores[:, :real], np.take_along_axis(z, order, axis=1))
    assert (ids[:, real:] == -1).all()
    assert (scores[:, real:] == -np.inf).all()


@few
@given(k=st.sampled_from([1, 2, 5, 64, 131, 200]), share=st.sampled_from([0, 0.02, 0.5, 0.98, 1]),
       **{name: shapes[name] for name in ("rows", "neurons", "inputs", "seed", "threads")})  # fmt: skip
def test_topk_without_excluded_neurons(k, share, rows, neurons, inputs, seed, threads):
    _core.set_threads(threads)
    layer = make_layer(inputs, neurons, False, base, seed)
    x, _ = dense_input(rows, inputs, seed)
    z = topk_logits(layer, x)
    rng = np.random.default_rng(seed)
    gone = rng.random((rows, neurons)) < share
    gone[np.arange(rows), z.argmax(axis=1)] |= rng.random(rows) < share  # the best one
    ids, scores = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
    offsets, left_out = np.append(0, np.cumsum(gone.sum(axis=1))), np.nonzero(gone)[1].astype(np.int32)
    layer.native.topk(x.values, ids, scores, offsets, left_out)
    for row in range(rows):
        order = [n for n in np.argsort(-z[row], kind="stable") if not gone[row, n]][:k]
        nothing = k - len(order)
        assert ids[row].tolist() == order + [-1] * nothing
        assert scores[row].tolist() == [*z[row, order], *[-np.inf] * nothing]


def scored(z, numbers, saturates):
    """The slow reference: a line for each neuron, above its least logit, with a bend; then what the neuron is worth."""
    slope, offset, least, knot, bend, worth, _ = numbers.T
    line = np.where(z >= least, slope * z + offset, slope * least + offset + (z - least))
    line = np.where(z > knot, line + bend * (z - knot), line)
    return (np.log(1 / (1 + np.exp(-line))) if saturates else line) + worth


@few
@given(k=st.sampled_from([1, 2, 5, 64, 131, 200]), everywhere=st.booleans(), worth=st.booleans(),
       exclusive=st.booleans(),
       **{name: shapes[name] for name in ("rows", "neurons", "inputs", "seed", "threads")})  # fmt: skip
def test_topk_of_calibrated_logits(k, everywhere, worth, exclusive, rows, neurons, inputs, seed, threads):
    _core.set_threads(threads)
    layer = make_layer(inputs, neurons, False, base, seed)
    x, _ = dense_input(rows, inputs, seed)
    z = layer.forward(x, layer.everything(rows))[:, :neurons]
    rng = np.random.default_rng(seed)
    numbers = rng.normal((1, 0, 0, 0, 0, 2, 0), (0.3, 1, 1, 1, 0.3, 1, 1), (neurons, 7)).astype(np.float32)
    if everywhere:
        numbers[:, 2] = np.finfo(np.float32).min
    if not worth:
        numbers[:, 5] = 0
    calibration = Calibration(neurons, exclusive, {"calibration": numbers})
    native, saturates = calibration.native
    assert native is calibration.array
    assert saturates == (worth and not exclusive)
    expected = scored(z.astype(np.float64), numbers.astype(np.float64), saturates)
    ids, scores = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
    layer.native.topk(x.values, ids, scores, None, None, None, native, saturates)
    real = min(k, neurons)
    close = {"rtol": 1e-4, "atol": 1e-4}
    assert_allclose(scores[:, :real], -np.sort(-expected, axis=1)[:, :real], **close)
    assert_allclose(scores[:, :real], np.take_along_axis(expected, ids[:, :real], axis=1), **close)
    lists = np.arange(rows + 1) * neurons, np.tile(np.arange(neurons, dtype=np.int32), rows)
    other, others = np.empty_like(ids), np.empty_like(scores)
    layer.native.topk_of_lists(x.values, *lists, other, others, None, native, saturates)
    assert_allclose(others, scores, **close)
    assert_allclose(calibration.scores(z, np.arange(neurons)), expected, **close)


def test_a_calibration_of_other_neurons_is_refused():
    layer = make_layer(3, 70, False, base)
    x, ids, scores = dense_input(1, 3, 0)[0].values, np.empty((1, 2), np.int32), np.empty((1, 2), np.float32)
    with pytest.raises(ValueError, match="calibration must be neurons x 7"):
        layer.native.topk(x, ids, scores, calibration=np.ones((69, 7), np.float32))


def test_lists_of_excluded_neurons_are_checked():
    layer = make_layer(3, 70, False, base)
    x, ids, scores = dense_input(1, 3, 0)[0].values, np.empty((1, 2), np.int32), np.empty((1, 2), np.float32)
    for wrong, message in (([5, 3], "in order"), ([70], "out of range"), ([-1], "out of range")):
        with pytest.raises(ValueError, match=message):
            layer.native.topk(x, ids, scores, np.array([0, len(wrong)]), np.array(wrong, np.int32))


def test_topk_of_nothing_is_nothing():
    layer = make_layer(3, 70, False, base)
    ids, scores = np.empty((2, 0), np.int32), np.empty((2, 0), np.float32)
    layer.native.topk(dense_input(2, 3, 0)[0].values, ids, scores)


def test_topk_with_logits_that_are_not_finite():
    """Where sums overflow the order is still defined: numbers before NaN."""
    layer = make_layer(2, 70, False, base)
    layer.arrays["weights"][:, :2] = [1, 1]
    layer.arrays["weights"][::2, 1] = -1
    layer.arrays["bias"][:] = 0
    x, _ = dense_input(1, 2, 0)
    x.values[0, :2] = np.inf  # what an earlier layer's overflow leaves: inf for odd neurons, NaN for even ones
    ids, scores = np.empty((1, 40), np.int32), np.empty((1, 40), np.float32)
    layer.native.topk(x.values, ids, scores)
    assert ids[0, :35].tolist() == list(range(1, 70, 2))
    assert (scores[0, :35] == np.inf).all()
    assert ids[0, 35:].tolist() == [0, 2, 4, 6, 8]
    assert (scores[0, 35:] == -np.inf).all()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_that_is_not_finite_is_reported_and_not_applied(sparse, optimizer, bad, kind):
    config = base.replace(optimizer=optimizer)
    layer = make_layer(20, 70, sparse, config)
    x = sparse_input(6, 20, 1)[0] if sparse else dense_input(6, 20, 1)[0]
    active = make_active(kind, 70, 6, 2)
    dz = np.zeros((6, 70))
    dz[np.nonzero(Activity.of(active, 70).mask)] = 0.1
    dz[2, Activity.of(active, 70).mask[2]] = bad
    finite, _ = layer.learn(x, active, gradients_for(layer, active, dz))
    assert not finite
    for name, array in layer.arrays.items():
        assert np.isfinite(array).all(), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_too_large_for_a_float_is_reported_and_not_applied(optimizer):
    config = base.replace(optimizer=optimizer, learning_rate=1000.0)
    layer = make_layer(20, 70, False, config)
    x, _ = dense_input(6, 20, 1)
    x.values[:, :20] = 1e36
    finite, _ = layer.learn(x, layer.everything(6), np.full((6, 70), 1.0, np.float32))
    assert not finite
    for name, array in layer.arrays.items():
        assert np.isfinite(array).all(), name


@pytest.mark.parametrize("sparse", [False, True])
def test_a_batch_without_rows_is_refused(sparse):
    layer = make_layer(5, 70, sparse, base)
    x = sparse_input(0, 5, 0)[0] if sparse else dense_input(0, 5, 0)[0]
    with pytest.raises(ValueError, match="needs rows"):
        layer.learn(x, layer.everything(0), np.zeros((0, 70), np.float32))


def test_softmax_of_large_logits_does_not_overflow():
    layer = make_layer(4, 130, False, base.replace(optimizer="sgd"))
    layer.arrays["weights"][:, :4] *= 500
    x, matrix = dense_input(5, 4, 1)
    reference = ReferenceLayer(layer, base)
    activity = Activity.of(layer.everything(5), 130)
    active, targets = layer.everything(5), make_targets(5, 130, 1, True)
    labels = _core.FoundLabels(active, targets.indptr, targets.indices, targets.values)
    z = reference.forward(matrix, activity)
    top = z.max(axis=1)
    assert z.max() > 200
    finite, loss, norm = softmax_learn(layer, x, active, labels, np.empty_like(x.values), 0.2)
    assert_allclose(norm, top + np.log(np.exp(z - top[:, None]).sum(axis=1)), rtol=1e-5)
    assert finite
    assert_allclose(loss, softmax_loss(z, activity, targets.matrix)[0], rtol=1e-4)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("order", [1, -1])
def test_softmax_of_logits_that_rise_and_fall_from_block_to_block(keep, order):
    """By hundreds: the reference of the exponentials changes on the way, and the sums so far are rescaled."""
    _core.set_threads(1)
    config = base.replace(optimizer="sgd", learning_rate=0.05)
    layer = make_layer(4, 400, False, config)
    layer.arrays["bias"][:, 0] = np.linspace(-300, 300, 400)[::order]
    x, matrix = dense_input(20, 4, 1)
    reference, active, targets = ReferenceLayer(layer, config), layer.everything(20), make_targets(20, 400, 1, True)
    activity = Activity.of(active, 400)
    expected_loss, dz = softmax_loss(reference.forward(matrix, activity), activity, targets.matrix)
    labels = _core.FoundLabels(active, targets.indptr, targets.indices, targets.values)
    dx = np.full_like(x.values, np.nan)
    kept = np.full(layer.native.kept_size(active), np.nan, np.float32) if keep else None
    finite, loss, _ = softmax_learn(layer, x, active, labels, dx, 1 / 20, kept)
    expected_dx = reference.learn(matrix, np.ones_like(matrix, bool), activity, dz / 20, 0.05)
    assert finite
    assert_allclose(loss, expected_loss, rtol=1e-5)
    assert_allclose(dx[:, :4], expected_dx, rtol=1e-3, atol=1e-5)
    assert_same_state(layer, reference)


def test_initial_weights_have_the_requested_deviation_and_zero_padding():
    value = np.full((500, padded(130)), np.nan, np.float32)
    _core.initialise(value, 130, 0.25, 9)
    assert not value[:, 130:].any()
    assert value[:, :130].std() == pytest.approx(0.25, rel=0.02)
    assert abs(value[:, :130].mean()) < 0.004
    again = np.empty((20, padded(130)), np.float32)
    _core.initialise(again, 130, 0.25, 9)
    assert_array_equal(again, value[:20])  # a weight depends on seed, row and column alone


def test_a_scratch_buffer_too_small_for_the_logits_is_refused():
    layer = make_layer(3, 70, False, base, 0)
    x, _ = dense_input(2, 3, 0)
    active = layer.everything(2)
    size = layer.native.kept_size(active)
    assert size == 2 * (64 * (128 + 16) + 16)  # two blocks of 64 neurons for 128 rows, and references
    with pytest.raises(ValueError, match="kept must have"):
        layer.native.softmax_forward(
            x.values, active, None, *np.zeros((2, 2), np.float32), kept=np.zeros(size - 1, np.float32)
        )


def test_labels_of_another_batch_are_refused():
    layer = make_layer(3, 70, False, base, 0)
    x, _ = dense_input(2, 3, 0)
    one, ids, targets = np.array([0, 1]), np.array([5], np.int32), np.ones(1, np.float32)
    labels = _core.FoundLabels(layer.everything(1), one, ids, targets)
    with pytest.raises(ValueError, match="labels must be those of the active set"):
        layer.native.softmax_forward(x.values, layer.everything(2), labels, *np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="an id is out of range"):
        _core.FoundLabels(layer.everything(1), one, np.array([70], np.int32), targets)


def test_parts_of_a_batch_begin_at_multiples_of_128():
    layer = make_layer(3, 70, False, base, 0)
    x, _ = dense_input(150, 3, 0)
    with pytest.raises(ValueError, match="multiple of 128"):
        layer.native.softmax_forward(x.values, layer.everything(150), None, *np.zeros((2, 150), np.float32), begin=64)


def test_layers_for_prediction_refuse_to_learn():
    config = Config(hidden=(4,), output="full")
    trained = Network(config, 6, 3)
    network = Network(config, 6, 3, trainable=False, weights=trained.state())
    x, _ = dense_input(2, 4, 0)
    with pytest.raises(ValueError, match="prediction only"):
        network.output.learn(x, network.output.everything(2), np.zeros((2, 3), np.float32))
    with pytest.raises(ModelError, match=r"layer1\.weights"):
        Network(config, 6, 4, trainable=False, weights=trained.state())
