"""A slow, obvious network: every matrix dense and in float64, an active set a mask with weights.

The random choices of the fast network (its active sets) are taken from it as `Activity`; everything that follows from
them (logits, losses, gradients, optimizer steps) is computed here. Dropout is not covered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide.config import Config
from dslide.model.layer import Layer
from dslide.model.network import Network
from dslide.model.storage import widened

Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def slots_of(active: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and neuron of each slot of an active set."""
    if active.is_per_row:
        rows = np.repeat(np.arange(active.rows), np.diff(active.row_begin))
        return rows, active.ids[active.position].astype(np.int64)
    return np.repeat(np.arange(active.rows), len(active.ids)), np.tile(active.ids.astype(np.int64), active.rows)


@dataclass
class Activity:
    """Which neurons each row sees and what weight they have there, 0 for the others: (rows, neurons) both."""

    mask: Mask
    weight: Matrix

    @classmethod
    def of(cls, active: Any, neurons: int) -> Activity:
        rows, ids = slots_of(active)
        weight = np.zeros((active.rows, neurons))
        logs = active.log_weight if active.is_per_row else np.tile(active.log_weight, active.rows)
        weight[rows, ids] = np.exp(logs.astype(np.float64))
        return cls(weight > 0, weight)


def to_slots(active: Any, matrix: Matrix) -> npt.NDArray[np.float32]:
    """A (rows, neurons) matrix in the layout of the active set's slots."""
    return matrix[slots_of(active)].astype(np.float32)


def from_slots(active: Any, slots: npt.NDArray[np.float32], neurons: int) -> Matrix:
    """The inverse of `to_slots`; 0 where a neuron is not active."""
    matrix = np.zeros((active.rows, neurons))
    matrix[slots_of(active)] = slots.reshape(-1)
    return matrix


def softmax_loss(z: Matrix, activity: Activity, targets: Matrix) -> tuple[float, Matrix]:
    """Loss summed over rows and its gradient by z; each row of targets sums to 1."""
    with np.errstate(divide="ignore"):
        shifted = np.where(activity.mask, z + np.log(activity.weight), -np.inf)
    top = shifted.max(axis=1, keepdims=True)
    log_norm = top + np.log(np.exp(shifted - top).sum(axis=1, keepdims=True))
    return float((targets * (log_norm - z)).sum()), np.exp(shifted - log_norm) - targets


def sigmoid_loss(z: Matrix, activity: Activity, targets: Matrix) -> tuple[float, Matrix]:
    """As softmax_loss; labels are the neurons with a target, their "yes" counts with it as weight."""
    no, yes = np.logaddexp(0, z), np.logaddexp(0, -z)
    chance = 1 / (1 + np.exp(-z))
    label = targets > 0
    loss = np.where(label, targets * yes, activity.weight * no)
    return float(loss.sum()), np.where(label, targets * (chance - 1), activity.weight * chance)


LOSSES = {"softmax": softmax_loss, "sigmoid": sigmoid_loss}


class Numbers:
    """Trainable numbers and their moments."""

    def __init__(self, value: Matrix, config: Config):
        self.value, self.config = value, config
        self.moment1, self.moment2 = np.zeros_like(value), np.zeros_like(value)

    def step(self, gradient: Matrix, touched: Mask, clock: Matrix, rate: float) -> None:
        """One step on the touched numbers; `clock` says how often each one's row was updated before."""
        c = self.config
        m, v = self.moment1, self.moment2
        if c.optimizer == "adam":
            m, v = c.beta1 * m + (1 - c.beta1) * gradient, c.beta2 * v + (1 - c.beta2) * gradient**2
            mean, square = m / (1 - c.beta1 ** (clock + 1)), v / (1 - c.beta2 ** (clock + 1))
            change = mean / (np.sqrt(square) + c.epsilon)
        elif c.optimizer == "adagrad":
            v = v + gradient**2
            change = np.where(touched, gradient / np.where(touched, np.sqrt(v) + c.epsilon, 1), 0)
        else:
            change = gradient
        new = self.value * (1 - rate * c.weight_decay) - rate * change
        self.value = np.where(touched, new, self.value)
        self.moment1, self.moment2 = np.where(touched, m, self.moment1), np.where(touched, v, self.moment2)


class ReferenceLayer:
    """A layer with weights (inputs, neurons), whatever orientation the fast one has; `input_major`: the clocks of the
    weights are those of inputs, not of neurons."""

    def __init__(self, layer: Layer, config: Config):
        stored = widened(layer.arrays["weights"]).astype(np.float64)
        width = layer.neurons if layer.sparse_input else layer.inputs
        self.input_major = layer.sparse_input
        self.weights = Numbers(stored[:, :width] if self.input_major else stored[:, :width].T, config)
        self.bias = Numbers(layer.arrays["bias"][:, 0].astype(np.float64), config)
        self.weights_clock = np.zeros(len(stored))
        self.bias_clock = np.zeros(layer.neurons)

    def forward(self, x: Matrix, activity: Activity) -> Matrix:
        """Logits, 0 where a neuron is not active."""
        return np.where(activity.mask, x @ self.weights.value + self.bias.value, 0)

    def learn(self, x: Matrix, present: Mask, activity: Activity, dz: Matrix, rate: float) -> Matrix:
        """One step along dz, which is 0 where a neuron is not active; returns the gradient of x. `present`: the inputs
        that a sparse row stores, with value 0 too."""
        dx = dz @ self.weights.value.T
        seen = activity.mask.any(axis=0)
        if self.input_major:
            rows, clock = present.any(axis=0), self.weights_clock[:, None]
            touched = present.astype(float).T @ activity.mask > 0
        else:
            rows, clock = seen, self.weights_clock[None, :]
            touched = np.tile(seen, (x.shape[1], 1))
        self.weights.step(x.T @ dz, touched, clock, rate)
        self.bias.step(dz.sum(axis=0), seen, self.bias_clock, rate)
        self.weights_clock = self.weights_clock + rows
        self.bias_clock = self.bias_clock + seen
        return dx

    def arrays(self) -> dict[str, Matrix]:
        """State under the names and in the orientation of `Layer.arrays`, without padding."""
        oriented = (lambda a: a) if self.input_major else np.transpose
        named = {"weights_clock": self.weights_clock, "bias_clock": self.bias_clock}
        for part in ("value", "moment1", "moment2"):
            suffix = "" if part == "value" else f"_{part}"
            named[f"weights{suffix}"] = oriented(getattr(self.weights, part))
            named[f"bias{suffix}"] = getattr(self.bias, part)[:, None]
        return named


class ReferenceNetwork:
    """A copy of a network that has not been trained yet."""

    def __init__(self, network: Network):
        self.config = network.config
        self.layers = [ReferenceLayer(layer, network.config) for layer in network.layers]

    def forward(
        self, x: Matrix, activities: list[Activity], added: Matrix | float = 0.0
    ) -> tuple[list[Matrix], Matrix]:
        """Inputs of each layer, and the logits; `added` is what the label prior adds to them."""
        inputs = [x]
        for layer, activity in zip(self.layers[:-1], activities[:-1], strict=True):
            z = layer.forward(inputs[-1], activity)
            inputs.append(np.maximum(z, 0) if self.config.activation == "relu" else z)
        return inputs, self.layers[-1].forward(inputs[-1], activities[-1]) + np.where(activities[-1].mask, added, 0)

    def loss(self, x: Matrix, targets: Matrix, activities: list[Activity], added: Matrix | float = 0.0) -> float:
        """Mean over rows."""
        _, z = self.forward(x, activities, added)
        return LOSSES[self.config.loss](z, activities[-1], targets)[0] / len(x)

    def logit_gradient(
        self, x: Matrix, targets: Matrix, activities: list[Activity], added: Matrix | float = 0.0
    ) -> Matrix:
        """Of the mean loss by the logits; 0 where a neuron is not active."""
        _, z = self.forward(x, activities, added)
        _, dz = LOSSES[self.config.loss](z, activities[-1], targets)
        return np.where(activities[-1].mask, dz, 0) / len(x)

    def train_step(
        self, x: Matrix, present: Mask, targets: Matrix, activities: list[Activity], rate: float,
        added: Matrix | float = 0.0,
    ) -> float:  # fmt: skip
        """One step; returns the loss before it."""
        inputs, z = self.forward(x, activities, added)
        total, _ = LOSSES[self.config.loss](z, activities[-1], targets)
        dz = self.logit_gradient(x, targets, activities, added)
        for i in range(len(self.layers) - 1, -1, -1):
            da = self.layers[i].learn(inputs[i], present if i == 0 else inputs[i] != 0, activities[i], dz, rate)
            if i > 0:
                slope = inputs[i] > 0 if self.config.activation == "relu" else 1.0
                dz = np.where(activities[i - 1].mask, da * slope, 0)
        return total / len(x)
