"""Layers and training with kernels of each instruction-set level give the same, to rounding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dslide import _core

TESTS = Path(__file__).parents[1]


def results_at(level: str, folder: Path) -> dict[str, np.ndarray]:
    path = folder / f"{level}.npz"
    environment = os.environ | {"DSLIDE_ISA": level}
    subprocess.run(
        [sys.executable, "-m", "support.run_at_level", path], cwd=TESTS, check=True, env=environment, timeout=200
    )
    with np.load(path) as results:
        return dict(results)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return results_at("reference", tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("level", [name for name in _core.isa_levels() if name != "reference"])
def test_level_gives_what_the_reference_gives(level, reference, tmp_path):
    results = results_at(level, tmp_path)
    assert str(results.pop("isa")) == level
    assert str(reference["isa"]) == "reference"
    assert len(results) > 500
    for name, array in results.items():
        # training: rounding errors grow over 18 steps of Adam
        bounds = {"rtol": 1e-3} if name.startswith("training") else {"rtol": 1e-4, "atol": 1e-4}
        assert_allclose(array, reference[name], err_msg=name, **bounds)
    assert results["training-softmax"][-1] < 0.9 * results["training-softmax"][0]  # there was something to compare


def test_unknown_level_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from dslide import _core; _core.isa()"],
        env=os.environ | {"DSLIDE_ISA": "v9"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "'v9' is not one this machine runs: reference" in done.stderr
