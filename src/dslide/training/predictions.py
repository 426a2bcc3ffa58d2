"""Predictions of a saved model, row by row, with names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp

from dslide.data import Data, Features, SparseRows
from dslide.errors import ConfigError
from dslide.model.network import Network
from dslide.model.prediction import LOGIT_BYTES
from dslide.training.evaluation import row_blocks
from dslide.training.explanations import Reason, explain
from dslide.training.inference import Model

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """Some rows to predict."""

    x: Features
    seen: SparseRows | None = None  # labels that are not to be predicted
    users: list[str] | None = None  # of interactions


@dataclass(frozen=True)
class Prediction:
    """The best labels of a row, best first."""

    row: int  #: counted from 0
    user: str | None  #: of interactions: the name or the number
    labels: list[int]  #: as the training data numbers them
    names: list[str]  #: the numbers as texts, if labels have no names
    scores: list[float]  #: logits
    probabilities: list[float] | None  #: None if none were asked for, or scores are good for ranking only
    why: list[list[Reason]] | None = None  #: for each label the features that moved its score most, if asked for

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON.

        Returns
        -------
        dict
        """
        columns: dict[str, list[Any]] = {"label": self.labels, "name": self.names, "score": self.scores}
        if self.probabilities is not None:
            columns["probability"] = self.probabilities
        if self.why is not None:
            columns["why"] = [[reason.to_dict() for reason in reasons] for reasons in self.why]
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return {"row": self.row, **({} if self.user is None else {"user": self.user}), "labels": rows}


def blocks_of(data: Data) -> Iterator[Block]:
    """All rows of a data set."""
    users, seen = _user_names(data), data.seen
    for begin, end in row_blocks(len(data)):
        some = None if seen is None else seen.part(begin, end)
        yield Block(data.rows(begin, end)[0], some, None if users is None else users[begin:end])


def predict_blocks(
    model: Model, blocks: Iterable[Block], k: int, approximate: bool = False, probabilities: bool = False,
    threshold: float = 0.0, why: int = 0,
) -> Iterator[Prediction]:  # fmt: skip
    """The k best labels of each row, fewer where there are no more, or no more with a probability of at least
    `threshold`; `why`: with so many features that moved each one's score most. Collective: ranks go through all blocks
    alike."""
    network, saved, row = model.network, model.saved, 0
    predict = network.predict_topk_approximate if approximate else network.predict_topk
    with_chances = probabilities and has_probabilities(model)
    if threshold > 0 and not has_probabilities(model):
        raise ConfigError("threshold: the model's scores are good for ranking only, they give no probabilities")
    for block in blocks:
        ids, scores = predict(block.x, min(k, network.labels), block.seen)
        chances = probabilities_of(network, block.x, scores) if with_chances or threshold > 0 else None
        for place, labels in enumerate(ids.tolist()):
            found = [
                rank for rank, label in enumerate(labels)
                if label >= 0 and (chances is None or chances[place, rank] >= threshold)  # -1 is no label
            ]  # fmt: skip
            reasons = None
            if why:
                reasons = explain(model, block.x.part(place, place + 1), [labels[rank] for rank in found], why)
            numbers = [labels[rank] + saved.base for rank in found]
            names = saved.label_names
            yield Prediction(
                row, None if block.users is None else block.users[place], numbers,
                list(map(str, numbers)) if names is None else [names[labels[rank]] for rank in found],
                scores[place, found].tolist(),
                chances[place, found].tolist() if chances is not None and with_chances else None, reasons,
            )  # fmt: skip
            row += 1


def checked_threshold(threshold: float) -> float:
    """A probability."""
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold: expected a probability, 0 to 1, not {threshold!r}")
    return threshold


def _user_names(data: Data) -> list[str] | None:
    if data.users is None:
        return None
    names = getattr(data, "user_names", None)
    return [str(user) if names is None else names[user] for user in data.users.tolist()]


def has_probabilities(model: Model) -> bool:
    """Whether scores can be turned into probabilities; else they are good for ranking only."""
    return not model.saved.interactions and model.network.config.ranking != "propensity"


def probabilities_of(network: Network, x: Features, scores: npt.NDArray[np.float32]) -> Doubles:
    """The probabilities of labels with these scores: sigmoids of calibrated logits; with softmax, shares of the sum
    over all labels, whose scores that needs."""
    if network.config.loss == "sigmoid":
        return np.asarray(expit(scores.astype(np.float64)))
    every, chances = np.arange(network.labels, dtype=np.int32), np.empty(scores.shape)
    size = max(1, LOGIT_BYTES // (4 * len(every)))  # rows
    for begin in range(0, len(x), size):
        end = min(begin + size, len(x))
        total = logsumexp(network.scores(x.part(begin, end), every).astype(np.float64), axis=1, keepdims=True)
        chances[begin:end] = np.exp(np.minimum(0, scores[begin:end] - total))
    return chances
