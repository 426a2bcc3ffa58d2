"""What looks wrong about data that can be read: sentences to warn with. Each has figures and the likely cause."""

from __future__ import annotations

import numpy as np

from dslide.data.dataset import Dataset
from dslide.data.dense_rows import sparse_part
from dslide.data.formats.interaction_table import ITEM_NAMES, USER_NAMES
from dslide.data.formats.table import as_names
from dslide.data.formats.tsv import LABEL_NAMES

WITHOUT_FEATURES = 0.1  # share of rows from which on it is worth a warning
ALONE = 0.9  # share of users who have one item; labels for each row, of which more than IN_ONE_ROW are in one only
IN_ONE_ROW = 0.5  # share of labels
FEW = 20  # rows, of which nothing can be said
UNKNOWN = 0.5  # share of test labels that the model does not know
ENDING, JOINED = 0.1, 0.5  # share of labels that end with a separator, or have one anywhere


def check_training_data(data: Dataset) -> list[str]:
    """What is suspicious about rows to train on; nothing if they look as most data does."""
    if data.users is not None:
        return [*_named_the_other_way(data), *_users_of_one_item(data)]
    if len(data) < FEW:
        return []
    suspicions = [
        *_header(data),
        *_swapped_columns(data),
        *_joined_labels(data),
        *_label_of_all_rows(data),
        *_labels_of_one_row(data),
    ]
    return [*suspicions, *check_features(data, "is left")]


def check_features(data: Dataset, known: str = "the model knows") -> list[str]:
    """Rows without a feature, which say nothing: all of them get the same labels. Of interactions, users all of whose
    items are unknown."""
    if data.dense_features:
        return []
    empty = np.diff(sparse_part(data.x).indptr) == 0
    if data.users is not None:
        empty &= np.diff(data.y.indptr) > 0
    without = int(np.count_nonzero(empty))
    if without <= WITHOUT_FEATURES * len(data):
        return []
    if data.users is not None:
        what = f"{without:,} of {len(data):,} users have no item that {known}, and all of these get the same items"
        return [f"{data.source}: {what} (item_column says which column has the items)"]
    feature = "word" if data.vectorizer is not None else "feature"
    what = f"{without:,} of {len(data):,} rows have no {feature} that {known}, and all of these get the same labels"
    return [f"{data.source}: {what}{_advice(data, 1, 'the text')}"]


def check_labels(data: Dataset, labels: int) -> list[str]:
    """Test labels that are none of the first `labels` ones, those of the model: it can't predict them."""
    unknown = int(np.count_nonzero(data.y.indices >= labels))
    if unknown <= UNKNOWN * data.y.nnz:
        return []
    what = f"{unknown:,} of {data.y.nnz:,} labels are none that the model knows, and count as missed"
    return [f"{data.source}: {what}{_advice(data, 0, 'the labels')}"]


def _named_the_other_way(data: Dataset) -> list[str]:
    user, item = data.layout.user_column, data.layout.item_column
    if not (isinstance(user, str) and isinstance(item, str)):
        return []
    of_item, of_user = as_names([user, item])
    if not (of_item in ITEM_NAMES and of_user in USER_NAMES):
        return []
    return [f"{data.source}: users are in column {user}, items in {item}: are user_column and item_column swapped?"]


def _users_of_one_item(data: Dataset) -> list[str]:
    """Only users with several items say which go together."""
    users, alone = np.count_nonzero(np.diff(data.y.indptr)), np.count_nonzero(np.diff(data.y.indptr) == 1)
    if users < FEW or alone <= ALONE * users:
        return []
    what = f"{alone:,} of {users:,} users have one item only, and nothing can be learned from these"
    return [f"{data.source}: {what} (user_column says which column has the users)"]


def _header(data: Dataset) -> list[str]:
    """The first line of a file of text may name the columns."""
    first = data.y.indices[: data.y.indptr[1]]
    if data.vectorizer is None or data.label_names is None or len(first) == 0:
        return []
    names = [data.label_names[label] for label in first]
    alone = np.count_nonzero(np.isin(data.y.indices, first)) == len(first)
    if not alone or not any(name.lower() in LABEL_NAMES for name in names):
        return []
    what = f"the first line has the label {' '.join(names)}, which no other line has: is it a header? (header says so)"
    return [f"{data.source}: {what}"]


def _swapped_columns(data: Dataset) -> list[str]:
    words, labels = data.values_per_row
    if data.vectorizer is None or labels <= max(1.0, words):
        return []
    what = f"a row has {labels:.1f} labels and {words:.1f} words on average: are the columns swapped?"
    return [f"{data.source}: {what}{_advice(data, 0, 'the labels')}"]


def _joined_labels(data: Dataset) -> list[str]:
    """Labels between commas, semicolons or bars that were split at blanks."""
    if data.vectorizer is None or data.label_names is None or data.layout.label_separator is not None:
        return []
    names = data.label_names
    for share, what, found in (
        (ENDING, "end with", [name for name in names if name.endswith((",", ";", "|"))]),
        (JOINED, "have", [name for name in names if any(mark in name for mark in ",;|")]),
    ):
        if len(found) > share * len(names):
            text = f"{len(found):,} of {len(names):,} labels {what} a comma, a semicolon or a bar, like {found[0]!r}"
            return [f"{data.source}: {text}: are labels separated by it? (label_separator says what is between them)"]
    return []


def _label_of_all_rows(data: Dataset) -> list[str]:
    """Labels with blanks in them may have been split: of "class 3" and "class 4" the first word is in all rows."""
    counts = data.label_counts if data.y.nnz > len(data) else np.zeros(1)
    most = int(counts.argmax())
    if data.label_names is None or counts[most] < len(data) or data.layout.label_separator is not None:
        return []
    what = (
        f"all {len(data):,} rows have the label {data.label_names[most]!r}, which says nothing: do labels have blanks?"
    )
    return [f"{data.source}: {what} (label_separator says what is between labels)"]


def _labels_of_one_row(data: Dataset) -> list[str]:
    if min(data.labels, data.y.nnz) < ALONE * len(data):
        return []
    _, counts = np.unique(data.y.indices, return_counts=True)  # of labels that occur: the file may promise billions
    used, once = len(counts), int(np.count_nonzero(counts == 1))
    if used < ALONE * len(data) or once <= IN_ONE_ROW * used:
        return []
    what = f"there are {used:,} labels in {len(data):,} rows, and {once:,} of them are in one row only"
    return [f"{data.source}: {what}; little can be learned of those{_advice(data, 0, 'the labels')}"]


def _advice(data: Dataset, which: int, what: str) -> str:
    """Which option says where text and labels are, and what it was."""
    if data.vectorizer is None:
        return ""
    option = ("label_column", "text_column")[which]
    column = getattr(data.layout, option)
    return f" ({option}{'' if column is None else f', now {column},'} says which column has {what})"
