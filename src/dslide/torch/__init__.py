"""The output layer as a module of PyTorch: behind any encoder, over any number of ranks. Needs the extra `torch`."""

from __future__ import annotations

from dslide.torch.output_layer import OutputLayer, TopK
from dslide.torch.output_optimizer import OutputOptimizer
from dslide.torch.ranks import communicator

__all__ = ["OutputLayer", "OutputOptimizer", "TopK", "communicator"]
