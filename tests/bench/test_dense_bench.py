"""The benchmark of dense rows runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bench.dense import __main__ as program
from bench.dense.peers import centroids, neighbours, one_vs_rest, precisions
from bench.dense.sets import SETS, Rows, clusters, one_hot


def test_methods_are_measured_on_the_same_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.dense", "small", "--methods", "cosine,dslide"])
    program.main()
    first, *lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert first == "small: 1,000 rows of 64 features, 200 labels, 1.0 a row"
    found = {line.split("|")[1].strip(): re.findall(r"0\.\d{3}", line)[:3] for line in lines[2:]}
    assert list(found) == ["nearest centroid by cosine", "dslide, defaults"]
    assert all(len(precisions) == 3 and float(precisions[0]) > 0.8 for precisions in found.values())


def test_one_vs_rest_is_that_of_scikit_learn() -> None:
    rows = clusters(200, 10, 5, 1.5)
    rows = Rows(rows.x, rows.y, rows.new[:50], rows.true[:50])
    scores = np.stack(
        [
            LogisticRegression(C=10).fit(rows.x, rows.y.indices == label).decision_function(rows.new)
            for label in range(5)
        ]
    )
    found, _ = one_vs_rest(rows, 10.0)
    assert (found[:, 0] == scores.argmax(axis=0)).mean() > 0.98  # all but what rounding decides


def test_simple_methods_find_clear_clusters() -> None:
    pytest.importorskip("faiss", reason="needs faiss-cpu")
    rows = clusters(400, 16, 20, 0.3)
    for ids in (centroids(rows, True), centroids(rows, False), neighbours(rows, 1)[0]):
        assert precisions(ids, rows.true)[0] > 0.95


def test_folders_keep_rows(tmp_path: Path) -> None:
    rows = SETS["small"]()
    rows.write(tmp_path)
    again = Rows.read(tmp_path)
    assert np.array_equal(again.x, rows.x)
    assert (again.true != rows.true).nnz == 0
    assert one_hot(np.array([1, 0]), 2).toarray().tolist() == [[0, 1], [1, 0]]
