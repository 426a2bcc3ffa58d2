"""Gradients of whole networks against finite differences, and whole training against the slow network.

With SGD a step is rate * gradient, so the gradient can be read off the weights. Active sets are those the network
chose: losses are differentiated with them held fixed, as the network does it.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference.network import ReferenceNetwork, softmax_loss
from support.layer_cases import make_targets, sparse_input
from support.plain import PLAIN
from support.recording import Recording

from dslide import _core
from dslide.config import Config
from dslide.model.random_streams import Stream, stream_seed
from dslide.util.csr import Csr

FEATURES, LABELS, ROWS = 12, 20, 7
RATE = 64.0  # a power of two: dividing by it is exact; gradients don't depend on it
NUDGE = 1e-6
ERROR = 1e-4  # of a layer's gradient: largest difference over largest element


def make_batch(seed, loss):
    x, matrix, present = sparse_input(ROWS, FEATURES, seed)
    targets = make_targets(ROWS, LABELS, seed, loss == "softmax")
    return x, matrix, present, Csr(targets.indptr, targets.indices, targets.values), targets.matrix


def make_network(**options) -> Recording:
    network = Recording(Config(**PLAIN | options), FEATURES, LABELS)
    rng = np.random.default_rng(4)
    for layer in network.layers:
        layer.arrays["bias"][:] = 0.2 * rng.standard_normal(layer.arrays["bias"].shape)
        if layer.sparse_input:  # larger than the default, so that gradients of later layers are
            layer.arrays["weights"][:, : layer.neurons] *= 5
    return network


def weights_of(network):
    """Weights (inputs, neurons) and bias of each layer, without padding."""
    for layer in network.layers:
        stored = layer.arrays["weights"].astype(np.float64)
        yield stored[:, : layer.neurons] if layer.sparse_input else stored[:, : layer.inputs].T
        yield layer.arrays["bias"][:, 0].astype(np.float64)


def central_differences(loss_of, array):
    gradient = np.empty_like(array)
    for at in np.ndindex(array.shape):
        kept = array[at]
        array[at] = kept + NUDGE
        above = loss_of()
        array[at] = kept - NUDGE
        gradient[at] = (above - loss_of()) / (2 * NUDGE)
        array[at] = kept
    return gradient


HIDDEN = [(9,), (9, 17), (9, 17, 6)]
OUTPUTS = {
    "full": {"output": "full"},
    "lsh-shared": {"output": "lsh", "hash_hits": 2, "random_negatives": 5},
    "lsh-row": {"output": "lsh", "active_sets": "row", "hash_hits": 4, "random_negatives": 5},
    "random": {"output": "random", "random_negatives": 6},
    "uncorrected": {"output": "lsh", "active_sets": "row", "hash_hits": 4, "random_negatives": 5, "correction": False},
}
CASES = [
    {"hidden": hidden, "activation": activation, "loss": loss, **OUTPUTS[output]}
    for hidden, activation, loss, output in [
        *((h, a, s, "full") for h in HIDDEN for a in ("relu", "linear") for s in ("softmax", "sigmoid")),
        *((h, "relu", s, o) for h in HIDDEN[:2] for s in ("softmax", "sigmoid") for o in list(OUTPUTS)[1:]),
        *((HIDDEN[2], "linear", s, o) for s in ("softmax", "sigmoid") for o in ("lsh-shared", "lsh-row")),
    ]
]
SAMPLED_HIDDEN = [
    {"hidden": hidden, "hidden_share": share, "activation": activation, "loss": loss, **OUTPUTS[output]}
    for hidden, share in [((17,), (0.6,)), ((17, 9), (0.5, 1.0)), ((9, 17), (1.0, 0.5)), ((17, 17), (0.6, 0.6))]
    for activation, loss, output in [
        ("relu", "softmax", "full"),
        ("relu", "sigmoid", "lsh-row"),
        ("linear", "softmax", "lsh-shared"),
        ("linear", "softmax", "lsh-row"),
        ("relu", "sigmoid", "lsh-shared"),
    ]
]


def name_of(case):
    return "-".join(f"{'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for v in case.values())


@pytest.mark.parametrize("case", CASES + SAMPLED_HIDDEN, ids=name_of)
def test_gradients_are_those_of_finite_differences(case):
    network = make_network(optimizer="sgd", **case)
    reference = ReferenceNetwork(network)
    x, matrix, _, labels, targets = make_batch(11, case["loss"])
    before = [array.copy() for array in weights_of(network)]
    result = network.train_step(x, labels, 0, RATE)
    activities = network.chosen
    if "hidden_share" in case or case["output"] != "full":
        assert not all(a.mask.all() for a in activities)  # something was sampled

    def loss_of():
        return reference.loss(matrix, targets, activities)

    assert result.loss == pytest.approx(loss_of(), rel=1e-5)
    numbers = [part for layer in reference.layers for part in (layer.weights, layer.bias)]
    for old, new, part in zip(before, weights_of(network), numbers, strict=True):
        got, expected = (old - new) / RATE, central_differences(loss_of, part.value)
        assert np.abs(expected).max() > 1e-4  # there is a gradient to compare with
        assert np.abs(got - expected).max() < ERROR * np.abs(expected).max()


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
@pytest.mark.parametrize("case", [CASES[0], CASES[5], CASES[13], *CASES[-4:], *SAMPLED_HIDDEN], ids=name_of)
def test_training_is_that_of_the_slow_network(case, optimizer):
    """Eight steps, hash tables renewed in between: losses and all state."""
    network = make_network(optimizer=optimizer, weight_decay=0.05, epsilon=1e-2, beta1=0.8, beta2=0.95, **case)
    reference = ReferenceNetwork(network)
    for step in range(8):
        x, matrix, present, labels, targets = make_batch(100 + step, case["loss"])
        if step == 4:
            network.rebuild_tables()
        result = network.train_step(x, labels, step, 0.05)
        loss = reference.train_step(matrix, present, targets, network.chosen, 0.05)
        assert result.loss == pytest.approx(loss, rel=1e-4)
    for layer, slow in zip(network.layers, reference.layers, strict=True):
        expected = slow.arrays()
        for name, array in layer.arrays.items():
            width = expected[name].shape[-1]
            assert_allclose(array[..., :width], expected[name], rtol=1e-3, atol=1e-4, err_msg=f"{layer.name} {name}")
            if array.ndim == 2:
                assert not array[:, width:].any()


@pytest.mark.parametrize("share", [(), (0.5,)])
def test_dropout_leaves_out_and_scales_up_the_same_in_both_directions(share):
    """With dropout the network is one whose activations are multiplied by a mask: rebuild the mask, compare gradients
    of the output layer's input weights and of the first layer."""
    network = make_network(hidden=(16,), hidden_share=share, optimizer="sgd", output="full", dropout_hidden=0.5,
                           dropout_input=0.3, activation="relu", loss="softmax")  # fmt: skip
    reference = ReferenceNetwork(network)
    x, whole, _, labels, targets = make_batch(11, "softmax")
    dropped = network.step.drop_inputs(x, 3)
    matrix = np.zeros((ROWS, FEATURES))
    matrix[np.repeat(np.arange(ROWS), np.diff(dropped.indptr)), dropped.indices] = dropped.values
    kept = matrix != 0
    assert kept.sum() == len(dropped.indices)  # what is left out is not there at all
    assert_allclose(matrix[kept], (whole / 0.7)[kept], rtol=1e-6)
    assert 0 < kept.sum() < np.count_nonzero(whole)
    mask = np.ones((ROWS, 16), np.float32)
    _core.dropout_dense(mask, 16, 0.5, stream_seed(network.config.seed, Stream.HIDDEN_DROPOUT, 3))
    assert set(np.unique(mask)) == {0.0, 2.0}
    before = list(weights_of(network))
    network.train_step(x, labels, 3, RATE)
    hidden, out = network.chosen
    first, second = reference.layers

    def loss_of():
        a = np.maximum(first.forward(matrix, hidden), 0) * mask
        return softmax_loss(second.forward(a, out), out, targets)[0] / ROWS

    for old, new, part in zip(before, weights_of(network), [first.weights, first.bias, second.weights, second.bias],
                              strict=True):  # fmt: skip
        expected = central_differences(loss_of, part.value)
        assert np.abs((old - new) / RATE - expected).max() < ERROR * np.abs(expected).max()
