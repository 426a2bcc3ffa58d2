"""The layers of a network, from its options and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from dslide.config import Config
from dslide.model.lsh import resolve_output


@dataclass(frozen=True)
class LayerSpec:
    """One layer, all ranks together."""

    name: str
    inputs: int
    neurons: int
    sparse_input: bool  # the data's features, or the activations of a sampled layer
    sampled: bool  # through hash tables
    share: float  # of neurons that are active for a row; 1 for the output layer
    is_output: bool


def layer_specs(config: Config, features: int, labels: int) -> list[LayerSpec]:
    """The layers, input to output; `config.hidden` must be decided."""
    shares = (*(config.hidden_share or (1.0,) * len(config.hidden)), 1.0)
    specs: list[LayerSpec] = []
    inputs, sparse_input = features, True
    for i, neurons in enumerate([*config.hidden, labels]):
        is_output = i == len(config.hidden)
        sampled = resolve_output(config, labels) == "lsh" if is_output else shares[i] < 1
        specs.append(LayerSpec(f"layer{i}", inputs, neurons, sparse_input, sampled, shares[i], is_output))
        inputs, sparse_input = neurons, sampled
    return specs
