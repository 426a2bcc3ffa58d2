"""The price of samples: the arithmetic, and tables of invented speeds."""

from __future__ import annotations

import pytest

from bench.cluster import cost
from bench.cluster.cost import Peak
from bench.lib.sections import Summary
from bench.lib.workload import Shape


def test_price_of_a_million_samples() -> None:
    assert cost.dollars_a_million(1000, 3.6) == pytest.approx(1.0)  # a thousand seconds at a tenth of a cent
    assert cost.bought(1.0, 1000, 3.6) == pytest.approx(1e6)


def test_a_gpu_is_bound_by_what_takes_longer() -> None:
    """100 labels, hidden 10, batch 4: 24,000 operations, and 24 bytes for each of 1,200 weights."""
    shape = Shape(1, 20, 100)
    assert cost.most_samples_per_second(Peak("x", 24_000, float("inf"), ""), shape, 10, 4) == pytest.approx(4)
    assert cost.most_samples_per_second(Peak("x", 1e12, 28_800, ""), shape, 10, 4) == pytest.approx(4)
    assert cost.most_samples_per_second(Peak("x", 24_000, 14_400, ""), shape, 10, 4) == pytest.approx(2)


def test_tables_of_what_follows_from_a_speed() -> None:
    text = cost.derived({"dslide": Summary(10_000, 9000, 11_000)}, threads=2)
    # 100 seconds at 2 x $0.0425 an hour; an epoch of 490,449 rows takes 49 seconds
    assert "| dslide | 10,000 | 0.085 | 1.7 | 0.0024 | 0.8 | measured here, 2 vCPUs |" in text
    assert "| dslide, spot VM | 10,000 | 0.025 | 1.7 | 0.0007 | 0.8 | measured here, 2 vCPUs |" in text
    # $16.83 buys 198 hours of 2 vCPUs, 7.1 billion samples
    assert "| TensorFlow 1.12, full softmax, one V100 | 5.5 | 16.83 | 14,534 | arXiv 1903.03129" in text
    assert text.count("(derived)") == 2


def test_every_published_figure_has_its_source() -> None:
    assert cost.PUBLISHED[0].source.startswith("arXiv ")
    assert all(one.source for one in (*cost.PUBLISHED, *cost.PEAKS))
    assert {peak.gpu for peak in cost.PEAKS} <= set(cost.GPU_HOUR)
