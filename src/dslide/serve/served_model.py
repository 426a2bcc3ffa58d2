"""The model that a server answers with, and newer checkpoints of the run in its place."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dslide.checkpoint.manifest import Manifest
from dslide.checkpoint.saved_model import model_folder
from dslide.data import SparseRows
from dslide.data.rows import RowsBuilder
from dslide.errors import DataError
from dslide.serve.options import ServeOptions
from dslide.serve.requests import BadRequest, Kind, PredictRequest
from dslide.training.explanations import feature_names
from dslide.training.inference import Model, open_model
from dslide.training.predictions import Block, Prediction, blocks_of, has_probabilities, predict_blocks

MOST_APPROXIMATE = 10  # labels of a row: the more are asked for, the more of them look-up misses


@dataclass(frozen=True)
class ServedModel:
    """An open model, and which one it is."""

    model: Model
    folder: Path
    checksum: int
    options: ServeOptions

    @classmethod
    def open(cls, options: ServeOptions) -> ServedModel:
        """Opens the model, or the newest checkpoint of the run, its checksums verified."""
        folder = model_folder(options.model)
        model = open_model(folder, threads=options.threads)
        served = cls(model, folder, Manifest.read(folder).checksum(), options)
        empty = {"text": "", "items": [], "row": {}}[kind := served.input]
        served.predict([PredictRequest(kind, [empty], False, 1, 0.0, 0)])  # what is made on first use is there then
        return served

    def newer(self) -> ServedModel | None:
        """The model that has taken this one's place on disk, if there is one; ModelError if it can't be read."""
        folder = model_folder(self.options.model)
        if folder == self.folder and Manifest.read(folder).checksum() == self.checksum:
            return None
        return ServedModel.open(self.options)

    def about(self) -> dict[str, Any]:
        """What clients may want to know."""
        network, saved = self.model.network, self.model.saved
        return {
            "name": self.folder.name, "input": self.input, "labels": saved.labels, "features": saved.features,
            "hidden": list(network.config.hidden), "weights": network.config.weights,
            "probabilities": has_probabilities(self.model),
            "prediction": "approximate" if self.approximate(self.options.k) else "exact",
            "k": self.options.k, "most_k": self.options.most_k, "checksum": f"{self.checksum:08x}",
        }  # fmt: skip

    @property
    def input(self) -> Kind:
        """What the model was trained on."""
        saved = self.model.saved
        return "text" if saved.vectorizer else "items" if saved.interactions else "row"

    def approximate(self, k: int) -> bool:
        """Whether only labels that are looked up are scored for the k best. By default that is so beside a label prior,
        if k is small."""
        given = self.options.approximate
        return k <= MOST_APPROXIMATE and self.model.network.prior is not None if given is None else given

    def predict(self, requests: Sequence[PredictRequest]) -> list[dict[str, Any]]:
        """The answers to some requests with the same options."""
        start = time.perf_counter()
        kind, threshold, why = requests[0].options
        if threshold > 0 and not has_probabilities(self.model):
            raise BadRequest(422, "threshold: this model's scores give no probabilities")
        rows, k = [row for request in requests for row in request.rows], max(request.k for request in requests)
        found = predict_blocks(
            self.model, self._blocks(kind, rows), k, self.approximate(k),
            True, threshold, why,
        )  # fmt: skip
        answers = []
        for request in requests:
            results = [self._results(next(found), request.k) for _ in request.rows]
            content = {"rows": [{"results": each} for each in results]} if request.many else {"results": results[0]}
            answers.append(content | {"model": self.folder.name})
        milliseconds = round(1000 * (time.perf_counter() - start), 3)
        return [answer | {"milliseconds": milliseconds} for answer in answers]

    def _blocks(self, kind: str, rows: Sequence[Any]) -> list[Block]:
        if kind == "row":
            if self.model.saved.interactions:
                raise BadRequest(422, "this model takes items")
            return [Block(self._rows(rows))]
        if kind == "text" and self.model.saved.vectorizer is None:
            raise BadRequest(422, "this model was not trained on text; send rows of features and values, or items")
        if kind == "items" and not self.model.saved.interactions:
            raise BadRequest(422, "this model was not trained on items of users; send text or rows")
        return list(blocks_of(self.model.rows_of(rows)))

    def _rows(self, rows: Sequence[Mapping[str, float] | list[float]]) -> SparseRows:
        builder, features = RowsBuilder(), self.model.saved.features
        for row in rows:
            if isinstance(row, list):
                if len(row) != features:
                    raise DataError(f"expected a row of {features} numbers, not of {len(row)}")
                numbers = np.array(row, np.float32)
                builder.append(np.array([0, features], np.int64), np.arange(features, dtype=np.int32), numbers)
                continue
            columns = np.array([self._column(name) for name in row], np.int32)
            order = np.argsort(columns)
            if len(np.unique(columns)) < len(columns):
                raise DataError("a feature occurs twice in a row")
            values = np.array([*row.values()], np.float32)
            builder.append(np.array([0, len(columns)], np.int64), columns[order], values[order])
        return builder.finish(len(rows), features)

    def _column(self, name: str) -> int:
        if self._column_of is not None and name in self._column_of:
            return self._column_of[name]
        base, features = self.model.saved.base, self.model.saved.features
        is_number = self._column_of is None and name.isascii() and name.isdigit() and len(name) < 12
        if is_number and 0 <= int(name) - base < features:
            return int(name) - base
        raise DataError(f"there is no feature {name[:100]!r}")

    @cached_property
    def _column_of(self) -> dict[str, int] | None:
        names = feature_names(self.model)
        return None if names is None else {name: column for column, name in enumerate(names)}

    def _results(self, found: Prediction, k: int) -> list[dict[str, Any]]:
        """Labels with a score of 0 to 1: the probability, or else relative to the best label's 1."""
        results = []
        for place, name in enumerate(found.names[:k]):
            logit = found.scores[place]
            if found.probabilities is not None:
                score = found.probabilities[place]
            else:
                score = float(np.exp(max(-700.0, logit - found.scores[0])))
            result = {"uri": self.options.uri_prefix + name, "label": name, "score": score, "logit": logit}
            if found.why is not None:
                result["why"] = [reason.to_dict() for reason in found.why[place]]
            results.append(result)
        return results
