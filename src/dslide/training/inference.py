"""A saved model, ready to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dslide.checkpoint.collective_load import load_on_all_ranks
from dslide.checkpoint.saved_model import SavedModel
from dslide.comm import Communicator, job
from dslide.comm.topology import local_ranks
from dslide.config import check_name
from dslide.data import Data, Dataset, SparseRows, TextVectorizer, Tokens, for_items
from dslide.data.checks import check_features, check_labels
from dslide.data.formats.interactions import rows_of_items
from dslide.errors import ConfigError, DataError
from dslide.model.network import Network
from dslide.training.logging import warn
from dslide.training.reading import FILE_OPTIONS, Reading, Source, load_for, vectorizer_of, with_known_features
from dslide.util.threads import openmp_threads, use_threads

Rows = Sequence[str] | Sequence[Sequence[str]]  # texts, or the items of users


@dataclass(frozen=True)
class Model:
    """A trained network, split over the ranks of a job. Prediction is collective: every rank calls it, with the same
    rows."""

    saved: SavedModel  #: options, names of labels and features, and what is known of the training data
    network: Network
    comm: Communicator

    @classmethod
    def of(cls, saved: SavedModel, comm: Communicator) -> Model:
        """With the network of a saved model. Collective.

        Parameters
        ----------
        saved : SavedModel
            What `load_model` returned.
        comm : Communicator
            The ranks that the network is split over.

        Returns
        -------
        Model
        """
        network = comm.together(
            "making the network",
            lambda: Network(
                saved.config, saved.features, saved.labels, comm=comm, trainable=False, weights=saved.state
            ),
        )
        return cls(saved, network, comm)

    @cached_property
    def vectorizer(self) -> TextVectorizer | None:
        """What turns text into the model's features."""
        return vectorizer_of(self.saved)

    def read(
        self, source: Source | Rows, *, history: str | Path | None = None, to_evaluate: bool = False, **options: Any
    ) -> Data:
        """Data with the model's columns.

        Parameters
        ----------
        source : path, Dataset, Tokens, list of texts or list of lists of items
            Texts are for a model of text, items for one of interactions.
        history : path
            The earlier interactions of the users in `source`, which are not predicted again.
        to_evaluate : bool
            Labels, and on interactions a history, are needed.
        **options
            Those of `dslide.load`.

        Returns
        -------
        Dataset or Tokens

        Raises
        ------
        DataError
            Data that can't be read, or has other columns.
        """
        for name in options:
            check_name(name, FILE_OPTIONS)
        reading = Reading.of(options)
        if isinstance(source, (str, Path)):
            data = self.comm.together("reading the data", lambda: self._load(source, reading, history, to_evaluate))
            if self.comm.rank == 0 and isinstance(data, Dataset) and history is None:
                self._warn_of(data, to_evaluate)
            return data
        reading.refuse()
        if history is not None:
            raise ConfigError("history: is for reading files, but the data is loaded already")
        if isinstance(source, (Dataset, Tokens)):
            saved = self.saved
            return with_known_features(source, source.source or "the data", saved.features, saved.dense_features)
        rows = self.comm.together("making rows", lambda: self.rows_of(source))
        if self.comm.rank == 0:
            self._warn_of(rows, False)
        return rows

    def _warn_of(self, data: Dataset, labels: bool) -> None:
        """Warns of rows without anything known and, if `labels` are needed, of such labels."""
        known = check_labels(data, self.saved.labels) if labels else []
        for suspicion in (*check_features(data), *known):
            warn(suspicion)

    def _load(self, path: str | Path, reading: Reading, history: str | Path | None, to_evaluate: bool) -> Data:
        data = load_for(self.saved, path, reading.files, history)
        if to_evaluate and data.users is not None and history is None:
            raise ConfigError(f"history: {path} holds interactions; give the users' earlier ones as history")
        if to_evaluate and isinstance(data, Dataset) and data.y.nnz == 0:
            where = "; y gives the file of labels" if data.dense_features == data.features else ""
            raise DataError(f"{path}: there are no labels in it to compare predictions with{where}")
        return data

    def rows_of(self, source: Rows) -> Dataset:
        """Rows of texts or items with the model's columns, without the warnings of `read`.

        Parameters
        ----------
        source : sequence of str or of sequences
            Texts, or items of users.

        Returns
        -------
        Dataset
        """
        saved = self.saved
        if saved.interactions:
            x = rows_of_items(source, saved.feature_names or saved.label_names, saved.features)
            data = Dataset(x, x, users=np.arange(len(x), dtype=np.int32), source="the items")
            return for_items(data, saved.features, saved.label_counts)
        vectorizer, texts = self.vectorizer, [text for text in source if isinstance(text, str)]
        if vectorizer is None or len(texts) < len(source):
            raise DataError("the data: expected a file, or lists of items or texts if the model was trained on them")
        if saved.dense_features:
            raise DataError("the texts: the model was trained on texts with dense features; give files of both")
        x = vectorizer.transform_rows(texts)
        empty = SparseRows(np.zeros(len(x) + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), saved.labels)
        return Dataset(x, empty, vectorizer=vectorizer, source="the texts")


def open_model(path: str | Path, *, threads: int = 0, verify: bool = True, comm: Communicator | None = None) -> Model:
    """Opens a model folder, or the newest checkpoint of a run, to predict with it. Weights are memory-mapped, so that
    processes share them. On several ranks every rank calls it, and each loads its part.

    Parameters
    ----------
    path : path
        Folder of a run or of a model.
    threads : int
        0: one per core.
    verify : bool
        Check the checksums of the files, which reads them once.
    comm : Communicator
        The ranks; by default those of mpiexec, or this process alone.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        A file is missing or damaged.
    """
    comm = comm or job()
    saved = load_on_all_ranks(path, comm, verify=verify)
    use_threads(threads or openmp_threads() or local_ranks(comm).threads)
    return Model.of(saved, comm)
