"""How many earlier rows are trained on again, decided from the labels of new rows."""

from __future__ import annotations

import numpy as np
import pytest

from dslide.training.replay import EXCESS, fade, replayed_rows, share_of_new

OLD = np.full(100, 40)  # rows of each of 100 labels, one in a row: 4,000 rows


def counts(new: np.ndarray) -> tuple[np.ndarray, np.ndarray, int, int]:
    """What is asked about new rows of one label each."""
    every = new.copy()
    every[: len(OLD)] += OLD
    return new, every, int(new.sum()), int(every.sum())


@pytest.mark.parametrize("rows", [200, 1000, 4000, 20_000])
def test_rows_like_the_earlier_ones_need_no_replay(rows: int) -> None:
    new = np.bincount(np.random.default_rng(0).integers(0, 100, rows), minlength=100)
    assert replayed_rows(*counts(new)) == 0
    assert not fade(*counts(new))


@pytest.mark.parametrize("of_new", [200, 500, 1000])
def test_new_labels_are_not_much_more_frequent_in_training_than_in_all_rows(of_new: int) -> None:
    new = np.append(np.full(100, (1000 - of_new) // 100), np.full(20, of_new // 20))
    about = counts(new)
    assert share_of_new(*about) == of_new / 1000
    replayed = replayed_rows(*about)
    assert (replayed > 0) is fade(*about)
    in_training, in_all = of_new / (1000 + replayed), of_new / 5000
    assert in_training <= in_all + EXCESS + 1e-3
    if replayed:
        assert in_training == pytest.approx(in_all + EXCESS, abs=1e-3)


def test_the_fewer_the_new_rows_the_more_are_replayed_for_each() -> None:
    some, many = (np.append(np.zeros(100, np.int64), np.full(20, each)) for each in (5, 50))
    assert replayed_rows(*counts(some)) / 100 > replayed_rows(*counts(many)) / 1000 > 1


def test_labels_that_become_frequent_are_new_too() -> None:
    new = np.where(np.arange(100) < 10, 100, 0)
    assert share_of_new(*counts(new)) == 1.0


def test_no_rows() -> None:
    none = np.zeros(100, np.int64)
    assert replayed_rows(none, OLD, 0, 4000) == 0
