"""Options that are left open are decided by what the data is; those that are given never are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dslide import Config, Network, SlideClassifier, Trainer, load_model
from dslide.cli import main
from dslide.data import Dataset, SparseRows, TokenOptions, load, load_tokens
from dslide.errors import ConfigError
from dslide.model.defaults import DENSE, ITEMS, ROWS, WORDS, ResolvedConfig, resolve, resolve_like
from dslide.planner.memory import plan
from dslide.training.reading import load_for

SMALL = ["--batch-size", "32", "--threads", "1", "--epochs", "1", "--quiet"]
GIVEN: dict[str, Any] = {
    "prior_labels": 3,
    "prior_power": 0.25,
    "prior_boost": 2.5,
    "prior_scale": 7.0,
    "prior_learning_rate": 0.5,
    "prior_hits": 2,
    "linear_negatives": 5,
    "neighbours": 7,
    "linear_items": 6,
    "dropout_input": 0.45,
    "dropout_hidden": 0.05,
    "loss": "sigmoid",
    "activation": "relu",
    "hidden": (24,),
    "schedule": "cosine",
}


def rows(labels_per_row: list[int], labels: int = 20) -> Dataset:
    """Rows of one feature with so many labels each."""
    y = np.zeros((len(labels_per_row), labels), np.float32)
    for row, count in zip(y, labels_per_row, strict=True):
        row[:count] = 1
    return Dataset(SparseRows.from_scipy(np.ones((len(y), 1), np.float32)), SparseRows.from_scipy(sp.csr_matrix(y)))


def make_lines(labels_per_row: int) -> str:
    """Raw text: a word for each of a row's labels."""
    chance = random.Random(0)
    several = [chance.sample(range(9), labels_per_row) for _ in range(80)]
    return "".join(" ".join(f"l{n}" for n in row) + "\t" + " ".join(f"word{n}" for n in row) + "\n" for row in several)


def make_users() -> str:
    chance = random.Random(0)
    return "".join(" ".join(map(str, [user, *chance.sample(range(30), 6)])) + "\n" for user in range(80))


def make_words() -> str:
    chance = random.Random(0)
    return " ".join(f"word{chance.randrange(40)}" for _ in range(600)) + "\n"


ONE = ROWS | {"start": "random", "hidden": (256,), "loss": "softmax", "activation": "linear"}
KINDS: dict[str, tuple[Callable[[], str], list[str], dict[str, Any]]] = {  # text, options to read it, what is chosen
    "one label": (lambda: make_lines(1), [], ONE | {"prior_hits": ROWS["prior_hits"] // 2}),
    "several labels": (lambda: make_lines(3), [], ONE | {"loss": "sigmoid"}),
    "several, sampled": (lambda: make_lines(3), ["--output", "random"], ONE | {"loss": "sigmoid"}),
    "interactions": (make_users, ["--format", "interactions"], ONE | ITEMS),
    "words": (make_words, ["--format", "tokens", "--subsample", "0"], ONE | WORDS),
}


def chosen(config: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(found) if isinstance(found := config[name], list) else found for name in names}


# ---- the rules ------------------------------------------------------------------------------------------------------


def test_left_alone_everything_is_open() -> None:
    assert {getattr(Config(), name) for name in GIVEN} == {-1, "auto", (-1,)}
    assert set(GIVEN) == {*ROWS, "hidden", "loss", "activation"} == {*ITEMS, "hidden", "loss", "activation"}


@pytest.mark.parametrize("hidden", [(8,), (8, 8)])
def test_activation_follows_the_number_of_hidden_layers(hidden: tuple[int, ...]) -> None:
    expected = "linear" if len(hidden) == 1 else "relu"
    for config in (resolve(Config(hidden=hidden), 9), resolve(Config(hidden=hidden), 9, rows([3, 3]))):
        assert config.activation == expected


@pytest.mark.parametrize(
    ("labels_per_row", "options", "labels", "loss"),
    [
        ([1, 1, 1, 1], {}, 20, "softmax"),
        ([1, 2, 1, 2], {}, 20, "softmax"),  # 1.5 are not more than 1.5
        ([1, 2, 2, 2], {}, 20, "sigmoid"),
        ([0, 0, 0, 4], {}, 20, "softmax"),
        ([3, 3], {}, 8192, "sigmoid"),
        ([3, 3], {}, 8193, "sigmoid"),
        ([3, 3], {"output": "lsh"}, 20, "sigmoid"),
        ([3, 3], {"loss": "softmax"}, 20, "softmax"),
        ([1, 1], {"loss": "sigmoid"}, 20, "sigmoid"),
    ],
)
def test_loss_follows_the_labels_of_a_row(
    labels_per_row: list[int], options: dict[str, Any], labels: int, loss: str
) -> None:
    assert resolve(Config(**options), labels, rows(labels_per_row, labels)).loss == loss


@pytest.mark.parametrize(
    ("labels", "options", "output"),
    [
        (8192, {}, "full"),
        (8193, {}, "random"),  # with what the label prior looks up
        (8193, {"prior_labels": 0}, "cells"),
        (8193, {"prior_learning_rate": 0.0}, "cells"),
        (8193, {"active_sets": "row"}, "lsh"),
        (8193, {"hidden": (9,), "hidden_share": (0.5,)}, "lsh"),
        (8193, {"output": "full"}, "full"),
    ],
)
def test_outputs_follow_labels_and_prior(labels: int, options: dict[str, Any], output: str) -> None:
    assert resolve(Config(**options), labels, rows([1, 1], labels)).output == output
    assert resolve(Config(**options), labels).output == output


@pytest.mark.parametrize(
    ("count", "batch_size", "epochs"),
    [(1, 256, 100), (500, 256, 100), (25_600, 256, 2), (10_240, 256, 5), (600, 30, 10)],
)
def test_small_data_gets_more_epochs(count: int, batch_size: int, epochs: int) -> None:
    assert resolve(Config(batch_size=batch_size), 20, rows([1] * count)).epochs == epochs
    assert resolve(Config(batch_size=batch_size), 20, rows([2] * count)).epochs == max(3, epochs)
    assert resolve(Config(batch_size=batch_size), 20).epochs == 3


@pytest.mark.parametrize(
    ("count", "options", "ranks", "batch_size", "prior_hits", "hash_hits"),
    [
        (2**20, {}, 1, 256, 8, 4),
        (2**20, {}, 2, 512, 4, 2),
        (2**20, {}, 3, 512, 4, 2),  # a power of two
        (2**20, {}, 4, 1024, 2, 1),
        (2**20, {}, 64, 2048, 1, 1),  # the largest that was tried
        (640 * 512 - 1, {}, 4, 512, 4, 2),  # 1024 rows would leave fewer than 640 steps in two epochs
        (640 * 512, {}, 4, 1024, 2, 1),
        (640 * 256 - 1, {"epochs": 4}, 4, 512, 4, 2),
        (640 * 256, {"epochs": 4}, 4, 1024, 2, 1),
        (2**20, {"optimizer": "adam"}, 4, 256, 8, 4),
        (2**20, {"prior_labels": 0}, 4, 256, 8, 4),
        (1000, {}, 4, 256, 8, 4),
        (1000, {"batch_size": 1024}, 1, 1024, 2, 1),  # at equal batches all ranks train the same
        (2**20, {"batch_size": 100}, 8, 100, 8, 4),
        (2**20, {"prior_hits": 5, "hash_hits": 7}, 4, 1024, 5, 7),
    ],
)
def test_batches_grow_with_the_ranks_and_hits_are_theirs(
    count: int, options: dict[str, Any], ranks: int, batch_size: int, prior_hits: int, hash_hits: int
) -> None:
    indptr, one = np.arange(count + 1), np.ones(count, np.float32)
    x = SparseRows(indptr, np.zeros(count, np.int32), one, 1)
    y = SparseRows(2 * indptr, np.tile(np.array([3, 5], np.int32), count), np.ones(2 * count, np.float32), 20_000)
    config = resolve(Config(**options), 20_000, Dataset(x, y), ranks)
    assert (config.batch_size, config.prior_hits, config.hash_hits) == (batch_size, prior_hits, hash_hits)


@pytest.mark.parametrize("kind", ["interactions", "words"])
def test_batches_of_other_data_do_not_grow(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text(KINDS[kind][0]())
    data = load(path, format=kind) if kind == "interactions" else load_tokens(path, TokenOptions(subsample=0.0))
    assert resolve(Config(epochs=10_000), data.labels, data, 8).batch_size == 256


@pytest.mark.parametrize(("features", "labels"), [(1, 128), (256, 128), (512, 64), (40_000, 1)])
def test_long_rows_get_fewer_labels_of_a_feature(features: int, labels: int) -> None:
    x = SparseRows.from_scipy(np.ones((3, features), np.float32))
    data = Dataset(x, SparseRows.from_scipy(np.eye(3, dtype=np.float32)))
    assert resolve(Config(start="random"), 3, data).prior_labels == labels


def dense_rows(features: int, share: float, labels_per_row: int = 1) -> Dataset:
    """Rows that have a share of the features."""
    x = np.zeros((10, features), np.float32)
    x[:, : round(share * features)] = 1
    return Dataset(SparseRows.from_scipy(x), rows([labels_per_row] * 10).y)


@pytest.mark.parametrize(
    ("features", "share", "options", "start", "hidden"),
    [
        (384, 1.0, {}, "discriminant", (384,)),
        (384, 0.5, {}, "discriminant", (384,)),
        (384, 0.45, {}, "random", (256,)),
        (15, 1.0, {}, "random", (256,)),
        (16, 1.0, {}, "discriminant", (16,)),
        (1536, 1.0, {}, "discriminant", (512,)),
        (4096, 1.0, {}, "discriminant", (512,)),
        (4097, 1.0, {}, "random", (256,)),
        (384, 1.0, {"hidden": (64,)}, "discriminant", (64,)),
        (384, 1.0, {"prior_labels": 0}, "discriminant", (384,)),
        (384, 1.0, {"start": "random"}, "random", (256,)),
        (384, 0.1, {"start": "discriminant"}, "discriminant", (384,)),
        (384, 1.0, {"hidden": (64, 32)}, "random", (64, 32)),
        (384, 1.0, {"hidden": (64,), "hidden_share": (0.5,)}, "random", (64,)),
        (384, 1.0, {"activation": "relu"}, "random", (256,)),
        (384, 1.0, {"prior_labels": 7}, "random", (256,)),
    ],
)
def test_dense_rows_start_from_a_discriminant(
    features: int, share: float, options: dict[str, Any], start: str, hidden: tuple[int, ...]
) -> None:
    config = resolve(Config(**options), 20, dense_rows(features, share))
    assert (config.start, config.hidden) == (start, hidden)
    expected = {name: value for name, value in DENSE.items() if name not in options}
    assert (chosen(config.to_dict(), expected) == expected) == (start == "discriminant")
    assert resolve(Config(**options), 20).start == options.get("start", "random")


@pytest.mark.parametrize(("labels_per_row", "loss"), [(1, "softmax"), (2, "sigmoid")])
def test_dense_rows_have_the_loss_of_other_rows(labels_per_row: int, loss: str) -> None:
    config = resolve(Config(), 20, dense_rows(64, 1.0, labels_per_row))
    assert (config.start, config.loss, config.epochs) == ("discriminant", loss, 100)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"hidden": (8, 8)}, r"hidden = \(8, 8\)"),
        ({"activation": "relu"}, "activation = relu"),
        ({"hidden_share": (0.5,)}, r"hidden_share = \(0.5,\)"),
        ({"prior_labels": 4}, "prior_labels = 4"),
    ],
)
def test_a_discriminant_is_for_one_linear_layer(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=f"start = discriminant is for one linear .*, not for {what}"):
        Config(start="discriminant", **options)


@given(st.sets(st.sampled_from(sorted(GIVEN))), st.sampled_from(sorted(KINDS.keys() - {"several, sampled"})))
def test_only_what_is_open_is_decided(tmp_path_factory: pytest.TempPathFactory, names: set[str], kind: str) -> None:
    make, _, expected = KINDS[kind]
    path = tmp_path_factory.mktemp("data") / "file"
    path.write_text(make())
    data: Any
    if kind == "words":
        data = load_tokens(path, TokenOptions(subsample=0))
    else:
        data = load(path, format="interactions" if kind == "interactions" else "tsv")
    some = {name: GIVEN[name] for name in names}
    config = resolve(Config(epochs=3, **some), data.labels, data)
    sampling = {"output": "full", "hidden_share": (1.0,), "hash_hits": 4, "random_negatives": data.labels}
    sampling |= {"negative_sampling": "frequency", "batch_size": 256}
    assert config == ResolvedConfig(epochs=3, micro_batches=2, validation=0.0, **sampling | expected | some)
    assert resolve(config, 9) is config


def test_rows_with_one_label_get_half_as_many_negatives() -> None:
    several, one = (resolve(Config(), 70_000, rows([n] * 40, labels=70_000)) for n in (2, 1))
    assert (several.prior_hits, several.random_negatives) == (8, 1024)
    assert (one.prior_hits, one.random_negatives) == (4, 512)


def test_zero_is_a_value_like_others() -> None:
    none = {"prior_labels": 0, "prior_power": 0.0, "prior_boost": 0.0, "prior_scale": 0.0, "prior_learning_rate": 0.0,
            "prior_hits": 0, "dropout_input": 0.0, "dropout_hidden": 0.0}  # fmt: skip
    assert chosen(resolve(Config(**none), 9).to_dict(), none) == none


def test_what_was_decided_before_stays() -> None:
    before = resolve(Config(**GIVEN), 70_000)
    assert (before.output, before.random_negatives) == ("random", 1024)
    assert resolve_like(Config(epochs=3), before) == before.replace(epochs=3)
    changed = {"loss": "softmax", "prior_labels": 5, "output": "lsh"}
    assert resolve_like(Config(**changed), before) == before.replace(**changed)


def test_an_option_left_open_is_no_resolved_one() -> None:
    with pytest.raises(ValueError, match="options left open: loss"):
        resolve(Config(), 9).replace(loss="auto")


@pytest.mark.parametrize(
    ("labels", "options", "sizes"),
    [
        (100, {}, (0, 100)),
        (100, {"output": "lsh"}, (4, 100)),
        (50_000, {}, (0, 1024)),
        (50_000, {"prior_labels": 0}, (4, 2048)),
        (50_000, {"prior_labels": 0, "output": "random"}, (0, 2048)),
        (50_000, {"active_sets": "row"}, (256, 256)),
        (800, {"active_sets": "row", "output": "lsh"}, (101, 101)),
        (50_000, {"hash_hits": 0, "random_negatives": 7}, (0, 7)),
    ],
)
def test_sampling_follows_the_labels(labels: int, options: dict[str, Any], sizes: tuple[int, int]) -> None:
    config = resolve(Config(**options), labels)
    assert (config.hits_per_row, config.random_negatives) == sizes


# ---- where they are used --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_decides_saves_and_goes_on(kind: str, tmp_path: Path) -> None:
    make, options, expected = KINDS[kind]
    data, run = str(tmp_path / "data.tsv"), tmp_path / "run"
    Path(data).write_text(make())
    assert main(["train", data, "--out", str(run), *SMALL, *options]) == 0
    for config in (
        json.loads((run / "summary.json").read_text())["config"],
        json.loads((run / "log.jsonl").read_text().splitlines()[0])["config"],
        load_model(run).config.to_dict(),
    ):
        assert chosen(config, expected) == expected
    assert ("prior.weight" in load_model(run).state) == (kind != "words")
    again = [
        "--epochs",
        "2",
        "--threads",
        "1",
        "--quiet",
        "--prior-labels",
        "-1",
        "--loss",
        "auto",
    ]  # open again: as before
    assert main(["train", data, "--resume", str(run), *again]) == 0
    assert chosen(load_model(run).config.to_dict(), expected) == expected


def test_what_is_given_is_used_and_does_not_change_on_resuming(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, run = tmp_path / "data.tsv", tmp_path / "run"
    data.write_text(make_lines(3))
    words = [f"--{name.replace('_', '-')}={str(value).strip('(,)')}" for name, value in GIVEN.items()]
    assert main(["train", str(data), "--out", str(run), *SMALL, *words]) == 0
    assert chosen(load_model(run).config.to_dict(), GIVEN) == GIVEN
    assert main(["train", str(data), "--resume", str(run), "--epochs", "2", "--loss", "softmax"]) == 2
    assert "loss: the run was begun with 'sigmoid'" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["one label", "interactions", "words"])
def test_a_plan_is_that_of_the_run(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of as many links as are chosen for the data."""
    monkeypatch.setattr("dslide.planner.calibration.TRIAL_SECONDS", 0.05)  # times are not looked at
    make, options, expected = KINDS[kind]
    data = tmp_path / "data.tsv"
    data.write_text(make())
    sizes = ["--labels", "40000"] if kind == "interactions" else []
    lines = []
    for links in ("-1", expected["prior_labels"], 17):
        assert (
            main(["plan", str(data), *options, *sizes, "--hidden", "8", "--nodes", "2", "--prior-labels", str(links)])
            == 0
        )
        lines.append(capfd.readouterr().out.splitlines()[0])
    assert lines[0] == lines[1]
    assert (lines[0] != lines[2]) == (kind == "interactions")  # elsewhere there are few features


def test_nothing_known_of_the_data_is_planned_as_rows() -> None:
    assert plan(Config(), 1000, 500) == plan(resolve(Config(), 500), 1000, 500)
    assert plan(Config(), 1000, 500).bytes_total > plan(Config(prior_labels=0), 1000, 500).bytes_total


def test_networks_and_trainers_have_no_open_options() -> None:
    for made in (Network(Config(hidden=(4,)), 5, 6), Trainer(Config(hidden=(4,), threads=1), 5, 6)):
        assert made.config == resolve(Config(hidden=(4,), threads=made.config.threads), 6)


def test_an_estimator_keeps_its_parameters_and_goes_on_with_what_was_decided() -> None:
    several, one = rows([3] * 40), rows([1] * 40)
    model = SlideClassifier(hidden=(4,), epochs=1, threads=1).fit(several.x, several.y)
    assert model.get_params()["loss"] == "auto"
    assert model.network_.config.loss == "sigmoid"
    model.partial_fit(one.x, one.y)
    assert model.network_.config.loss == model.trainer_.config.loss == "sigmoid"
    with pytest.raises(ConfigError, match="loss: training began with 'sigmoid'"):
        model.set_params(loss="softmax").partial_fit(one.x, one.y)
    assert SlideClassifier(hidden=(4,), threads=1).fit(one.x, one.y).network_.config.loss == "softmax"


# ---- interactions of saved models -----------------------------------------------------------------------------------


def test_a_saved_model_weighs_items_as_in_training(tmp_path: Path) -> None:
    """Of a file with one user too, in which all items are equally rare."""
    lines = ["0 0 1 2\n", "1 0 1\n", "2 0 3\n", "3 0 4 5\n"]
    (tmp_path / "train.txt").write_text("".join(lines))
    (tmp_path / "one.txt").write_text(lines[0])
    (tmp_path / "later.txt").write_text("0 4\n")
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "train.txt"), "--format", "interactions", "--out", str(run), *SMALL]) == 0
    saved, options = load_model(run), {"format": "auto", "base": "auto"}
    found = [
        load_for(saved, tmp_path / "one.txt", options),
        load_for(saved, tmp_path / "later.txt", options, tmp_path / "one.txt"),
    ]
    squares = np.array([1 / 5, 1 / 3, 1 / 2])  # items 0, 1 and 2 occur 4 times, twice and once
    for data in found:
        assert data.x.indices.tolist() == [0, 1, 2]
        np.testing.assert_allclose(data.x.values**2, squares / squares.sum(), rtol=1e-6)
