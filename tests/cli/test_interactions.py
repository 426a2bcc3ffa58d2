"""The command line on interactions: users of a group share its items; some of each user's are held out, and must be
recommended in place of what the user has."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from support.mpi_run import mpiexec

from dslide import SlideClassifier
from dslide.checkpoint.saved_model import load_model
from dslide.cli import main

GROUPS, MEMBERS, ITEMS = 12, 15, 10  # groups of users, users of each, items of each
SMALL = ["--hidden", "16", "--batch-size", "16", "--threads", "1", "--epochs", "20", "--learning-rate", "0.02"]


def line(user: int, items: set[int]) -> str:
    return " ".join(map(str, [user, *sorted(items)])) + "\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users have eight of their group's ten items; the other two are held out. And a run trained on that."""
    folder = tmp_path_factory.mktemp("interactions")
    rng = np.random.default_rng(0)
    train, test = [], []
    for user in rng.permutation(GROUPS * MEMBERS).tolist():
        items = (user % GROUPS * ITEMS + rng.permutation(ITEMS)).tolist()
        train.append(line(user * 3, set(items[2:])))
        test.append(line(user * 3, set(items[:2])))
    (folder / "train.txt").write_text("".join(train))
    (folder / "test.txt").write_text("".join(reversed(test)))
    data = ["train.txt", "--test", "test.txt", "--format", "interactions"]
    (folder / "said").write_text(run_in(folder, "train", *data, "--out", "run", *SMALL))
    return folder


def run_in(folder: Path, *arguments: object, code: int = 0) -> str:
    """Runs a command in a folder; gives what it prints, or its error."""
    command, before = [str(a) for a in arguments], os.getcwd()
    if "--ranks" in command:
        done = subprocess.run(
            [sys.executable, "-m", "dslide.cli", *command], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, done.stderr
        return done.stdout
    os.chdir(folder)
    try:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
            assert main(command) == code, errors.getvalue()
    finally:
        os.chdir(before)
    return out.getvalue() if code == 0 else errors.getvalue()


def summary(run: Path) -> dict[str, object]:
    return json.loads((run / "summary.json").read_text())


def users(path: Path) -> dict[int, set[int]]:
    return {int(words[0]): set(map(int, words[1:])) for words in map(str.split, path.read_text().splitlines())}


def test_what_was_held_out_is_found(made: Path) -> None:
    values = summary(made / "run")
    assert values["test_rows"] == GROUPS * MEMBERS
    assert values["r_at_5"] > 0.95
    assert values["ndcg_at_20"] > 0.9
    assert {name for name in values if name.startswith("r_at")} == {"r_at_1", "r_at_5", "r_at_20"}
    said = (made / "said").read_text()
    assert "180 rows, 120 features, 120 labels" in said
    assert "next: dslide predict run train.txt" in said  # not test.txt: predictions need what users have


def test_nobody_is_recommended_what_they_have(made: Path) -> None:
    history, held_out = users(made / "train.txt"), users(made / "test.txt")
    for options in ([], ["--approximate"]):
        lines = run_in(made, "predict", "run", "train.txt", "--k", "20", *options).splitlines()
        found = 0
        for (user, seen), row in zip(history.items(), lines, strict=True):
            name, *items = map(int, row.split("\t"))
            assert name == user
            assert not seen & set(items)
            found += len(held_out[user] & set(items[:5]))
            assert options or len(items) == 20
        assert options or found > 0.95 * 2 * GROUPS * MEMBERS
    rows = run_in(made, "predict", "run", "train.txt", "--k", "500").splitlines()
    assert {len(row.split("\t")) - 1 for row in rows} == {GROUPS * ITEMS - 8}  # all that are left


def test_evaluating_the_model_says_what_training_said(made: Path) -> None:
    text = run_in(made, "evaluate", "run", "test.txt", "--history", "train.txt", "--k", "1,5", "--approximate")
    table = {words[0]: words[1:] for words in map(str.split, text.split("exact")[0].splitlines())}
    values = summary(made / "run")
    for title, name in (("P@k", "p"), ("R@k", "r"), ("nDCG@k", "ndcg"), ("PSP@k", "psp")):
        assert table[title] == [f"{values[f'{name}_at_{k}']:.4f}" for k in (1, 5)]
    assert "share of the exact top 5 that it finds" in text


def test_unknown_users_and_items_are_counted_and_missed(made: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("100000 3\n3 5 700\n")
    (tmp_path / "history.txt").write_text("3 4 6 900\n")  # item 900 is no input, and not among the labels either
    text = run_in(made, "evaluate", "run", tmp_path / "new.txt", "--history", tmp_path / "history.txt", "--k", "118")
    assert "2 rows, 120 features, 701 labels" in text
    assert "1 users have no history" in text
    assert "R@k   0.7500" in text  # all known labels are among the 118 best; one of two of user 3 is not known


def test_interactions_from_stdin(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_in(made, "predict", "run", "train.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((made / "train.txt").read_bytes())))
    assert run_in(made, "predict", "run", "-") == expected


def test_resuming_needs_no_format(made: Path) -> None:
    common = ["train", "train.txt", "--test", "test.txt", *SMALL, "--schedule", "constant"]
    extra = ["--labels", "130", "--k", "2,7"]
    run_in(made, *common, "--format", "interactions", *extra, "--out", "whole", "--epochs", "2")
    run_in(made, *common, "--format", "interactions", *extra, "--out", "broken", "--epochs", "1")
    run_in(made, "train", "train.txt", "--test", "test.txt", "--resume", "broken", "--epochs", "2", "--k", "2,7")
    expected, found = (load_model(made / name) for name in ("whole", "broken"))
    assert found.interactions
    assert (found.features, found.labels) == (130, 130)
    for name in expected.state:
        np.testing.assert_array_equal(found.state[name], expected.state[name])
    assert summary(made / "broken")["r_at_7"] == summary(made / "whole")["r_at_7"]


def test_names_of_items_come_back(made: Path) -> None:
    (made / "names.txt").write_text("".join(f"item-{n}\n" for n in range(GROUPS * ITEMS)))
    options = ["--format", "interactions", "--label-names", "names.txt", *SMALL]
    run_in(made, "train", "train.txt", "--test", "test.txt", *options, "--out", "named", "--epochs", "1")
    run_in(made, "train", "train.txt", "--test", "test.txt", "--resume", "named", "--epochs", "2")
    assert run_in(made, "predict", "named", "train.txt", "--k", "1").split()[1].startswith("item-")


def test_several_ranks_recommend_the_same(made: Path) -> None:
    mpiexec()
    data = ["train.txt", "--test", "test.txt", "--format", "interactions"]
    run_in(made, "train", *data, "--out", "two", *SMALL, "--ranks", "2", "--wire", "float32")
    for k in (1, 5, 20):
        assert summary(made / "two")[f"r_at_{k}"] == pytest.approx(summary(made / "run")[f"r_at_{k}"], abs=0.02)
    expected = run_in(made, "predict", "run", "train.txt", "--k", "7")
    assert run_in(made, "predict", "run", "train.txt", "--k", "7", "--ranks", "2") == expected
    evaluate = ["evaluate", "run", "test.txt", "--history", "train.txt"]
    tables = [run_in(made, *evaluate, *more).split("exact")[0] for more in ([], ["--ranks", "2"])]
    assert tables[0] == tables[1]


def test_an_estimator_keeps_what_the_model_was_trained_on(made: Path) -> None:
    SlideClassifier.load(made / "run").save(made / "again")
    assert run_in(made, "predict", "again", "train.txt") == run_in(made, "predict", "run", "train.txt")


def test_an_estimator_recommends_what_the_command_line_does(made: Path) -> None:
    items = users(made / "train.txt").values()
    x = np.zeros((len(items), GROUPS * ITEMS), np.float32)
    for row, seen in enumerate(items):
        x[row, list(seen)] = 1
    model = SlideClassifier.load(made / "run")
    expected = [list(map(int, row.split("\t")))[1:] for row in run_in(made, "predict", "run", "train.txt").splitlines()]
    found, _ = model.predict_topk(x, len(expected[0]))
    np.testing.assert_array_equal(found, expected)
    everything, _ = model.predict_topk(x, 1, exclude=np.zeros_like(x))
    assert (x[np.arange(len(x)), everything[:, 0]] == 1).any()  # what users have is not left out then


def test_mistakes_get_one_sentence(made: Path) -> None:
    (made / "rows.txt").write_text("0 0:1\n1 1:1\n")
    run_in(made, "train", "rows.txt", "--out", "other", *SMALL, "--epochs", "1")
    for arguments, message in (
        (["evaluate", "run", "test.txt"],
         "history: test.txt holds interactions; give the users' earlier ones as history"),
        (["evaluate", "other", "rows.txt", "--history", "train.txt"],
         "history: only interactions have one, not rows.txt"),
        (["predict", "other", "train.txt", "--format", "interactions"],
         "train.txt: interactions are only for models that were trained on interactions"),
        (["train", "train.txt", "--format", "interactions", "--k", "5,x"],
         "k: expected whole numbers like 1,3,5, not '5,x'"),
        (["train", "train.txt", "--format", "interactions", "--test", "rows.txt"],
         "rows.txt, line 1: '0:1' is not a user or an item, expected a whole number, 0 to 2147483646"),
    ):  # fmt: skip
        assert run_in(made, *arguments, code=2) == f"dslide: error: {message}\n"
