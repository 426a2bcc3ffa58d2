"""Training on a stream of words, what is learned from it, and the commands that do so."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.inprocess import run_ranks
from support.mpi_run import mpiexec
from support.plain import PLAIN, PLAIN_ARGUMENTS

from dslide import Callback, Config, Trainer, Vectors, load_model
from dslide.checkpoint.saved_model import model_folder
from dslide.cli import main
from dslide.data import TokenOptions, load_tokens
from dslide.errors import DataError, ModelError

GROUPS, MEMBERS, OBJECTS = 6, 4, 5  # nouns of a group stand before the group's verbs, and never otherwise
SMALL = [
    *PLAIN_ARGUMENTS, "--hidden", "16", "--activation", "linear", "--threads", "1", "--batch-size", "64", "--quiet",
]  # fmt: skip
WINDOWS = ["--format", "tokens", "--window", "2", "--subsample", "0"]


def sentences(count, seed):
    random = np.random.default_rng(seed)
    group, noun, verb = (random.integers(0, size, count) for size in (GROUPS, MEMBERS, OBJECTS))
    return [f"noun{g}x{n} verb{g}x{v} so" for g, n, v in zip(group, noun, verb, strict=True)]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text("\n".join(sentences(2000, 1)) + "\n")
    (folder / "test.txt").write_text("unheard of\n" + "\n".join(sentences(100, 2)) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(text):
    """A run on the sentences, with the others as test data."""
    data = [str(text / "train.txt"), "--test", str(text / "test.txt")]
    assert main(["train", *data, "--out", str(text / "run"), "--epochs", "4", *SMALL, *WINDOWS]) == 0
    return text / "run"


def summary(folder: Path):
    return json.loads((folder / "summary.json").read_text())


def output(capfd, *arguments):
    capfd.readouterr()
    code = main([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert code == 0, err
    return out


def error(capfd, *arguments):
    capfd.readouterr()
    assert main([str(a) for a in arguments]) == 2
    message = capfd.readouterr().err
    assert message.count("\n") == 1
    return message


# ---- the trainer ----------------------------------------------------------------------------------------------------


class Stop(Callback):
    def __init__(self, step):
        self.step, self.total = step, 0

    def on_start(self, trainer, total_steps):
        self.total = total_steps

    def on_step(self, trainer, info):
        if info.step == self.step:
            raise KeyboardInterrupt


OPTIONS = {
    "hidden": (12,),
    "epochs": 3,
    "batch_size": 128,
    "output": "random",
    "random_negatives": 20,
    "learning_rate": 0.02,
}
CONFIG = Config(**PLAIN | OPTIONS, threads=1)
DRAWN = TokenOptions(window=3, subsample=0.01)


def state_of(trainer):
    return {name: array.copy() for name, array in trainer.network.state().items()}


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("step", [1, 9, 17])
def test_resuming_in_the_middle_of_an_epoch_changes_nothing(text, step, loss):
    data, config = load_tokens(text / "train.txt", DRAWN), CONFIG.replace(loss=loss)
    watch = Stop(0)
    whole = Trainer(config, data.features, data.labels, callbacks=[watch])
    result = whole.fit(data)
    rows = [len(epoch.with_labels() if loss == "softmax" else epoch) for epoch in (data.epoch(i, 0) for i in range(3))]
    assert len(set(rows)) == 3  # each epoch draws its own
    assert result.samples == sum(rows)
    assert result.steps == sum(math.ceil(n / 128) for n in rows)
    assert watch.total == 3 * math.ceil(rows[0] / 128)  # what the learning rate goes by

    broken = Trainer(config, data.features, data.labels, callbacks=[Stop(step)])
    assert broken.fit(data).interrupted
    after = Trainer(config, data.features, data.labels)
    after.network.load_state(state_of(broken))
    after.load_progress(broken.progress())
    after.fit(load_tokens(text / "train.txt", DRAWN))
    assert after.progress() == whole.progress()
    for name, array in state_of(whole).items():
        assert_array_equal(state_of(after)[name], array, err_msg=name)


def test_ranks_train_as_one(text):
    data = load_tokens(text / "train.txt", DRAWN)
    config = CONFIG.replace(wire="float32", epsilon=1e-5, epochs=1)
    x, y = data.rows(0, 200)

    def work(comm):
        trainer = Trainer(config, data.features, data.labels, comm=comm)
        result = trainer.fit(data)
        return result.loss, result.samples, trainer.network.exact_loss(x, y)

    (one,), two = run_ranks(1, work), run_ranks(2, work)
    assert two[0] == two[1]
    assert_allclose(two[0], one, rtol=1e-3)


# ---- vectors --------------------------------------------------------------------------------------------------------


def test_words_of_the_same_contexts_are_neighbours(run):
    vectors = Vectors.open(run)
    for group in range(GROUPS):
        for member in range(MEMBERS):
            near = vectors.nearest(f"noun{group}x{member}", MEMBERS - 1)
            assert {name for name, _ in near} == {f"noun{group}x{m}" for m in range(MEMBERS) if m != member}
            assert [cosine for _, cosine in near] == sorted((cosine for _, cosine in near), reverse=True)


def test_nearest_by_cosine_worked_out_by_hand():
    vectors = Vectors(["a", "b", "c", "zero"], np.array([[1, 0], [3, 4], [-2, 0], [0, 0]], np.float32))
    assert vectors.nearest("a", 9) == [("b", pytest.approx(0.6)), ("zero", 0), ("c", -1)]
    assert vectors.nearest([0, 2], 1) == [("b", pytest.approx(0.8))]
    assert vectors["b"].tolist() == [3, 4]
    assert "b" in vectors
    assert "d" not in vectors
    with pytest.raises(DataError, match=r"expected a vector of 2 numbers, not the shape \[3\]"):
        vectors.nearest([1, 2, 3])
    with pytest.raises(DataError, match="3 names but vectors of the shape"):
        Vectors(["a", "b", "c"], np.zeros((2, 2), np.float32))


def test_vectors_are_the_first_layers_weights(run, text, tmp_path):
    saved = load_model(run)
    vectors = Vectors.open(run)
    assert vectors.names == saved.label_names == saved.feature_names
    assert_array_equal(vectors.matrix, saved.state["layer0.weights"][:, :16])
    data = [str(text / "train.txt"), "--out", str(tmp_path / "half"), "--epochs", "1", *SMALL, *WINDOWS]
    assert main(["train", *data, "--weights", "bf16"]) == 0
    half = load_model(tmp_path / "half").state["layer0.weights"]
    assert half.dtype == np.uint16
    upper = Vectors.open(tmp_path / "half").matrix.view(np.uint32) >> 16
    assert_array_equal(upper, half[:, :16])


def test_names_that_the_text_format_has_no_room_for(tmp_path):
    with pytest.raises(DataError, match="the name 'new york' can't be written"):
        Vectors(["new york"], np.ones((1, 2), np.float32)).save(tmp_path / "v.txt")
    assert not (tmp_path / "v.txt").exists()


# ---- the command line -----------------------------------------------------------------------------------------------


def test_the_summary_has_the_loss_over_all_labels_and_evaluate_repeats_it(run, text, capfd):
    values = summary(run)
    assert values["rows"] == 6000
    assert values["labels"] == values["features"] == GROUPS * (MEMBERS + OBJECTS) + 1
    saved = load_model(run)
    test = load_tokens(text / "test.txt", TokenOptions(**saved.tokens), saved.label_names)
    assert test.left_out == 2
    assert values["test_rows"] == len(test) == 300
    assert saved.tokens == {"window": 2, "min_count": 2, "subsample": 0}
    # what is left to chance: which noun or verb of the group, half of the time; unaided it is the word's logarithm
    assert values["test_loss"] < 0.7 * math.log(values["labels"])
    for more in ([], ["--format", "tokens"]):
        said = output(capfd, "evaluate", run, text / "test.txt", "--threads", "1", *more)
        assert f"loss over all labels: {values['test_loss']:.4f}" in said
        assert "300 words in 100 lines, 55 different ones; 2 more that are rare or unknown were left out" in said


def test_resuming_from_the_command_line_is_the_unbroken_run(run, text, tmp_path, capfd):
    train = ["train", text / "train.txt", *SMALL, *WINDOWS, "--schedule", "constant"]
    output(capfd, *train, "--epochs", "2", "--out", tmp_path / "whole")
    output(capfd, *train, "--epochs", "1", "--out", tmp_path / "parts")
    output(capfd, "train", text / "train.txt", "--resume", tmp_path / "parts", "--epochs", "2", "--quiet")
    whole, parts = (load_model(tmp_path / name, optimizer=True) for name in ("whole", "parts"))
    assert parts.progress == whole.progress
    for name in whole.state:
        assert_array_equal(parts.state[name], whole.state[name], err_msg=name)
    again = ["train", text / "train.txt", "--resume", tmp_path / "parts", "--epochs", "3"]
    assert "window: the run was begun with 2, which can't change" in error(capfd, *again, "--window", "3")
    again[1] = text / "test.txt"
    assert "not the data that" in error(capfd, *again)


def test_a_run_on_two_ranks_and_its_vectors(run, text, tmp_path, capfd):
    mpiexec()
    train = ["train", text / "train.txt", "--test", text / "test.txt", *SMALL, *WINDOWS, "--epochs", "4"]
    output(capfd, *train, "--wire", "float32", "--ranks", "2", "--out", tmp_path / "two")
    one, two = summary(run), summary(tmp_path / "two")
    assert (two["ranks"], two["samples"]) == (2, one["samples"])
    assert_allclose([two["loss"], two["test_loss"]], [one["loss"], one["test_loss"]], rtol=1e-2)
    assert (model_folder(tmp_path / "two") / "weights-1-of-2.safetensors").exists()
    assert_allclose(Vectors.open(tmp_path / "two").matrix, Vectors.open(run).matrix, atol=0.05)
    said = output(capfd, "evaluate", tmp_path / "two", text / "test.txt", "--ranks", "2")
    assert f"loss over all labels: {two['test_loss']:.4f}" in said


def test_holding_out_the_end_of_the_stream_and_testing_along_the_way(text, tmp_path, capfd):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train = ["train", text / "train.txt", *SMALL, *WINDOWS, "--hold-out", "0.1", "--schedule", "constant"]
    output(capfd, *train, "--out", whole, "--epochs", "2", "--test-every", "1", "--test-rows", "50")
    values = summary(whole)
    assert (values["rows"], values["test_rows"]) == (5400, 600)
    records = [json.loads(line) for line in (whole / "log.jsonl").read_text().splitlines()]
    first, last = (record for record in records if record["record"] == "test")
    assert (first["epoch"], first["rows"], last["epoch"], last["rows"]) == (1, 50, 2, 600)
    assert last["loss"] == values["test_loss"]
    output(capfd, *train, "--out", parts, "--epochs", "1")
    output(capfd, "train", text / "train.txt", "--resume", parts, "--epochs", "2", "--quiet")
    assert summary(parts)["test_loss"] == values["test_loss"]


def test_vectors_in_a_file(run, tmp_path, capfd):
    target = tmp_path / "vectors.txt"
    assert output(capfd, "vectors", run, "--output", target) == f"wrote 55 vectors of 16 numbers to {target}\n"
    header, *lines = target.read_text().splitlines()
    assert header == "55 16"
    vectors = Vectors.open(run)
    assert [line.split(" ")[0] for line in lines] == vectors.names
    assert_array_equal(np.array([line.split(" ")[1:] for line in lines], np.float32), vectors.matrix)
    before = target.read_bytes()
    assert "vectors.txt: exists already" in error(capfd, "vectors", run, "--output", target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.txt"]


def test_neighbours(run, capfd):
    first, second = output(capfd, "neighbours", run, "noun0x0", "verb3x1", "--k", "2").splitlines()
    word, *near = first.split("\t")
    assert word == "noun0x0"
    assert {cell.rsplit(":", 1)[0] for cell in near} < {"noun0x1", "noun0x2", "noun0x3"}
    assert second.startswith("verb3x1\t")
    message = error(capfd, "neighbours", run, "noun0x0", "noum3x2")
    assert "there is no vector for 'noum3x2'; did you mean 'noun3x2'" in message
    assert "--k: expected at least 1" in error(capfd, "neighbours", run, "so", "--k", "0")


def test_text_models_have_vectors_and_numbered_ones_do_not(tmp_path, capfd):
    (tmp_path / "t.tsv").write_text("ships\tthe boat sails\nplanes\tthe jet flies\n" * 8)
    (tmp_path / "n.txt").write_text("0 0:1\n1 1:1\n" * 8)
    for name in ("t.tsv", "n.txt"):
        output(capfd, "train", tmp_path / name, "--out", tmp_path / name[0], "--epochs", "1", *SMALL)
    assert sorted(Vectors.open(tmp_path / "t").names) == ["boat", "flies", "jet", "sails", "the"]
    with pytest.raises(ModelError, match="its features have numbers but no names"):
        Vectors.open(tmp_path / "n")
    message = error(capfd, "evaluate", tmp_path / "n", tmp_path / "n.txt", "--format", "tokens")
    assert "is to be read as a stream of words, but the model was not trained on one" in message


def test_predicting_what_is_around_each_word(run, tmp_path, capfd):
    (tmp_path / "some.txt").write_text("noun2x0 verb2x1 so\n")
    said = output(capfd, "predict", run, tmp_path / "some.txt", "--k", "6").splitlines()
    assert len(said) == 3
    assert set(said[0].split("\t")) == {"so", *(f"verb2x{v}" for v in range(OBJECTS))}


def test_plan_counts_the_stream(text, capfd):
    said = output(capfd, "plan", text / "train.txt", *WINDOWS, "--hidden", "16")
    assert "fits into" in said
    assert "for an epoch" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "3"], "window: train.txt is not read as a stream of words"),
        (["--format", "tokens", "--min-df", "3"], "min_df: train.txt is not raw text"),
        (["--format", "tokens", "--base", "1"], "base: has no use with a stream of words"),
        (["--format", "tokens", "--labels", "7"], "labels: has no use with a stream of words"),
        (["--format", "tokens", "--window", "0"], "window: expected a whole number, 1 to 255, not 0"),
        (["--format", "token"], "format: expected auto or one of"),
    ],
)
def test_options_that_have_no_use_or_no_sense(text, capfd, monkeypatch, options, message):
    monkeypatch.chdir(text)
    assert message in error(capfd, "train", "train.txt", *options)
    assert not (text / "runs").exists()
