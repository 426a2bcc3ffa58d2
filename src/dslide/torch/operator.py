"""The loss of an output layer as an operator of PyTorch. torch.compile puts it into its graphs without looking inside,
and autograd gets the gradient that the operator returned with the loss."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from dslide.torch.output_layer import OutputLayer

_layers: weakref.WeakValueDictionary[int, OutputLayer] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def registered(layer: OutputLayer) -> int:
    """The number by which the operator finds a layer."""
    number = next(_numbers)
    _layers[number] = layer
    return number


# `steps`: steps done before. It differs from call to call, so that no compiler takes two of them for the same.
_SCHEMA = (
    "(Tensor h, Tensor[] labels, Tensor steps, int layer, bool learns, bool with_gradient, str problem) "
    "-> (Tensor, Tensor)"
)


@torch.library.custom_op("dslide::output_loss", mutates_args=(), schema=_SCHEMA)
def output_loss(
    h: torch.Tensor, labels: list[torch.Tensor], steps: torch.Tensor, layer: int, learns: bool, with_gradient: bool,
    problem: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The loss of vectors (rows, in_features), and its gradient for them; the latter is empty if it isn't wanted.
    `learns`: the layer's rows are stepped. `problem`: why the arguments can't be used."""
    return _layers[layer]._loss(h, labels, int(steps), learns, with_gradient, problem)


@output_loss.register_fake
def _(
    h: torch.Tensor, labels: list[torch.Tensor], steps: torch.Tensor, layer: int, learns: bool, with_gradient: bool,
    problem: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return h.new_empty(()), h.new_empty(h.shape if with_gradient else (0,))


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.labels = len(inputs[1])


def _backward(ctx: Any, of_loss: torch.Tensor, of_gradient: torch.Tensor) -> tuple[Any, ...]:
    (gradient,) = ctx.saved_tensors
    return of_loss * gradient, [None] * ctx.labels, None, None, None, None, None


output_loss.register_autograd(_backward, setup_context=_keep_gradient)
