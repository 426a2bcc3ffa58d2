"""Why a label has its score: what each feature of the row adds to it.

A label's score before calibration is a sum: of the network's logit, of the label prior and of the label's linear
classifier. The latter two are sums over features already. So is the logit, but for biases, if hidden layers are linear.
With ReLU it is such a sum as long as the same hidden neurons are active as for this row; without the feature, others
might be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dslide.data import Features, SparseRows
from dslide.data.dense_rows import as_sparse
from dslide.errors import ConfigError, known_to_all
from dslide.model.activations import Dense
from dslide.model.label_prior import prior_logits, row_lengths
from dslide.model.network import Network
from dslide.model.prediction import hidden_activations
from dslide.training.inference import Model
from dslide.util.arrays import Floats, Ids
from dslide.util.csr import Lists


@dataclass(frozen=True)
class Reason:
    """What a feature of a row adds to a label's score before calibration, in all and through each part of the model."""

    feature: str  # its name, or its number as a text
    score: float
    hidden: float  # through the hidden layers
    prior: float  # through the label prior
    linear: float  # through the label's linear classifier

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def explain(model: Model, rows: Features, labels: Sequence[int], count: int) -> list[list[Reason]]:
    """For each of some labels of one row, by column number, the `count` features that moved its score most."""
    x = as_sparse(rows)
    parts = contributions(model.network, x, np.array(labels, np.int32))
    names = feature_names(model)
    reasons: list[list[Reason]] = []
    for column in range(len(labels)):
        each = np.stack([part[:, column] for part in parts], axis=1)  # (features of the row, parts)
        total = each.sum(axis=1)
        order = np.argsort(-np.abs(total), kind="stable")[:count]
        reasons.append(
            [
                Reason(
                    _name(names, int(x.indices[place]), model.saved.base), float(total[place]), *map(float, each[place])
                )
                for place in order
                if total[place] != 0
            ]
        )
    return reasons


def contributions(network: Network, x: SparseRows, labels: Ids) -> tuple[Floats, Floats, Floats]:
    """What each feature of one row adds to the scores of some labels before calibration, (features of the row, labels)
    each: through the hidden layers, the label prior and the linear classifiers."""
    if network.shard.size > 1:
        raise known_to_all(ConfigError("why: predictions are explained by one process, not by several ranks"))
    features = len(x.indices)
    each = SparseRows(np.arange(features + 1), x.indices, x.values, x.columns)  # a row for each feature
    prior = linear = np.zeros((features, len(labels)), np.float32)
    if prior.size == 0:
        return prior, prior, prior
    if network.prior is not None:
        active = network.output.everything(features)
        lengths = np.repeat(row_lengths(x), features)
        network.prior.add(each, lengths, active, boost=network.config.prior_boost)
        pairs = Lists(np.arange(features + 1) * len(labels), np.tile(labels, features))
        prior = prior_logits(active, pairs, network.output.neurons).reshape(features, len(labels))
    if network.linear is not None:
        alone = network.linear.scores(each, np.tile(labels, (features, 1))) - network.linear.arrays["bias"][labels]
        linear = alone * (np.abs(x.values) / row_lengths(x)).astype(np.float32)[:, None]
    return _through_hidden(network, x, labels), prior, linear


def _through_hidden(network: Network, x: SparseRows, labels: Ids) -> Floats:
    """As `contributions`, through the hidden layers: the gradient of each label's logit, times the row's values."""
    back = network.output.vectors(labels)  # (labels, neurons): gradients by the activations of a layer
    first = network.input_of(x)
    hidden = list(hidden_activations(network, first))
    for layer, activations in zip(reversed(network.layers[:-1]), reversed(hidden), strict=True):
        if network.config.activation == "relu":
            active = np.zeros(layer.neurons, np.bool_)
            if isinstance(activations, Dense):
                active[:] = activations.values[0, : layer.neurons] > 0
            else:
                active[activations.indices] = True
            back = back * active
        if layer is not network.layers[0]:
            back = back @ layer.vectors(np.arange(layer.neurons, dtype=np.int32))
    if not hidden:  # values may be scaled
        assert isinstance(first, Dense)
        return np.asarray(first.values[0, x.indices, None] * back[:, x.indices].T, np.float32)
    return np.asarray(x.values[:, None] * (network.layers[0].input_vectors(x.indices) @ back.T), np.float32)


def feature_names(model: Model) -> Sequence[str] | None:
    """The names of a model's features, if they have any."""
    saved = model.saved
    if saved.feature_names is not None:
        return saved.feature_names
    if saved.interactions:
        return saved.label_names
    return None if saved.vectorizer is None else saved.vectorizer["words"]


def _name(names: Sequence[str] | None, feature: int, base: int) -> str:
    return str(feature + base) if names is None else names[feature]
