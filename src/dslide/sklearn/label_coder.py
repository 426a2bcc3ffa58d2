"""What the estimator is given as labels, and what the network's outputs stand for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.utils.validation import check_array, column_or_1d

from dslide.data import SparseRows
from dslide.errors import DataError, ModelError
from dslide.util.memory import check_memory, rss_bytes

COLLECTIONS = (list, tuple, np.ndarray, set, frozenset)
NO_LISTS = (
    "y: lists of labels for each row are not taken; give a matrix with a column for each label, such as "
    "sklearn.preprocessing.MultiLabelBinarizer(sparse_output=True) makes"
)

Classes = npt.NDArray[Any]
Ids = npt.NDArray[np.int32]


def read_labels(y: Any) -> Classes | SparseRows:
    """Labels as the user gives them: a class for each row, or rows of label weights."""
    if y is None:
        raise DataError("fitting requires y to be passed, but the target y is None")
    if isinstance(y, SparseRows):
        return y
    if not sp.issparse(y):
        if isinstance(y, (list, tuple)) and _is_ragged(y):
            raise DataError(NO_LISTS)
        y = check_array(y, ensure_2d=False, dtype=None, input_name="y")
        if y.ndim == 1 or y.shape[1] == 1:
            return _checked_classes(column_or_1d(y, warn=True))
    return _sparse_rows(y, "y")


def column_names(y: Any) -> list[str] | None:
    """Names of labels, if y is a data frame of several columns."""
    names = getattr(y, "columns", None)
    if isinstance(y, SparseRows) or names is None or len(names) < 2:
        return None
    return [str(name) for name in names]


def read_exclude(exclude: Any, rows: int, labels: int) -> SparseRows:
    """Labels that are not to be predicted, as the user gives them, without the zeros."""
    found = _sparse_rows(exclude, "exclude")
    if (len(found), found.columns) != (rows, labels):
        raise DataError(f"exclude: expected {rows} rows and {labels} columns, not {len(found)} and {found.columns}")
    csr = found.to_scipy()
    csr.eliminate_zeros()
    return SparseRows.from_scipy(csr)


def is_dense(y: Any) -> bool:
    """Whether labels were given without any sparse form, so that predictions are wanted the same way."""
    return not (isinstance(y, SparseRows) or sp.issparse(y))


@dataclass(frozen=True, eq=False)
class LabelCoder:
    """Turns labels into columns of the network's output, and back."""

    classes: Classes  # [labels] of a 1-D y its classes, sorted, but later ones last; of a 2-D y the column numbers
    multilabel: bool  # y was 2-D
    dense: bool  # y was dense

    @classmethod
    def learn(cls, labels: Classes | SparseRows, dense: bool) -> LabelCoder:
        """A coder for labels like these, as `read_labels` gives them."""
        if isinstance(labels, SparseRows):
            if labels.columns == 0:
                raise DataError("y: there are no labels in it: it has 0 columns")
            return cls(np.arange(labels.columns), True, dense)
        return cls(_sorted_classes(labels), False, dense)

    def with_more(self, labels: Classes | SparseRows) -> LabelCoder:
        """A coder that also knows further classes, or columns."""
        if isinstance(labels, SparseRows) != self.multilabel:
            return self  # which refuses them
        if isinstance(labels, SparseRows):
            if labels.columns <= len(self.classes):
                return self
            return LabelCoder(np.arange(labels.columns), True, self.dense)
        if self.classes.dtype.kind != labels.dtype.kind and {self.classes.dtype.kind, labels.dtype.kind} & set("UO"):
            return self
        new = np.setdiff1d(_sorted_classes(labels), self.classes)
        return self if len(new) == 0 else LabelCoder(np.concatenate([self.classes, new]), False, self.dense)

    def encode(self, labels: Classes | SparseRows) -> SparseRows:
        """Rows of label weights; DataError for classes that are not known."""
        if isinstance(labels, SparseRows) != self.multilabel:
            before, now = (2, 1) if self.multilabel else (1, 2)
            raise DataError(f"y: the classifier was fitted with a {before}-D y, but this one is {now}-D")
        if isinstance(labels, SparseRows):
            if labels.columns != len(self.classes):
                raise DataError(f"y: it has {labels.columns} columns, but fitting had {len(self.classes)}")
            return labels
        offsets = np.arange(len(labels) + 1, dtype=np.int64)
        return SparseRows(offsets, self.columns(labels), np.ones(len(labels), np.float32), len(self.classes))

    def columns(self, labels: Sequence[Any] | Classes) -> Ids:
        """The output columns of class labels or, for a 2-D y, of column numbers."""
        wanted = np.asarray(labels)
        if wanted.ndim != 1:
            raise DataError(f"labels: expected a list of labels, not {wanted.ndim} dimensions")
        try:
            order = np.argsort(self.classes, kind="stable")
            found = order[np.minimum(np.searchsorted(self.classes, wanted, sorter=order), len(self.classes) - 1)]
            known = np.asarray(self.classes[found] == wanted)
        except TypeError:  # of a kind that can't be compared, such as texts with numbers
            found, known = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
        if not known.all():
            raise DataError(f"label {wanted[np.argmin(known)]!s} is not one that the classifier was fitted with")
        return found.astype(np.int32)

    def decode(self, columns: Ids) -> Classes:
        """Class labels or, for a 2-D y, column numbers. For -1, which stands for none, there is no class."""
        if self.multilabel:
            return columns.astype(self.classes.dtype)
        missing = np.flatnonzero((columns.reshape(len(columns), -1) < 0).any(axis=1))
        if len(missing):
            raise DataError(f"exclude: it leaves fewer than k classes for row {missing[0]}")
        return np.asarray(self.classes[columns])

    def to_dict(self) -> dict[str, Any]:
        """What a saved model keeps beside the names of classes."""
        return {"multilabel": self.multilabel, "dense": self.dense, "dtype": self.classes.dtype.str}

    def names(self) -> list[str] | None:
        """The classes as text, for a saved model; None for a 2-D y."""
        if self.multilabel:
            return None
        values = self.classes.tolist()
        if self.classes.dtype.kind not in "biufU" and not all(type(value) is str for value in values):
            raise ModelError(f"classes of type {self.classes.dtype} can't be saved, only numbers and texts")
        return [str(value) for value in values]

    @classmethod
    def restore(cls, values: dict[str, Any], names: list[str] | None, labels: int) -> LabelCoder:
        """The opposite of `to_dict` and `names`; ModelError if they are damaged."""
        try:
            multilabel, dense, kind = values["multilabel"], values["dense"], values["dtype"]
            if not isinstance(multilabel, bool) or not isinstance(dense, bool):
                raise ValueError("multilabel and dense must be true or false")
            if multilabel:
                return cls(np.arange(labels), multilabel, dense)
            classes = _named_classes(names, kind)
            if len(np.unique(classes)) < len(classes):
                raise ValueError("some occur more than once")
            return cls(classes, multilabel, dense)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ModelError(f"damaged model: what it says of its classes can't be used: {error}") from None


def _sparse_rows(matrix: Any, name: str) -> SparseRows:
    try:
        return SparseRows.from_scipy(matrix)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def _named_classes(names: list[str] | None, kind: object) -> Classes:
    """Classes of a numpy type, given by its name, out of their names."""
    if names is None or not isinstance(kind, str) or not re.fullmatch(r"[|<>](b1|[iu][1248]|f(2|4|8|16)|U\d+|O)", kind):
        raise ValueError("no names of classes, or not of numbers or texts")
    dtype = np.dtype(kind)
    if dtype.kind != "O":
        check_memory(rss_bytes() + dtype.itemsize * len(names), "the list of classes", "its names are too long")
    if dtype.kind in "OU":
        return np.array(names, dtype)
    read = {"b": lambda name: name == "True", "f": float}.get(dtype.kind, int)
    return np.fromiter(map(read, names), dtype, len(names))


def _is_ragged(y: Sequence[Any]) -> bool:
    """Whether some rows hold more than others, so that they are no matrix."""
    lists = [row for row in y if isinstance(row, (list, tuple)) or (isinstance(row, np.ndarray) and row.ndim)]
    return bool(lists) and (len(lists) < len(y) or len({len(row) for row in lists}) > 1)


def _checked_classes(y: Classes) -> Classes:
    if y.dtype == object and any(isinstance(value, COLLECTIONS) for value in y):
        raise DataError(NO_LISTS)
    if y.dtype.kind == "f" and (broken := y != np.floor(y)).any():
        raise DataError(f"Unknown label type: y holds continuous numbers like {y[np.argmax(broken)]:g}, not classes")
    if y.dtype.kind not in "biufUO":
        raise DataError(f"Unknown label type: y holds {y.dtype}, not whole numbers or texts")
    return y


def _sorted_classes(y: Classes) -> Classes:
    try:
        return np.unique(y)
    except TypeError:
        kinds = sorted({type(value).__name__ for value in y})
        raise DataError(f"Unknown label type: y mixes {', '.join(kinds)}, which can't be sorted") from None
