"""Growth of a model of interactions. A user's row has all of the user's items, so the earlier interactions are needed:
they and the new ones together are trained on. The label prior and the regressions of items are made anew from both."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from dslide.checkpoint.saved_model import SavedModel
from dslide.config import Config
from dslide.data import Dataset, SparseRows, sparse_part
from dslide.data.items import item_features
from dslide.training.early_stopping import hold_out_rows
from dslide.training.growth import Earlier, GrowingData


def growing_items(new: Dataset, earlier: Dataset, config: Config, before: Earlier, base: SavedModel) -> GrowingData:
    """All interactions but those held out: of the earlier ones the same as when the model was trained, if it was of
    these; else none, for it has seen them."""
    kept, held_out = _split(earlier, before.validation, before.seed)
    if held_out is None or kept.checksum != before.data:
        kept, held_out = earlier, None
    kept_new, held_out_new = _split(new, config.validation, config.seed)
    names = max((base.label_names, earlier.label_names, new.label_names), key=lambda each: len(each or ()))
    items = max(base.labels, earlier.labels, new.labels)
    train = merged([kept, kept_new], items, names)
    validation = None
    if parts := [part for part in (held_out, held_out_new) if part is not None]:
        found = merged(parts, items, names)
        assert train.users is not None
        assert found.users is not None
        x = sparse_part(train.x).take(np.searchsorted(train.users, found.users))
        validation = dataclasses.replace(train, x=x, y=found.y, users=found.users)
    return GrowingData(train, train, validation, train.label_counts, len(train), before)


def merged(parts: Sequence[Dataset], items: int, names: Sequence[str] | None) -> Dataset:
    """Interactions of users and items that are numbered alike; the last part knows the names of all users. There is a
    row for each user, in the order of their numbers. Without weights an item counts once."""
    last = parts[-1]
    numbers = [part.users for part in parts if part.users is not None]
    users, row = np.unique(np.concatenate(numbers), return_inverse=True)
    lines = SparseRows.concatenate([part.y.with_columns(items) for part in parts]).to_scipy()
    of_user = sp.csr_matrix((np.ones(len(row), np.float32), (row, np.arange(len(row)))), (len(users), len(row)))
    matrix = sp.csr_matrix(of_user @ lines)
    if last.layout.weight_column is None:
        matrix.data[:] = 1
    y = SparseRows.from_scipy(matrix)
    x = item_features(y, y.column_counts())
    return dataclasses.replace(
        last, x=x, y=y, label_names=names, feature_names=names, users=users.astype(np.int32), times=None,
        unknown_labels=0,
    )  # fmt: skip


def _split(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset | None]:
    """The interactions to train on and those held out, if there are enough for that."""
    if round(share * len(data)) == 0 or not (np.diff(data.y.indptr) > 1).any():
        return data, None
    kept, held_out = hold_out_rows(data, share, seed)
    assert isinstance(kept, Dataset)
    return kept, held_out
