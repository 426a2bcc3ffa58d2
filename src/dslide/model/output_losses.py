"""Losses of the output layer, a class each: targets, initial biases, and one step of the output layer.

Where the output layer's input is dense and the rows of a batch share their active neurons, loss and step are fused in
native passes over the active neurons (src/core/layers/). Otherwise logits are computed slot by slot (active_sets.py).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dslide import _core
from dslide._core import ActiveSet, FoundLabels
from dslide.comm.future import Future
from dslide.model.activations import Activations, Dense
from dslide.model.active_sets import of_rows
from dslide.model.collectives import Collectives
from dslide.model.label_prior import prior_logits
from dslide.model.layer import Layer
from dslide.util.arrays import Floats, aligned_empty
from dslide.util.csr import Csr

KEPT_BYTES = 64 << 20  # a batch's logits are kept from the first pass to the second if they take no more

Parts = Sequence[tuple[int, int]]  # micro-batches: first row and end of each


@dataclass(frozen=True)
class OutputStep:
    """One step of the output layer."""

    finite: bool  # all gradients are
    loss: float  # of own labels, summed over rows
    gradient: Future[Floats]  # of own activations of the layer before, summed over ranks


class OutputLoss(abc.ABC):
    """A loss over the active neurons of the output layer, and its step."""

    needs_labels: bool  # rows without labels have no loss

    def __init__(self, layer: Layer, collectives: Collectives, passes_gradient: bool = True) -> None:
        """`passes_gradient`: whether a layer before wants the gradient of its activations."""
        self.layer, self.collectives, self.passes_gradient = layer, collectives, passes_gradient
        self._scratch: Floats = np.empty(0, np.float32)

    @staticmethod
    @abc.abstractmethod
    def targets(y: Csr) -> Csr:
        """Label weights as training targets."""

    @staticmethod
    @abc.abstractmethod
    def initial_bias(frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Biases with which an untrained network predicts every label as often as it occurs."""

    def learn(self, x: Activations, active: ActiveSet, own: Csr, parts: Parts) -> OutputStep:
        """Computes the loss of rows with targets for own neurons, and steps the output layer. Gradients of a
        micro-batch cross the network while the next one is computed."""
        if isinstance(x, Dense) and not active.is_per_row:
            return self.learn_fused(x, active, self.find_labels(active, own), parts)
        z = self.layer.forward(x, active)
        slots = np.ascontiguousarray(z[:, : self.layer.neurons]).reshape(-1) if active.is_everything else z.reshape(-1)
        loss = self.slot_gradient(active, slots, own, 1 / x.rows)
        dz = slots.reshape((x.rows, -1) if active.is_everything else (1, -1))
        finite, dx = self.layer.learn(x, active, dz)
        assert dx is not None
        return OutputStep(finite, loss, self._reduce(x, dx if self.passes_gradient else None))

    def find_labels(self, active: ActiveSet, own: Csr) -> FoundLabels:
        """Where the active set has the rows' labels."""
        return FoundLabels(active, own.indptr, own.indices, own.values)

    @abc.abstractmethod
    def learn_fused(self, x: Dense, active: ActiveSet, labels: FoundLabels, parts: Parts) -> OutputStep:
        """As `learn`, by the native passes."""

    @abc.abstractmethod
    def slot_gradient(self, active: ActiveSet, slots: Floats, own: Csr, scale: float) -> float:
        """Replaces logits by their gradients, times `scale`; returns the loss of own labels."""

    @abc.abstractmethod
    def gradient(self, x: Dense, active: ActiveSet, own: Csr, scale: float) -> tuple[float, Floats]:
        """As `exact`, with the gradient of `x` by the sum of losses, times `scale`: this rank's share of it."""

    @abc.abstractmethod
    def log_probabilities(self, x: Dense, active: ActiveSet, own: Csr) -> Floats:
        """The logarithms of own labels' probabilities over all neurons, which `active` is: a value per element."""

    @abc.abstractmethod
    def exact(self, h: Activations, active: ActiveSet, own: Csr) -> float:
        """What own labels add to the rows' losses over all neurons: `active` is all of them."""

    def _input_gradient(self, x: Dense) -> Floats | None:
        """Memory for the gradient of the layer's input, if that is wanted."""
        return np.empty_like(x.values) if self.passes_gradient else None

    def _reduce(self, x: Activations, dx: Floats | None) -> Future[Floats]:
        if dx is None:
            return Future.done(np.zeros((0, 0), np.float32))
        return self.collectives.reduce_scatter(f"gradients before {self.layer.name}", x, dx, self.layer.inputs)

    def _reduced(self, parts: list[Future[Floats]]) -> Future[Floats]:
        return parts[0] if len(parts) == 1 else Future(lambda: np.concatenate([part.wait() for part in parts]))

    def _keep(self, active: ActiveSet) -> Floats | None:
        """Scratch for what the first pass keeps for the second, reused by all steps; None if it would be too large."""
        size = self.layer.native.kept_size(active)
        if 4 * size > KEPT_BYTES:
            return None
        if len(self._scratch) < size:
            self._scratch = aligned_empty(1, size)[0]
        return self._scratch

    def _label_logits(self, h: Activations, own: Csr) -> Floats:
        """The logits of own labels: a value per element."""
        return self.layer.forward(h, of_rows(own, self.layer.neurons)).reshape(-1)

    def _logits(self, h: Activations, active: ActiveSet) -> Floats:
        """Of all own neurons, row by row, without padding."""
        z = self.layer.forward(h, active)[:, : self.layer.neurons]
        return np.ascontiguousarray(z).reshape(-1)


class SoftmaxLoss(OutputLoss):
    """Cross-entropy; a row's targets are its labels in proportion to their weights."""

    needs_labels = True

    @staticmethod
    def targets(y: Csr) -> Csr:
        return Csr(y.indptr, y.indices, _core.row_shares(y.indptr, y.values))

    @staticmethod
    def initial_bias(frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        shares: npt.NDArray[np.float64] = frequencies / frequencies.sum()
        return np.log(shares)

    def learn_fused(self, x: Dense, active: ActiveSet, labels: FoundLabels, parts: Parts) -> OutputStep:
        """Normalisers cross the network while the next micro-batch's are computed, and gradients while weights step."""
        layer, rows, scale, kept = self.layer, x.rows, 1 / x.rows, self._keep(active)
        reference, total, log_norm = (np.empty(rows, np.float32) for _ in range(3))
        dx = self._input_gradient(x)
        normalisers, gradients, loss = [], [], 0.0
        for begin, end in parts:
            layer.softmax_forward(x, active, labels, reference, total, dx, kept, begin, end)
            normalisers.append(self.collectives.log_normaliser(reference[begin:end], total[begin:end]))
        for (begin, end), normaliser in zip(parts, normalisers, strict=True):
            log_norm[begin:end] = normaliser.wait()
            loss += layer.softmax_backward(active, labels, reference, log_norm, scale, dx, begin, end)
            gradients.append(self._reduce(x.part(begin, end), None if dx is None else dx[begin:end]))
        finite = layer.softmax_step(x, active, labels, log_norm, scale, kept)
        return OutputStep(finite, loss, self._reduced(gradients))

    def slot_gradient(self, active: ActiveSet, slots: Floats, own: Csr, scale: float) -> float:
        log_norm = self._log_normaliser(active, slots)
        return _core.softmax_gradient(active, slots, own.indptr, own.indices, own.values, log_norm, scale)

    def exact(self, h: Activations, active: ActiveSet, own: Csr) -> float:
        log_norm = (
            self._dense_normaliser(h, active)
            if isinstance(h, Dense)
            else self._log_normaliser(active, self._logits(h, active))
        )
        z = self._label_logits(h, own) + prior_logits(active, own, self.layer.neurons)
        return float(own.values @ (log_norm[own.row_numbers()].astype(np.float64) - z))

    def gradient(self, x: Dense, active: ActiveSet, own: Csr, scale: float) -> tuple[float, Floats]:
        labels, dx = self.find_labels(active, own), np.empty_like(x.values)
        reference, total = self._sums(x.rows)
        self.layer.softmax_forward(x, active, labels, reference, total, dx)
        log_norm = self.collectives.log_normaliser(reference, total).wait()
        return self.layer.softmax_backward(active, labels, reference, log_norm, scale, dx, 0, x.rows), dx

    def log_probabilities(self, x: Dense, active: ActiveSet, own: Csr) -> Floats:
        return self._label_logits(x, own) - self._dense_normaliser(x, active)[own.row_numbers()]

    def _dense_normaliser(self, x: Dense, active: ActiveSet) -> Floats:
        reference, total = self._sums(x.rows)
        self.layer.softmax_forward(x, active, None, reference, total)
        return self.collectives.log_normaliser(reference, total).wait()

    def _log_normaliser(self, active: ActiveSet, slots: Floats) -> Floats:
        reference, total = self._sums(active.rows)
        _core.softmax_stats(active, slots, reference, total)
        return self.collectives.log_normaliser(reference, total).wait()

    @staticmethod
    def _sums(rows: int) -> tuple[Floats, Floats]:
        return np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32)


class SigmoidLoss(OutputLoss):
    """Binary cross-entropy, summed over neurons: an independent yes or no for every label."""

    needs_labels = False

    @staticmethod
    def targets(y: Csr) -> Csr:
        return y

    @staticmethod
    def initial_bias(frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Nearly every answer is no, and steps of a usual size would take long to learn that."""
        return np.log(frequencies / (1 - frequencies))

    def learn_fused(self, x: Dense, active: ActiveSet, labels: FoundLabels, parts: Parts) -> OutputStep:
        """With several ranks gradients cross the network while the next micro-batch's are computed and weights step."""
        layer, scale, dx = self.layer, 1 / x.rows, self._input_gradient(x)
        kept = self._keep(active) if self.collectives.shard.size > 1 else None
        if kept is None:
            finite, loss = layer.sigmoid_learn(x, active, labels, scale, dx)
            return OutputStep(finite, loss, self._reduce(x, dx))
        gradients, loss = [], 0.0
        for begin, end in parts:
            loss += layer.sigmoid_backward(x, active, labels, scale, dx, kept, begin, end)
            gradients.append(self._reduce(x.part(begin, end), None if dx is None else dx[begin:end]))
        return OutputStep(layer.sigmoid_step(x, active, kept), loss, self._reduced(gradients))

    def slot_gradient(self, active: ActiveSet, slots: Floats, own: Csr, scale: float) -> float:
        return _core.sigmoid_gradient(active, slots, own.indptr, own.indices, own.values, scale)

    def gradient(self, x: Dense, active: ActiveSet, own: Csr, scale: float) -> tuple[float, Floats]:
        dx, kept = np.empty_like(x.values), aligned_empty(1, self.layer.native.kept_size(active))[0]
        labels = self.find_labels(active, own)
        return self.layer.sigmoid_backward(x, active, labels, scale, dx, kept, 0, x.rows), dx

    def log_probabilities(self, x: Dense, active: ActiveSet, own: Csr) -> Floats:
        return -np.logaddexp(0, -self._label_logits(x, own))

    def exact(self, h: Activations, active: ActiveSet, own: Csr) -> float:
        return self.slot_gradient(active, self._logits(h, active), own, 1.0)


OUTPUT_LOSSES: dict[str, type[OutputLoss]] = {"softmax": SoftmaxLoss, "sigmoid": SigmoidLoss}
