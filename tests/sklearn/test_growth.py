"""partial_fit with classes, labels, features and words that were not there before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from dslide import SlideClassifier
from dslide.errors import DataError

OPTIONS = {"hidden": (8,), "learning_rate": 0.05, "threads": 1, "batch_size": 16}


def rows(truth: np.ndarray, columns: int) -> sp.csr_matrix:
    """A feature for each class, among `columns`."""
    return sp.csr_matrix((np.ones(len(truth), np.float32), (np.arange(len(truth)), truth)), (len(truth), columns))


@pytest.mark.parametrize("start", ["fit", "partial_fit"])
def test_new_classes_and_columns_are_learned(start: str, tmp_path: Path) -> None:
    names = np.array(["owl", "cat", "dog", "ant"])
    first, second = np.tile([0, 1], 100), np.tile([0, 1, 2, 3], 50)
    model = SlideClassifier(epochs=3, **OPTIONS)
    if start == "fit":
        model.fit(rows(first, 2), names[first])
    else:
        model.partial_fit(rows(first, 2), names[first], classes=["owl", "cat"])
    for _ in range(8):
        model.partial_fit(rows(second, 4), names[second])
    assert model.classes_.tolist() == ["cat", "owl", "ant", "dog"]
    assert model.n_features_in_ == 4
    assert model.predict(rows(np.arange(4), 4)).tolist() == names.tolist()
    assert model.predict_proba(rows(np.arange(4), 4)).argmax(axis=1).tolist() == [1, 0, 3, 2]
    assert model.score(rows(second, 4), names[second]) == 1
    model.save(tmp_path / "model")
    again = SlideClassifier.load(tmp_path / "model")
    assert again.predict(rows(np.arange(4), 4)).tolist() == names.tolist()


def test_new_columns_of_labels_are_learned() -> None:
    model = SlideClassifier(epochs=3, **OPTIONS)
    first = np.tile([0, 1, 2], 60)
    model.fit(rows(first, 3), pd.DataFrame(np.eye(3)[first], columns=["a", "b", "c"]))
    second = np.tile([0, 1, 2, 3, 4], 40)
    y = pd.DataFrame(np.eye(5)[second], columns=["a", "b", "c", "d", "e"])
    for _ in range(8):
        model.partial_fit(rows(second, 5), y)
    columns, _ = model.predict_topk(rows(np.arange(5), 5), 1)
    assert model.classes_[columns[:, 0]].tolist() == ["a", "b", "c", "d", "e"]
    with pytest.raises(DataError, match="other names than those of the rows before"):
        model.partial_fit(rows(second, 6), y.rename(columns={"a": "x"}).assign(f=0))


def test_new_words_are_learned() -> None:
    model = SlideClassifier(epochs=5, **OPTIONS)
    model.fit(["red apple", "blue sky"] * 40, ["fruit", "weather"] * 40)
    for _ in range(8):
        model.partial_fit(
            ["green bicycle", "fast bicycle", "red apple", "blue sky"] * 20, ["sport", "sport", "fruit", "weather"] * 20
        )
    assert model.predict(["bicycle", "apple", "sky"]).tolist() == ["sport", "fruit", "weather"]


STREAM = """
import numpy as np, scipy.sparse as sp
from dslide import SlideClassifier
from dslide.util.memory import rss_bytes

model = SlideClassifier(hidden=(32,), threads=1, batch_size=64)
rng = np.random.default_rng(0)
held = []
for step in range(60):
    labels = 2000 + 10 * step  # a few more in every batch
    y = sp.csr_matrix((np.ones(256), (np.arange(256), rng.integers(0, labels, 256))), (256, labels))
    model.partial_fit(sp.random(256, 4000, 0.01, "csr", np.float32, random_state=step), y)
    held.append(rss_bytes())
print(held[19], held[-1])
"""


def test_the_memory_of_a_stream_stays_as_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", STREAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    early, late = map(int, done.stdout.split())
    assert late < early + 20_000_000  # 400 more labels of 32 numbers and their moments are less than 1 MB
