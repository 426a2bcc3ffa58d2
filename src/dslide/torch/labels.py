"""The labels of rows, in the forms that PyTorch programs have them, as sparse rows:

(rows,) or (rows, n) integers, -1 for none
a sparse CSR tensor (rows, labels), whose values are weights
(crow_indices, col_indices) or (crow_indices, col_indices, weights), one-dimensional tensors
a list with a label, or labels, for each row
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dslide.errors import DataError
from dslide.util.csr import Csr, indptr_of

Labels = (
    torch.Tensor | tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, torch.Tensor, torch.Tensor] | Sequence[Any]
)
_FORMS = (
    "labels: expected integers (rows,) or (rows, n) with -1 for none, a sparse CSR tensor, a tuple (crow_indices, "
    "col_indices) with or without weights, or a list for each row"
)


def label_tensors(labels: Labels) -> list[torch.Tensor]:
    """One tensor of padded labels, or two or three of CSR; what `as_csr` reads. DataError if it is something else."""
    if isinstance(labels, torch.Tensor):
        if labels.layout == torch.sparse_csr:
            return [labels.crow_indices(), labels.col_indices(), labels.values().detach()]
        if labels.layout != torch.strided:
            raise DataError(f"{_FORMS}, not a tensor of layout {labels.layout}")
        return [labels]
    if isinstance(labels, tuple):
        if len(labels) in (2, 3) and all(isinstance(part, torch.Tensor) for part in labels):
            return [part.detach() for part in labels]
        raise DataError(f"{_FORMS}, not a tuple of {len(labels)}")
    if isinstance(labels, list):
        return _of_lists(labels)
    raise DataError(f"{_FORMS}, not {type(labels).__name__}")


def _of_lists(labels: list[Any]) -> list[torch.Tensor]:
    rows = [row.tolist() if isinstance(row, torch.Tensor) else row for row in labels]
    rows = [row if isinstance(row, list | tuple) else [row] for row in rows]
    for number, row in enumerate(rows):
        for label in row:
            if not isinstance(label, int) or isinstance(label, bool):
                raise DataError(f"labels: row {number} has {label!r}, expected a number")
    lengths = [len(row) for row in rows]
    return [
        torch.from_numpy(indptr_of(np.array(lengths, np.int64))),
        torch.tensor([label for row in rows for label in row], dtype=torch.int64),
    ]


def as_csr(tensors: Sequence[torch.Tensor], rows: int, count: int) -> Csr:
    """Labels of so many rows, with weights, ascending and once each; weights of labels that a row has more than once
    are added. DataError if there is a label that is not below `count`."""
    arrays = [tensor.cpu().numpy() for tensor in tensors]
    for array in arrays[:2]:
        if array.dtype.kind not in "iu":
            raise DataError(f"labels: expected integers, not {tensors[0].dtype}")
    lists = _of_padded(arrays[0], rows) if len(arrays) == 1 else _of_csr(arrays, rows)
    return _in_order(lists, count)


def _of_padded(labels: Any, rows: int) -> Csr:
    if labels.ndim not in (1, 2) or len(labels) != rows:
        raise DataError(f"labels: expected {rows} rows, (rows,) or (rows, n), not the shape {list(labels.shape)}")
    table = labels[:, None] if labels.ndim == 1 else labels
    given = table != -1
    ids = table[given].astype(np.int64)
    return Csr(indptr_of(given.sum(axis=1)), ids, np.ones(len(ids), np.float32))


def _of_csr(arrays: Sequence[Any], rows: int) -> Csr:
    crow, columns = arrays[0].astype(np.int64), arrays[1].astype(np.int64)
    if crow.ndim != 1 or len(crow) != rows + 1:
        raise DataError(f"labels: expected {rows + 1} crow_indices for {rows} rows, not the shape {list(crow.shape)}")
    if columns.ndim != 1 or crow[0] != 0 or crow[-1] != len(columns) or (np.diff(crow) < 0).any():
        raise DataError("labels: crow_indices must ascend from 0 to the number of col_indices")
    if len(arrays) == 2:
        return Csr(crow, columns, np.ones(len(columns), np.float32))
    if arrays[2].shape != columns.shape:
        raise DataError(f"labels: there are {len(columns)} col_indices but {arrays[2].size} weights")
    weights = arrays[2].astype(np.float32)
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        row = int(np.searchsorted(crow, at, side="right")) - 1
        raise DataError(f"labels: row {row} has the weight {weights[at]:g}, expected a number above 0")
    return Csr(crow, columns, weights)


def _in_order(lists: Csr, count: int) -> Csr:
    ids, row = lists.indices, lists.row_numbers()
    wrong = (ids < 0) | (ids >= count)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise DataError(f"labels: row {row[at]} has label {ids[at]}, expected 0 to {count - 1}")
    keys = row * np.int64(count) + ids
    if len(keys) < 2 or (np.diff(keys) > 0).all():
        return Csr(lists.indptr, ids.astype(np.int32), lists.values)
    unique, place = np.unique(keys, return_inverse=True)
    weights = np.bincount(place, lists.values, len(unique)).astype(np.float32)
    row = unique // count
    indptr = indptr_of(np.bincount(row, minlength=lists.rows))
    return Csr(indptr, (unique % count).astype(np.int32), weights)
