"""With all neurons active, training is PyTorch's. (Needs the extra `torch`.)"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.layer_cases import make_targets
from support.plain import PLAIN

from dslide.config import Config
from dslide.model.network import Network
from dslide.util.csr import Csr

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

FEATURES, LABELS, ROWS, STEPS = 30, 50, 40, 10


def dense_batch(seed):
    """Rows with every feature, so that every row of the first layer's weights is touched at every step."""
    x = np.random.default_rng(seed).standard_normal((ROWS, FEATURES)).astype(np.float32)
    offsets = np.arange(ROWS + 1, dtype=np.int64) * FEATURES
    return x, Csr(offsets, np.tile(np.arange(FEATURES, dtype=np.int32), ROWS), x.reshape(-1).copy())


def torch_copy(network, activation):
    modules = []
    for layer in network.layers:
        linear = torch.nn.Linear(layer.inputs, layer.neurons)
        stored = layer.arrays["weights"]
        weights = stored[:, : layer.neurons].T if layer.sparse_input else stored[:, : layer.inputs]
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weights.copy()))
            linear.bias.copy_(torch.from_numpy(layer.arrays["bias"][:, 0].copy()))
        modules += [linear, torch.nn.ReLU() if activation == "relu" else torch.nn.Identity()]
    return torch.nn.Sequential(*modules[:-1])


def torch_loss(model, x, targets, loss):
    logits = model(torch.from_numpy(x))
    wanted = torch.from_numpy(targets.astype(np.float32))
    if loss == "softmax":
        return torch.nn.functional.cross_entropy(logits, wanted)
    weights = torch.where(wanted > 0, wanted, 1.0)  # a label's "yes" counts with its weight
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, (wanted > 0).float(), weights, reduction="none")
    return each.sum() / len(x)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("hidden", "activation"), [((32,), "relu"), ((17, 9), "relu"), ((24,), "linear")])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "adagrad"])
def test_training_equals_pytorch(optimizer, hidden, activation, loss):
    """Losses and weights to 1e-5 after ten steps, relative to the layer's largest weight."""
    decay = 0.1 if optimizer == "adamw" else 0.0
    # Adam divides a gradient by its own size: an epsilon above the gradients' rounding errors keeps those small.
    options = {
        "hidden": hidden, "activation": activation, "loss": loss, "output": "full", "init_scale": 2.0,
        "weight_decay": decay, "optimizer": "adam" if decay else optimizer,
        "epsilon": 1e-3 if optimizer.startswith("adam") else 1e-2,
    }  # fmt: skip
    config = Config(**PLAIN | options)
    rate = 0.05 if optimizer == "sgd" else 0.01
    network = Network(config, FEATURES, LABELS)
    model = torch_copy(network, activation)
    stepper = {
        "adam": lambda p: torch.optim.Adam(p, lr=rate, betas=(0.9, 0.999), eps=config.epsilon),
        "adamw": lambda p: torch.optim.AdamW(p, lr=rate, betas=(0.9, 0.999), eps=config.epsilon, weight_decay=decay),
        "sgd": lambda p: torch.optim.SGD(p, lr=rate),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=rate, eps=config.epsilon),
    }[optimizer](model.parameters())
    for step in range(STEPS):
        x, batch = dense_batch(step)
        targets = make_targets(ROWS, LABELS, step, loss == "softmax")
        result = network.train_step(batch, Csr(targets.indptr, targets.indices, targets.values), step, rate)
        stepper.zero_grad()
        expected = torch_loss(model, x, targets.matrix, loss)
        expected.backward()
        stepper.step()
        assert result.loss == pytest.approx(expected.item(), rel=1e-5)
    linears = [module for module in model if isinstance(module, torch.nn.Linear)]
    start = Network(config, FEATURES, LABELS)
    for layer, linear, first in zip(network.layers, linears, start.layers, strict=True):
        stored, width = layer.arrays["weights"], layer.neurons if layer.sparse_input else layer.inputs
        weights = linear.weight.detach().numpy()
        weights = weights.T if layer.sparse_input else weights
        assert_allclose(stored[:, :width], weights, rtol=1e-5, atol=1e-5 * np.abs(weights).max())
        assert_allclose(layer.arrays["bias"][:, 0], linear.bias.detach().numpy(), rtol=1e-5, atol=1e-6)
        assert np.abs(weights - first.arrays["weights"][:, :width]).max() > 1e-3  # they moved
