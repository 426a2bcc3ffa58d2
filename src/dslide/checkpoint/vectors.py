"""The vectors (embeddings) that a network has learned: of its features the first layer's weights, of its labels the
output layer's."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dslide.checkpoint.saved_model import SavedModel, load_model
from dslide.errors import ConfigError, DataError, ModelError
from dslide.model.storage import SCALE, widened
from dslide.util.arrays import Floats
from dslide.util.atomic import new_file


class Vectors:
    """A vector for each name: row i of `matrix`, (names, length), is the vector of `names[i]`."""

    def __init__(self, names: Sequence[str], matrix: Floats) -> None:
        if matrix.ndim != 2 or len(matrix) != len(names):
            raise DataError(f"there are {len(names)} names but vectors of the shape {list(matrix.shape)}")
        self.names, self.matrix = list(names), np.ascontiguousarray(matrix, np.float32)
        self._row_of = {name: row for row, name in enumerate(self.names)}
        self._lengths = np.linalg.norm(self.matrix, axis=1)  # (names)

    @classmethod
    def of_model(
        cls, saved: SavedModel, source: str | Path = "the model", of: Literal["features", "labels"] = "features"
    ) -> Vectors:
        """The first layer's weights of each feature, or the output layer's of each label, without the padding. Labels
        and items without names have their numbers; ModelError if other features have no names.

        Parameters
        ----------
        saved : SavedModel
            What `load_model` gave.
        source : str
            Its name in errors.
        of : {"features", "labels"}

        Returns
        -------
        Vectors
        """
        config = saved.config
        if of == "labels":
            weights = _floats(saved, f"layer{len(config.hidden)}.weights")
            by_input = config.hidden_share[-1:] and config.hidden_share[-1] < 1  # the layer before is sampled
            width = config.hidden[-1] if config.hidden else saved.features
            matrix = weights[:, : saved.labels].T if by_input else weights[:, :width]
            return cls(saved.label_names or [str(n + saved.base) for n in range(saved.labels)], matrix)
        names = saved.feature_names
        if names is None and saved.interactions:
            names = saved.label_names or [str(item) for item in range(saved.features)]
        if names is None:
            raise ModelError(f"{source}: its features have numbers but no names, so it has no vectors of words")
        if not config.hidden:
            raise ModelError(f"{source}: it has no hidden layer, and so no vectors of features, only of labels")
        return cls(names, _floats(saved, "layer0.weights")[:, : config.hidden[0]])

    @classmethod
    def open(cls, path: str | Path, of: Literal["features", "labels"] = "features") -> Vectors:
        """The vectors of a saved model, given its folder or that of the run that made it: those of its features (words
        or items) or of its labels.

        Parameters
        ----------
        path : path
            Folder of a run or of a model.
        of : {"features", "labels"}

        Returns
        -------
        Vectors

        Raises
        ------
        ModelError
            The folder is no model, or has no names.
        """
        return cls.of_model(load_model(path, verify=True), path, of)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._row_of

    def __getitem__(self, name: str) -> Floats:
        vector: Floats = self.matrix[self._row(name)]
        return vector

    def nearest(self, what: str | ArrayLike, k: int = 10) -> list[tuple[str, float]]:
        """The k names with the largest cosine to a name, which is not among them, or to a vector; largest first.

        Parameters
        ----------
        what : str or array (length,)
            A name, or a vector.
        k : int
            How many.

        Returns
        -------
        list of (str, float)
            Names and cosines.

        Raises
        ------
        ModelError
            There is no such name.

        Examples
        --------
        >>> import numpy as np
        >>> from dslide import Vectors
        >>> vectors = Vectors(["north", "east", "up north"], np.float32([[0, 1], [1, 0], [0, 2]]))
        >>> vectors.nearest("north", k=1)
        [('up north', 1.0)]
        """
        if k < 1:
            raise ConfigError(f"k: expected at least 1, not {k}")
        own = self._row(what) if isinstance(what, str) else None
        vector = np.asarray(what, np.float32) if own is None else self.matrix[own]
        if vector.shape != self.matrix.shape[1:]:
            raise DataError(f"expected a vector of {self.matrix.shape[1]} numbers, not the shape {list(vector.shape)}")
        lengths = self._lengths * np.linalg.norm(vector)
        cosines = (self.matrix @ vector) / np.where(lengths > 0, lengths, 1)  # zero vectors have a cosine of 0
        order = [row for row in np.argsort(-cosines, kind="stable")[: k + 1].tolist() if row != own]
        return [(self.names[row], float(cosines[row])) for row in order[:k]]

    def save(self, path: str | Path) -> None:
        """Writes a new file in word2vec's text format.

        Parameters
        ----------
        path : path
            A file, which must not exist.
        """
        for name in self.names:
            if not name or name.split() != [name]:
                raise DataError(f"{path}: the name {name!r} can't be written, the format has blanks between names")
        with new_file(path) as file:
            file.write(f"{len(self.names)} {self.matrix.shape[1]}\n")
            for name, vector in zip(self.names, self.matrix, strict=True):
                file.write(f"{name} {' '.join(map(str, vector.tolist()))}\n")

    def _row(self, name: str) -> int:
        row = self._row_of.get(name)
        if row is None:
            near = difflib.get_close_matches(name, self.names, n=3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise DataError(f"there is no vector for {name!r}{hint}")
        return row


def _floats(saved: SavedModel, name: str) -> Floats:
    """An array of weights as float32."""
    return widened(saved.state[name], saved.state.get(name + SCALE))
