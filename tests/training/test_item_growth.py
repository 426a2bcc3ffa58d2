"""Growth of models of interactions: with further users, items and interactions of known users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dslide
from dslide.data import Dataset, load
from dslide.data.items import item_features
from dslide.errors import ConfigError
from dslide.training.callbacks import Callback
from dslide.training.item_growth import merged

OPTIONS: dict[str, Any] = {"threads": 1, "hidden": (16,), "seed": 1}


def pairs(users: range, groups: range, seed: int) -> list[tuple[int, str]]:
    """Users like the items of one group of ten, and buy six of them."""
    rng = np.random.default_rng(seed)
    made = []
    for user in users:
        group = groups[user % len(groups)]
        made += [(user, f"group {group} item {item}") for item in rng.choice(10, 6, replace=False)]
    return made


def write(path: Path, found: list[tuple[int, str]]) -> Path:
    path.write_text("user,item\n" + "".join(f"reader {user},{item}\n" for user, item in found))
    return path


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three groups of items; new.csv has two more, and more users of all."""
    folder = tmp_path_factory.mktemp("shop")
    write(folder / "old.csv", pairs(range(300), range(3), 1))
    write(folder / "new.csv", [*pairs(range(300, 400), range(5), 2), *pairs(range(20), range(3, 5), 3)])
    dslide.train(folder / "old.csv", out=folder / "old", epochs=10, **OPTIONS)
    return folder


def hits(run: Path, groups: range) -> float:
    """The share of items of the same group among the best four for a user with six."""
    found, wanted = [], []
    for group in groups:
        names = [f"group {group} item {item}" for item in range(10)]
        (best,) = dslide.predict(run, [names[:6]], k=4)
        assert best.names is not None
        found.append(len({*best.names} & {*names}))
        wanted.append(4)
    return sum(found) / sum(wanted)


def test_a_model_learns_new_items_and_keeps_the_old_ones(shop: Path, tmp_path: Path) -> None:
    result = dslide.train(shop / "new.csv", out=tmp_path / "grown", start_from=shop / "old", replay=shop / "old.csv")
    assert result.summary["labels"] == 50
    assert result.summary["rows"] == 400
    old, grown = dslide.open_model(shop / "old").saved, dslide.open_model(tmp_path / "grown").saved
    assert old.label_names is not None
    assert grown.label_names is not None
    assert grown.label_names[:30] == old.label_names
    assert grown.label_counts is not None
    both = [*pairs(range(300), range(3), 1), *pairs(range(300, 400), range(5), 2), *pairs(range(20), range(3, 5), 3)]
    held_out = len({*both}) - grown.label_counts.sum()  # to calibrate
    assert 0 <= held_out < 0.2 * len(both)
    assert hits(tmp_path / "grown", range(5)) > 0.9


def test_growing_can_be_interrupted_and_resumed(shop: Path, tmp_path: Path) -> None:
    class Stop(Callback):
        def on_step(self, trainer: Any, info: Any) -> None:
            if info.step == 3:
                raise KeyboardInterrupt

    about: dict[str, Any] = {"replay": shop / "old.csv", "threads": 1}
    whole = dslide.train(shop / "new.csv", out=tmp_path / "whole", start_from=shop / "old", epochs=3, **about)
    begun = tmp_path / "begun"
    assert dslide.train(
        shop / "new.csv", out=begun, start_from=shop / "old", epochs=3, callbacks=[Stop()], **about
    ).interrupted
    resumed = dslide.resume(begun, shop / "new.csv", **about)
    for name, array in whole.network.state().items():
        np.testing.assert_array_equal(array, resumed.network.state()[name], err_msg=name)


def test_earlier_interactions_are_needed(shop: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"from: .*old was trained on interactions, and needs the earlier ones .*replay"
    ):
        dslide.train(shop / "new.csv", out=tmp_path / "never", start_from=shop / "old")
    with pytest.raises(ConfigError, match="hold_out: has no use with interactions of a model that grows"):
        dslide.train(shop / "new.csv", out=tmp_path / "never", start_from=shop / "old", replay=shop / "old.csv",
                     hold_out=0.1)  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
def test_merged_interactions_are_those_of_one_file(tmp_path: Path, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    lines = [f"u{rng.integers(9)},i{rng.integers(12)},{rng.integers(1, 5)}" for _ in range(120)]
    options: dict[str, Any] = {"weight_column": 3} if weighted else {}
    found = []
    for name, some in (("all", lines), ("old", lines[:80]), ("new", lines[80:])):
        (tmp_path / f"{name}.csv").write_text("user,item,stars\n" + "\n".join(some) + "\n")
        history = {"history": found[1], "layout": found[1].layout} if name == "new" else options
        data = load(tmp_path / f"{name}.csv", format="interactions", **history)
        assert isinstance(data, Dataset)
        found.append(data)
    whole, old, new = found
    both = merged([old, new], new.labels, new.label_names)
    assert both.user_names == whole.user_names
    assert whole.label_names is not None
    assert both.label_names is not None
    order = [both.label_names.index(name) for name in whole.label_names]
    np.testing.assert_array_equal(both.y.to_scipy().toarray()[:, order], whole.y.to_scipy().toarray())
    expected = item_features(both.y, both.y.column_counts())
    assert isinstance(both.x, type(expected))
    np.testing.assert_array_equal(both.x.values, expected.values)
