"""The output layer as a module of PyTorch: behind any encoder, over any number of ranks. Needs the extra `torch`."""

from __future__ import annotations

try:
    from torch.library import custom_op as _needed  # noqa: F401
except ImportError as error:
    raise ImportError("dslide.torch needs PyTorch 2.4 or newer: pip install 'dslide[torch]'") from error

from dslide.torch.output_layer import OutputLayer, TopK
from dslide.torch.output_optimizer import OutputOptimizer
from dslide.torch.ranks import communicator

__all__ = ["OutputLayer", "OutputOptimizer", "TopK", "communicator"]
