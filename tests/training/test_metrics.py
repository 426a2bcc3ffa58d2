"""Metrics against values worked out by hand and against napkinXC."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslide.training.metrics import Evaluation, inverse_propensities


@dataclass
class Rows:
    """The part of SparseRows that metrics look at."""

    indptr: np.ndarray
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indptr) - 1


def rows(*lists: list[int]) -> Rows:
    return Rows(np.cumsum([0, *map(len, lists)]).astype(np.int64), np.array([i for x in lists for i in x], np.int32))


def evaluate(ids: list[list[int]], *true: list[int], **options: object) -> dict[str, float]:
    evaluation = Evaluation(**options)  # type: ignore[arg-type]
    evaluation.update(np.array(ids), rows(*true))  # type: ignore[arg-type]
    return evaluation.result()


def test_worked_example() -> None:
    #            rank:  1  2  3  4  5      true labels
    # row 0            [4, 1, 7, 2, 9]     1, 2, 3    hits at ranks 2 and 4
    # row 1            [0, 5, 6, 8, 3]     0          hit at rank 1
    result = evaluate([[4, 1, 7, 2, 9], [0, 5, 6, 8, 3]], [1, 2, 3], [0])
    assert result["p_at_1"] == pytest.approx((0 + 1) / 2)
    assert result["p_at_3"] == pytest.approx((1 / 3 + 1 / 3) / 2)
    assert result["p_at_5"] == pytest.approx((2 / 5 + 1 / 5) / 2)
    assert result["r_at_1"] == pytest.approx((0 + 1) / 2)
    assert result["r_at_3"] == pytest.approx((1 / 3 + 1) / 2)
    assert result["r_at_5"] == pytest.approx((2 / 3 + 1) / 2)
    # DCG of row 0: 1/log2(3) = 0.63093 at rank 2, 1/log2(5) = 0.43068 at rank 4
    # ideal of row 0, 3 labels: 1 + 1/log2(3) + 1/log2(4) = 1 + 0.63093 + 0.5 = 2.13093 for k = 3 and 5
    # row 1 is ideal: 1 at every k
    assert result["ndcg_at_1"] == pytest.approx((0 + 1) / 2)
    assert result["ndcg_at_3"] == pytest.approx((0.63093 / 2.13093 + 1) / 2, abs=1e-5)
    assert result["ndcg_at_5"] == pytest.approx(((0.63093 + 0.43068) / 2.13093 + 1) / 2, abs=1e-5)
    assert (result["rows"], result["rows_without_labels"]) == (2, 0)
    assert "psp_at_1" not in result  # no label counts given


def test_worked_propensities() -> None:
    # C = (ln 100 - 1) * 2.5^0.55 = 3.60517 * 1.65524 = 5.96743
    # n = 0: 1 + 5.96743 * 1.5^-0.55 = 1 + 5.96743 * 0.80010 = 5.77456
    # n = 9: 1 + 5.96743 * 10.5^-0.55 = 1 + 5.96743 * 0.27437 = 2.63738
    c = (math.log(100) - 1) * 2.5**0.55
    assert c == pytest.approx(5.9674, abs=1e-3)
    weights = inverse_propensities(np.array([0, 9]), 100)
    assert weights == pytest.approx([1 + c * 1.5**-0.55, 1 + c * 10.5**-0.55])
    assert weights == pytest.approx([5.774, 2.637], abs=2e-3)
    assert inverse_propensities(np.array([0, 1]), 1).tolist() == [1, 1]


def test_psp_is_normalised_over_all_rows_together() -> None:
    rare, common = inverse_propensities(np.array([0, 9]), 100)
    # label 0 is rare, label 1 common; row 0 has both and finds the common one; row 1 finds its common one
    # PSP@1: (common + common) / (rare + common); PSP@3: (common + common) / (rare + common + common)
    result = evaluate([[1, 7], [1, 7]], [0, 1], [1], ks=(1, 3), label_counts=np.array([0, 9]), rows=100)
    assert result["psp_at_1"] == pytest.approx(2 * common / (rare + common))
    assert result["psp_at_3"] == pytest.approx(2 * common / (rare + 2 * common))


def test_rows_without_labels_are_left_out_and_counted() -> None:
    with_empty = evaluate([[0, 1], [0, 1], [1, 0]], [0], [], [0], label_counts=np.array([3, 4]), rows=9)
    without = evaluate([[0, 1], [1, 0]], [0], [0], label_counts=np.array([3, 4]), rows=9)
    assert with_empty.pop("rows_without_labels") == 1
    assert without.pop("rows_without_labels") == 0
    assert with_empty == without


def test_nothing_to_evaluate_is_nan() -> None:
    result = evaluate([[0]], [])
    assert result["rows"] == 0
    assert math.isnan(result["p_at_1"])
    assert math.isnan(result["ndcg_at_5"])


def test_labels_beyond_the_model_are_misses() -> None:
    # the model knows labels 0 and 1; label 7 is true but can't be found: recall is a half
    result = evaluate([[1, 0]], [1, 7], ks=(1, 2), label_counts=np.array([5, 5]), rows=50)
    assert result["r_at_2"] == pytest.approx(0.5)
    assert result["p_at_2"] == pytest.approx(0.5)
    known, unseen = inverse_propensities(np.array([5, 0]), 50)
    assert result["psp_at_2"] == pytest.approx(known / (known + unseen))


def test_missing_predictions_are_misses() -> None:
    # -1 stands for "nothing found" and must not match the last label or anything in the row before
    result = evaluate([[2, -1, -1], [-1, -1, -1]], [2], [0], ks=(1, 3))
    assert result["p_at_1"] == pytest.approx(0.5)
    assert result["p_at_3"] == pytest.approx(1 / 6)


def test_too_few_rows_of_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows predicted, but 1 rows of true labels"):
        evaluate([[0], [1]], [0])


def as_lightgcn_defines(ranked: list[list[int]], held_out: list[list[int]], k: int) -> tuple[float, float]:
    """Means over users of recall@k and ndcg@k, read slowly: hits among the first k over the number of held-out items;
    DCG over that of as many hits as there can be, min(k, held-out items), all in front."""
    recalls, ndcgs = [], []
    for items, wanted in zip(ranked, held_out, strict=True):
        right = [item in wanted for item in items[:k]]
        recalls.append(sum(right) / len(wanted))
        dcg = sum(1 / math.log2(place + 2) for place, hit in enumerate(right) if hit)
        ndcgs.append(dcg / sum(1 / math.log2(place + 2) for place in range(min(k, len(wanted)))))
    return sum(recalls) / len(recalls), sum(ndcgs) / len(ndcgs)


@given(st.data())
def test_recall_and_ndcg_are_those_of_recommendation(data: st.DataObject) -> None:
    items = st.lists(st.integers(0, 40), unique=True, min_size=1, max_size=30)
    held_out = data.draw(st.lists(items, min_size=1, max_size=8))
    ranked = [list(data.draw(st.permutations(range(30))))[:20] for _ in held_out]  # 30 to 40 can't be found
    result = evaluate(ranked, *held_out, ks=(1, 5, 20))
    for k in (1, 5, 20):
        expected = as_lightgcn_defines(ranked, held_out, k)
        assert (result[f"r_at_{k}"], result[f"ndcg_at_{k}"]) == pytest.approx(expected)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[list[int]], list[list[int]]]:
    labels = draw(st.integers(6, 30))
    one_row = st.lists(st.integers(0, labels - 1), unique=True, min_size=1, max_size=8)
    true = draw(st.lists(one_row, min_size=1, max_size=12))
    ranking = st.permutations(range(labels)).map(lambda order: list(order)[:5])
    return labels, [draw(ranking) for _ in true], true


@given(cases(), st.integers(1, 12))
def test_agrees_with_napkinxc_however_rows_are_cut(
    case: tuple[int, list[list[int]], list[list[int]]], piece: int
) -> None:
    napkin = pytest.importorskip("napkinxc.metrics")
    labels, ranking, true = case
    counts, train_rows = np.arange(labels) % 7, 40
    evaluation = Evaluation((1, 2, 3, 4, 5), counts, train_rows)
    for begin in range(0, len(true), piece):
        part = slice(begin, begin + piece)
        evaluation.update(np.array(ranking[part]), rows(*true[part]))  # type: ignore[arg-type]
    result = evaluation.result()
    weights = inverse_propensities(counts, train_rows)
    expected = {
        "p": napkin.precision_at_k(true, ranking, k=5),
        "r": napkin.recall_at_k(true, ranking, k=5),
        "ndcg": napkin.ndcg_at_k(true, ranking, k=5),
        "psp": napkin.psprecision_at_k(true, ranking, weights, k=5, normalize=True),
    }
    for name, values in expected.items():
        assert [result[f"{name}_at_{k}"] for k in range(1, 6)] == pytest.approx(values), name


def test_propensities_agree_with_napkinxc() -> None:
    napkin = pytest.importorskip("napkinxc.metrics")
    true = (np.random.default_rng(3).random((50, 9)) < 0.3).astype(np.float32)
    ours = inverse_propensities(true.sum(axis=0).astype(np.int64), 50)
    assert ours == pytest.approx(napkin.Jain_et_al_inverse_propensity(true))


def test_coverage_counts_labels_that_are_predicted_for_some_row() -> None:
    found = evaluate([[0, 1], [0, 2], [0, -1]], [0], [1], [], ks=(1, 2), label_counts=np.ones(5, np.int64), rows=9)
    assert (found["coverage_at_1"], found["coverage_at_2"]) == (1 / 5, 3 / 5)
