"""Networks learn planted rules: in full, sampled in every way nearly as well, and hashing earns its keep."""

from __future__ import annotations

import numpy as np
import pytest
import support.planted as planted
from support.plain import PLAIN

from dslide import _core
from dslide.config import Config
from dslide.model.retriever import Hits
from dslide.training.trainer import Trainer
from dslide.util.csr import Lists


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def make_trainer(problem, **options):
    config = Config(**PLAIN | {"hidden": (64,), "batch_size": 64, "threads": 2} | options)
    return Trainer(config, problem.train.features, problem.train.labels)


def learned(problem, **options):
    """P@1 after training."""
    trainer = make_trainer(problem, **options)
    trainer.fit(problem.train)
    return problem.precision(trainer.network)


# ---- everything that can be sampled learns --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prototypes():
    return planted.prototypes()


@pytest.fixture(scope="module")
def full(prototypes):
    """P@1 of a network that computes all neurons; chance is 0.0005."""
    return learned(prototypes, output="full", epochs=8)


@pytest.fixture(scope="module")
def full_longer(prototypes):
    return learned(prototypes, output="full", epochs=12)


def test_full_softmax_learns(full, full_longer):
    assert full > 0.95
    assert full_longer > 0.95


@pytest.mark.parametrize(
    ("options", "margin"),
    [
        ({"output": "lsh", "active_sets": "row", "hash_hits": 32, "random_negatives": 64, "epochs": 8}, 0.05),
        (
            {
                "output": "lsh",
                "active_sets": "row",
                "probe": "vanilla",
                "bucket_policy": "fifo",
                "hash_hits": 32,
                "random_negatives": 64,
                "epochs": 8,
            },
            0.05,
        ),
        (
            {
                "output": "lsh",
                "active_sets": "row",
                "probe": "threshold",
                "hash_hits": 32,
                "random_negatives": 64,
                "epochs": 8,
            },
            0.05,
        ),
        ({"output": "random", "active_sets": "row", "random_negatives": 100, "epochs": 8}, 0.05),
        ({"output": "full", "optimizer": "adagrad", "learning_rate": 0.05, "epochs": 12}, 0.1),
        ({"output": "full", "activation": "linear", "epochs": 8}, 0.05),
    ],
    ids=lambda value: "-".join(str(v) for v in value.values()) if isinstance(value, dict) else "",
)
def test_other_ways_come_near(options, margin, prototypes, full):
    """A twentieth of the neurons active for each row."""
    assert learned(prototypes, **options) > full - margin


@pytest.mark.parametrize(
    "options",
    [{"output": "lsh", "hash_hits": 4, "random_negatives": 400}, {"output": "random", "random_negatives": 400}],
)
def test_sampled_comes_near_full_in_as_many_epochs(options, prototypes, full, full_longer):
    """About a quarter of 2,000 neurons are active for the batch; of a set shared by the batch a neuron is part in fewer
    steps, which is made up for by more epochs."""
    assert learned(prototypes, epochs=12, **options) > max(full_longer - 0.03, full - 0.05)


@pytest.fixture(scope="module")
def few_prototypes():
    """500 labels, for what learns more slowly; chance is 0.002."""
    return planted.prototypes(500, 600)


@pytest.mark.parametrize("output", [{"output": "full"}, {"output": "lsh", "hash_hits": 4, "random_negatives": 100}])
def test_sigmoid_learns(output, few_prototypes):
    trainer = make_trainer(few_prototypes, loss="sigmoid", epochs=24, **output)
    trainer.network.output.arrays["bias"][:] = np.log(1 / 500)  # as often as labels occur
    trainer.fit(few_prototypes.train)
    assert few_prototypes.precision(trainer.network) > 0.95


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({"hidden": (64, 64)}, 0.8),
        ({"hidden": (128,), "hidden_share": (0.5,), "epochs": 16}, 0.95),
        ({"hidden": (64, 64), "hidden_share": (1.0, 0.5)}, 0.45),
        # Prediction computes all hidden neurons, of which a row saw in training the half that hash like it.
        ({"hidden": (128,), "hidden_share": (0.5,), "active_sets": "row"}, 0.2),
        ({"hidden": (64, 64), "hidden_share": (1.0, 0.5), "active_sets": "row", "family": "simhash"}, 0.4),
    ],
    ids=lambda value: "-".join(str(v) for v in value.values()) if isinstance(value, dict) else "",
)
def test_deeper_and_sampled_hidden_layers_learn(options, precision, few_prototypes):
    assert learned(few_prototypes, **{"output": "full", "epochs": 24} | options) > precision


# ---- hashing --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nested():
    return planted.nested()


HASHED = {
    "output": "lsh", "active_sets": "row", "activation": "linear", "hash_hits": 16, "random_negatives": 0, "epochs": 12,
    "rebuild_every": 20, "rebuild_growth": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def hashed(nested):
    """P@1 if a row sees its label and 16 hash hits of 1,000 neurons."""
    return learned(nested, **HASHED)


@pytest.fixture(scope="module")
def chance(nested):
    """P@1 if the 16 neurons are drawn at random."""
    return learned(nested, **HASHED | {"output": "random", "random_negatives": 16})


def test_hash_hits_beat_random_neurons(nested, hashed, chance):
    full = learned(nested, **HASHED | {"output": "full"})
    uncorrected = learned(nested, **HASHED | {"output": "random", "random_negatives": 16, "correction": False})
    assert full > 0.9
    assert hashed > 0.8
    assert max(chance, uncorrected) < hashed - 0.25


@pytest.mark.parametrize("seed", [0, 1])
def test_few_hash_hits_beat_as_many_random_neurons(seed, nested):
    """Groups of five labels that only differ from one another: four hits can be all that matter, four random neurons of
    1,000 hardly ever are."""
    few = HASHED | {"hash_hits": 4, "seed": seed}
    assert learned(nested, **few) > 0.7
    assert learned(nested, **few | {"output": "random", "random_negatives": 4}) < 0.5


def test_tables_have_to_be_renewed(nested, hashed):
    assert learned(nested, **HASHED | {"rebuild_every": 10**9}) < hashed - 0.25


def test_hits_have_to_be_the_right_neurons(nested, hashed, monkeypatch):
    """Each hit replaced by another neuron, always the same one."""
    trainer = make_trainer(nested, **HASHED)
    other = np.random.default_rng(0).permutation(nested.train.labels).astype(np.int32)
    index = trainer.network.output.lsh
    real = index.look_up

    def wrong_hits(*arguments):
        hits = real(*arguments)
        return Hits(Lists(hits.lists.indptr, other[hits.lists.indices]), hits.ranking)

    monkeypatch.setattr(index, "look_up", wrong_hits)
    trainer.fit(nested.train)
    assert nested.precision(trainer.network) < hashed - 0.25


@pytest.mark.parametrize("family", ["wta", "dwta", "minhash"])
def test_other_hash_families_learn_better_than_random_neurons(family, nested, chance):
    assert learned(nested, **HASHED | {"family": family}) > chance + 0.1
