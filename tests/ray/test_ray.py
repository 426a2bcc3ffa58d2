"""Ranks as actors of a local Ray."""

from __future__ import annotations

import os

import numpy as np
import pytest

import dslide
from dslide.errors import CommError

pytest.importorskip("ray.util", reason="Ray is not installed: pip install '.[ray]'")
import ray  # in other environments this folder would be found

OPTIONS = {"epochs": 3, "hidden": (8,), "batch_size": 20, "validation": 0, "seed": 3}


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def data(tmp_path):
    lines = ["sea\twhale ship wave\n", "earth\tstone rock cave\n", "sky\tcloud rain sun\n"] * 30
    (tmp_path / "train.tsv").write_text("".join(lines))
    return tmp_path / "train.tsv"


class Die(dslide.Callback):
    """Ends the process of rank 1 without a word."""

    def on_step(self, trainer, info):
        if trainer.comm.rank == 1 and info.step == 7:
            os._exit(1)


def test_two_ranks_train_what_one_trains(cluster, data, tmp_path):
    from dslide.ray import train

    one = dslide.train(data, out=tmp_path / "one", test=data, threads=1, **OPTIONS)
    two = train(data, out=tmp_path / "two", ranks=2, test=data, **OPTIONS)
    assert [rank["rank"] for rank in two.summary["per_rank"]] == [0, 1]
    assert two.summary["threads"] == 1
    assert two.metrics["p_at_1"] == one.metrics["p_at_1"] == 1.0
    saved = [dslide.load_model(result.folder).state["layer1.weights"] for result in (one, two)]
    np.testing.assert_allclose(saved[0], saved[1], rtol=0.02, atol=0.02)  # 16-bit numbers on the wire


def test_a_lost_rank_is_named_and_the_run_resumes(cluster, data, tmp_path):
    from dslide.ray import train

    options = OPTIONS | {"checkpoint_seconds": 0.001}
    with pytest.raises(CommError, match="rank 1"):
        train(data, out=tmp_path / "run", ranks=2, callbacks=[Die()], **options)
    resumed = train(data, out=tmp_path / "run", ranks=1, resume_existing=True, **options)
    assert resumed.summary["ranks"] == 1
    assert resumed.summary["epochs"] == 3


def test_mistakes_get_one_sentence(cluster, data, tmp_path):
    from dslide.ray import train

    with pytest.raises(dslide.UserError, match="there is no option 'epoch'"):
        train(data, out=tmp_path / "run", ranks=2, epoch=3)
    with pytest.raises(dslide.UserError, match="ranks: 3 of 1 CPUs each had no place within 1 s"):
        train(data, out=tmp_path / "run", ranks=3, wait=1)
    with pytest.raises(dslide.UserError, match="ranks: expected a whole number, at least 1, not 0"):
        train(data, out=tmp_path / "run", ranks=0)
    assert not (tmp_path / "run").exists()
