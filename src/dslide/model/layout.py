"""The layers of a network, as its options describe them: the one walk over layers that everything else uses."""

from __future__ import annotations

from dataclasses import dataclass

from dslide.model.defaults import ResolvedConfig
from dslide.model.hash_parameters import HashParameters, hash_parameters, training_family


@dataclass(frozen=True)
class LayerSpec:
    """One layer, of all ranks together."""

    index: int
    inputs: int
    neurons: int
    sparse_input: bool  # the network's input, or behind a sampled layer
    share: float  # of the neurons that are active for a row; 1 for the output layer, where it is not set by a share
    is_output: bool
    hashing: HashParameters | None  # of a sampled layer: its LSH tables in training

    @property
    def name(self) -> str:
        return f"layer{self.index}"

    @property
    def sampled(self) -> bool:
        """Whether active neurons are looked up in hash tables."""
        return self.hashing is not None

    @property
    def parameters(self) -> int:
        """Weights and biases, padding not counted."""
        return self.inputs * self.neurons + self.neurons


def layer_specs(config: ResolvedConfig, features: int, labels: int) -> list[LayerSpec]:
    """The layers from the input to the output."""
    specs: list[LayerSpec] = []
    inputs, sparse_input = features, bool(config.hidden)  # without hidden layers rows are taken as dense ones
    for i, neurons in enumerate([*config.hidden, labels]):
        is_output = i == len(config.hidden)
        share = 1.0 if is_output else config.hidden_share[i]
        sampled = config.output == "lsh" if is_output else share < 1
        hashing = hash_parameters(config, neurons, inputs, training_family(config.family)) if sampled else None
        specs.append(LayerSpec(i, inputs, neurons, sparse_input, share, is_output, hashing))
        inputs, sparse_input = neurons, sampled
    return specs
