"""The label prior survives saving on any number of ranks and opening on any other, resuming, pickling, more training;
and what is damaged is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from support.inprocess import run_ranks
from support.plain import PLAIN, PLAIN_ARGUMENTS

from dslide import Config, Network, SlideClassifier, Trainer, Vectors, load_model
from dslide.checkpoint.collective_load import load_on_all_ranks
from dslide.checkpoint.manifest import WEIGHTS, Manifest, write_arrays, write_json
from dslide.checkpoint.saved_model import SavedModel, save_model
from dslide.checkpoint.tensor_file import open_tensors
from dslide.cli import main
from dslide.comm import solo
from dslide.config import OPTIONS
from dslide.data import Dataset, SparseRows
from dslide.errors import ModelError
from dslide.model.label_prior import LINEAR, TYPES
from dslide.model.sharding import Shard
from dslide.planner.memory import plan

FEATURES, LABELS, ROWS = 20, 37, 60
CONFIG = Config(
    **PLAIN | {"hidden": (8,), "prior_labels": 5, "prior_scale": 3.0, "batch_size": 16, "epochs": 2, "threads": 1}
    | {"wire": "float32", "dropout_input": 0.2}
)  # fmt: skip


def make_data(features: int = FEATURES, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.random((ROWS, features)) * (rng.random((ROWS, features)) < 0.3)
    y = rng.random((ROWS, LABELS)) < 0.06
    y[np.arange(ROWS), rng.integers(0, LABELS, ROWS)] = True
    return Dataset(SparseRows.from_scipy(x.astype(np.float32)), SparseRows.from_scipy(y))


DATA = make_data()


def save(folder: Path, size: int, config: Config = CONFIG) -> Any:
    """Trains on that many ranks and saves; predictions."""

    def work(comm):
        trainer = Trainer(config, FEATURES, LABELS, comm=comm)
        trainer.fit(DATA)
        state = trainer.network.state()
        model = SavedModel(config, FEATURES, LABELS, state, feature_names=[f"f{i}" for i in range(FEATURES)],
                           progress=trainer.progress())  # fmt: skip
        save_model(folder, model, comm=comm)
        return trainer.network.predict_topk(DATA.x, 4)

    return run_ranks(size, work)[0]


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (1, 3), (4, 2), (3, 1), (2, 3)])
def test_any_number_of_ranks_opens_what_any_other_saved(tmp_path, writers, readers):
    ids, scores = save(tmp_path / "m", writers)

    def work(comm):
        saved = load_on_all_ranks(tmp_path / "m", comm, optimizer=True, verify=True)
        weights = Network(saved.config, FEATURES, LABELS, comm=comm, trainable=False, weights=saved.state)
        again = Network(saved.config, FEATURES, LABELS, comm=comm)
        again.load_state(saved.state)
        again.predict_topk(DATA.x, 4)
        for name, array in again.prior.state().items():
            assert_array_equal(array, saved.state[name], strict=True)
            assert array.flags.owndata  # training continues when the file is replaced
        return weights.predict_topk(DATA.x, 4)

    for found, found_scores in run_ranks(readers, work):
        assert_array_equal(found, ids)
        assert_allclose(found_scores, scores, rtol=1e-5, atol=1e-5)


def test_the_prior_is_mapped_from_the_file_for_prediction(tmp_path):
    save(tmp_path / "m", 1)
    saved = load_model(tmp_path / "m")
    network = Network(saved.config, FEATURES, LABELS, trainable=False, weights=saved.state)
    for array in network.prior.state().values():
        assert not array.flags.owndata
        assert not array.flags.writeable
    assert len(Vectors.open(tmp_path / "m")) == FEATURES


# ---- damage ---------------------------------------------------------------------------------------------------------


def damaged(folder: Path, shards: int = 1, rank: int = 0, **changes: Any) -> Path:
    """A model with changed arrays of the label prior, None for one that is missing, in one of its files."""
    save(folder, shards)
    name = WEIGHTS if shards == 1 else f"weights-{rank}-of-{shards}.safetensors"
    arrays = dict(open_tensors(folder / name).arrays)
    for which, change in changes.items():
        array = np.array(arrays.pop(f"prior.{which}"))
        if change is not None:
            arrays[f"prior.{which}"] = change(array)
    manifest = Manifest.read(folder)
    (folder / name).unlink()
    Manifest(shards, manifest.files | {name: write_arrays(folder / name, arrays)}).write(folder)
    return folder / name


def put(at: int, value: float) -> Any:
    def change(array):
        array[at] = value
        return array

    return change


DAMAGE = {
    "type": ({"neuron": lambda a: a.astype(np.int64)}, r"array prior.neuron is int64\[\d+\], expected int32\[\d+\]"),
    "shape": ({"weight": lambda a: a[:-1]}, r"array prior.weight is float32\[\d+\], expected float32"),
    "dimensions": ({"weight": lambda a: a[:, None]}, r"array prior.weight is float32\[\d+, 1\], expected float32"),
    "features": ({"begin": lambda a: a[1:]}, r"array prior.begin is int64\[20\], expected int64\[21\]"),
    "labels": ({"share": lambda a: a[1:]}, r"array prior.share is float32\[36\], expected float32\[37\]"),
    "missing": ({"begin": None}, "array prior.begin is missing"),
    "falling": ({"begin": put(3, 10**6)}, "the label prior of the network is damaged: offsets must not decrease"),
    "negative": ({"begin": put(-1, -5)}, r"array prior.neuron is int32\[\d+\], expected int32\[0\]"),
    "no beginning": ({"begin": put(0, 1)}, "the label prior of the network is damaged: offsets don't span the ids"),
    "label": ({"neuron": put(2, LABELS)}, "the label prior of the network is damaged: an id is out of range"),
    "negative label": ({"neuron": put(0, -1)}, "the label prior of the network is damaged: an id is out of range"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_prior_is_refused(tmp_path, kind):
    changes, why = DAMAGE[kind]
    path = damaged(tmp_path / "m", **changes)
    for shard in (Shard(), Shard(1, 2)):
        with pytest.raises(ModelError, match=why) as caught:
            load_model(tmp_path / "m", shard=shard)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


def test_an_unexpected_array_of_the_prior_is_refused(tmp_path):
    path = damaged(tmp_path / "m", share=None)
    arrays = dict(open_tensors(path).arrays) | {"prior.more": np.zeros(1, np.float32)}
    with pytest.raises(ModelError, match=r"array prior.share is missing"):
        load_model(tmp_path / "m")
    arrays["prior.share"] = np.ones(LABELS, np.float32)
    path.unlink()
    Manifest(1, Manifest.read(tmp_path / "m").files | {path.name: write_arrays(path, arrays)}).write(tmp_path / "m")
    with pytest.raises(ModelError, match=r"unexpected array 'prior.more': the network .* has none"):
        load_model(tmp_path / "m")


def test_shards_without_a_prior_beside_others_that_have_one_are_refused(tmp_path):
    nothing = dict.fromkeys(TYPES)
    damaged(tmp_path / "m", shards=3, rank=1, **nothing)
    with pytest.raises(ModelError, match="some of its shards have a label prior and others have none"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("options", [{"prior_labels": 0}, {"active_sets": "row"}, {"hidden_share": [0.5]}])
def test_a_prior_of_a_network_that_can_have_none_is_refused(tmp_path, options):
    save(tmp_path / "m", 1)
    content = json.loads((tmp_path / "m/config.json").read_text()) | options
    files = Manifest.read(tmp_path / "m").files | {"config.json": write_json(tmp_path / "m/config.json", content)}
    Manifest(1, files).write(tmp_path / "m")
    with pytest.raises(ModelError, match=r"unexpected array 'prior.\w+': the network .* has none"):
        load_model(tmp_path / "m")


# ---- resuming -------------------------------------------------------------------------------------------------------


def test_training_from_saved_state_is_that_without_a_break(tmp_path):
    config = CONFIG.replace(schedule="constant")
    whole = Trainer(config, FEATURES, LABELS)
    whole.fit(DATA)
    save(tmp_path / "m", 1, config.replace(epochs=1))
    saved = load_model(tmp_path / "m", optimizer=True)
    parts = Trainer(config, FEATURES, LABELS)
    parts.network.load_state(saved.state)
    parts.load_progress(saved.progress)
    parts.fit(DATA)
    for name, array in whole.network.state().items():
        assert_array_equal(parts.network.state()[name], array, strict=True, err_msg=name)


def test_resuming_from_the_command_line_is_the_unbroken_run(tmp_path, capfd):
    assert main(["synth", str(tmp_path / "data"), "--rows", "200", "--features", "50", "--labels", "40"]) == 0
    small = [
        *PLAIN_ARGUMENTS,
        "--prior-labels",
        "4",
        "--hidden",
        "8",
        "--batch-size",
        "32",
        "--threads",
        "1",
        "--quiet",
    ]
    train = ["train", str(tmp_path / "data/train.txt"), *small, "--schedule", "constant"]
    assert main([*train, "--epochs", "2", "--out", str(tmp_path / "whole")]) == 0
    assert main([*train, "--epochs", "1", "--out", str(tmp_path / "parts")]) == 0
    again = ["train", str(tmp_path / "data/train.txt"), "--resume", str(tmp_path / "parts"), "--quiet"]
    assert main([*again, "--epochs", "2"]) == 0
    whole, parts = (load_model(tmp_path / name, optimizer=True).state for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() >= {"prior.begin", "prior.share"}
    for name in whole:
        assert_array_equal(parts[name], whole[name], strict=True, err_msg=name)
    capfd.readouterr()
    assert main([*again, "--epochs", "3", "--prior-labels", "5"]) == 2
    assert "prior_labels: the run was begun with 4" in capfd.readouterr().err


def fitted() -> SlideClassifier:
    options = {name: getattr(CONFIG, name) for name in OPTIONS}
    return SlideClassifier(**options).fit(DATA.x.to_scipy(), DATA.y.to_scipy())


def test_estimators_keep_their_prior(tmp_path):
    model = fitted()
    prior = model.network_.prior.state()
    x = DATA.x.to_scipy()
    expected = model.predict_topk(x, 3)[1]
    model.save(tmp_path / "m")
    loaded = [SlideClassifier.load(tmp_path / "m", trainable=trainable) for trainable in (False, True)]
    for copy in (pickle.loads(pickle.dumps(model)), *loaded):
        assert_array_equal(copy.predict_topk(x, 3)[1], expected)
        assert (copy.prior_labels, copy.prior_scale) == (5, 3.0)
        for name, array in prior.items():
            assert_array_equal(copy.network_.prior.state()[name], array, strict=True)
    new = clone(model)
    assert new.prior_labels == 5
    assert not hasattr(new, "network_")


def test_partial_fit_keeps_the_prior_of_fit():
    """A network that saw its first rows in partial_fit has none."""
    model = fitted()
    prior = {name: array.copy() for name, array in model.network_.prior.state().items()}
    other = make_data(seed=1)
    model.partial_fit(other.x.to_scipy(), other.y.to_scipy())
    for name, array in prior.items():
        if LINEAR not in name:
            assert_array_equal(model.network_.prior.state()[name], array)
    new = SlideClassifier(hidden=(8,), threads=1).partial_fit(other.x.to_scipy(), sp.csr_matrix(other.y.to_scipy()))
    assert new.network_.prior is None


def test_state_without_a_prior_removes_it_and_damaged_state_is_refused():
    trainer = Trainer(CONFIG, FEATURES, LABELS)
    trainer.fit(DATA)
    state = {name: array.copy() for name, array in trainer.network.state().items()}
    plain = {name: array for name, array in state.items() if not name.startswith("prior.")}
    trainer.network.load_state(plain)
    assert trainer.network.prior is None
    trainer.network.load_state(state)
    assert trainer.network.prior is not None
    with pytest.raises(ModelError, match=r"array prior.weight is missing"):
        trainer.network.load_state({name: array for name, array in state.items() if name != "prior.weight"})


# ---- the plan -------------------------------------------------------------------------------------------------------


def test_the_plan_bounds_the_memory_of_the_prior():
    for ranks in (1, 3):
        needed = plan(CONFIG, FEATURES, LABELS, ranks=ranks).parts["label prior"]
        taken = []
        for rank in range(ranks):
            trainer = Trainer(CONFIG, FEATURES, LABELS, comm=solo())
            trainer.network.shard = Shard(rank, ranks)
            trainer.network.set_label_prior(DATA.x, DATA.y, same=False)
            taken.append(sum(array.nbytes for array in trainer.network.prior.state().values()))
        assert 0.5 * needed < np.mean(taken) <= needed
    assert plan(CONFIG.replace(prior_labels=0), FEATURES, LABELS).parts["label prior"] == 0
    assert plan(CONFIG, FEATURES, LABELS, prior=False).parts["label prior"] == 0
