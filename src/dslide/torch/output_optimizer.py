"""An optimizer of PyTorch in form only, so that its schedulers set the learning rate of an output layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class OutputOptimizer(torch.optim.Optimizer):
    """Holds the learning rate of an output layer in `param_groups[0]["lr"]`, where schedulers of PyTorch set it. The
    layer steps its own rows in `forward`: `step` and `zero_grad` do nothing."""

    def __init__(self, learning_rate: float) -> None:
        nothing = torch.nn.Parameter(torch.empty(0))  # every optimizer needs a parameter
        super().__init__([nothing], {"lr": learning_rate})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Does nothing but call the closure, if there is one.

        Parameters
        ----------
        closure : callable, optional
            What computes the loss again.

        Returns
        -------
        Any
            What the closure gives, or None.
        """
        return None if closure is None else closure()
