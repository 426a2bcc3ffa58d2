"""The recipe for GND with one option changed at a time."""

from __future__ import annotations

from typing import Any

from bench.accuracy.sets import DataSet
from bench.lib.sections import Comparison, Metric, Section
from bench.lib.training import MEMORY, SECONDS

ABLATION_OF = "gnd"
ABLATION: dict[str, dict[str, Any]] = {  # changed options
    "as the recipe": {},
    "full softmax": {"output": "full"},
    "hash hits and random negatives": {"output": "lsh"},
    "hash hits only": {"output": "lsh", "random_negatives": 0},
    "2,048 random negatives": {"output": "random", "random_negatives": 2048},
    "labels of the batch only": {"output": "random", "random_negatives": 0},
    "corrected": {"correction": True},
    "no label prior": {"prior_labels": 0},
    "label prior counted only": {"prior_learning_rate": 0},
    "no labels looked up by the prior": {"prior_hits": 0},
    "prior power .5": {"prior_power": 0.5},
    "no dropout": {"dropout_input": 0, "dropout_hidden": 0},
    "dropout of inputs only": {"dropout_hidden": 0},
    "dropout of hidden only": {"dropout_input": 0},
    "hidden 128": {"hidden": 128},
    "hidden 256": {"hidden": 256},
    "hidden 1,024": {"hidden": 1024},
    "sigmoid": {"loss": "sigmoid"},
    "ReLU": {"activation": "relu"},
    "Adam .01": {"optimizer": "adam", "learning_rate": 0.01},
}
ACTIVE = Metric("active_neurons_mean", "active outputs")


def ablation(data: DataSet) -> Section:
    """One change at a time."""
    systems = [data.with_recipe(name, changes) for name, changes in ABLATION.items()]
    return Section(
        "ablation",
        f"`{data.command()} --config recipes/{ABLATION_OF}.toml`, with one change at a time. Ways of sampling are to "
        "be compared at equal cost: see their seconds and active outputs.",
        systems,
        [*data.kind.metrics, SECONDS, ACTIVE, MEMORY[0]],
        [Comparison(system, systems[0], data.kind.metrics[0], "difference") for system in systems[1:]],
    )
