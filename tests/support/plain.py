"""Options for tests that compare numbers or learning, so that changed defaults do not change these tests."""

from __future__ import annotations

from typing import Any

PLAIN: dict[str, Any] = {
    "optimizer": "adam", "learning_rate": 0.01, "dropout_input": 0.0, "dropout_hidden": 0.0, "prior_labels": 0,
    "prior_learning_rate": 0.0, "prior_hits": 0, "activation": "relu", "loss": "softmax", "batch_size": 256,
    "epochs": 5,
}  # fmt: skip
PLAIN_ARGUMENTS = [  # those of them that decide how a network learns, on the command line
    word
    for name in ("optimizer", "learning_rate", "dropout_input", "dropout_hidden", "prior_labels")
    for word in (f"--{name.replace('_', '-')}", str(PLAIN[name]))
]
