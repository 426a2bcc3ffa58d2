"""The benchmark of dense rows runs."""

from __future__ import annotations

import re

import pytest

from bench import dense


def test_methods_are_measured_on_the_same_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.dense", "small", "--threads", "1"])
    dense.main()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "small: 1,000 rows of 64 features, 200 labels, 1.0 a row"
    found = {line[2:24].strip(): [float(p) for p in re.findall(r"0\.\d{3}", line)] for line in lines}
    assert list(found) == ["centroids, cosine", "centroids, distance", "scikit-learn's LDA", "dslide, defaults"]
    assert all(len(precisions) == 3 and precisions[0] > 0.8 for precisions in found.values())
