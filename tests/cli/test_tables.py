"""From a table of ratings to recommendations: names of users and items all the way, in Python too."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import dslide
from dslide.cli import main

GROUPS, MEMBERS, ITEMS = 8, 20, 10
TRAIN = ["--hidden", "16", "--batch-size", "16", "--threads", "1", "--epochs", "12", "--learning-rate", "0.02"]


def run_in(folder: Path, *arguments: str, code: int = 0, errors: bool = False) -> str:
    """Runs a command in a folder; gives what it prints, or what it prints as errors."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as said:
            assert main(list(arguments)) == code, said.getvalue()
    finally:
        os.chdir(before)
    return out.getvalue() if code == 0 and not errors else said.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users have nine of their group's ten items, and the last of them is held out. And a run trained on that."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    lines = []
    for user in range(GROUPS * MEMBERS):
        for day, item in enumerate(rng.permutation(ITEMS)[: ITEMS - 1].tolist()):
            lines.append(f"{day},reader {user},4,group {user % GROUPS} item {item}")
    (folder / "ratings.csv").write_text("date,customer,stars,product\n" + "\n".join(lines) + "\n")
    said = run_in(folder, "train", "ratings.csv", "--split", "last", "--out", "run", "--recommend", "best.tsv", *TRAIN)
    (folder / "said").write_text(said)
    return folder


def test_one_command_gives_recommendations(made: Path) -> None:
    summary = json.loads((made / "run" / "summary.json").read_text())
    assert summary["test_rows"] == GROUPS * MEMBERS
    assert summary["r_at_5"] > 0.9
    assert summary["coverage_at_5"] > 0.9
    assert "coverage" in (made / "said").read_text()
    for number, line in enumerate((made / "best.tsv").read_text().splitlines()):
        user, *items = line.split("\t")
        assert user == f"reader {number}"
        assert items[0].startswith(f"group {number % GROUPS} ")  # the only one of the group that the user lacks
        assert len(items) == 20
    assert run_in(made, "predict", "run", "ratings.csv", "--k", "20") == (made / "best.tsv").read_text()


def test_python_gives_the_same(made: Path) -> None:
    expected = [line.split("\t") for line in (made / "best.tsv").read_text().splitlines()]
    found = list(dslide.predict(made / "run", made / "ratings.csv", k=20))
    assert [[str(each.user), *each.names] for each in found] == expected
    model = dslide.SlideClassifier.load(made / "run")
    items = [[name for name in model.classes_ if name.startswith("group 3 ")][:6], ["group 1 item 1"]]
    columns, _ = model.predict_topk(items, 4)
    of_lists = list(dslide.predict(made / "run", items, k=4))
    assert model.classes_[columns].tolist() == [each.names for each in of_lists]
    assert {name[:8] for name in of_lists[0].names} == {"group 3 "}
    assert not set(items[0]) & set(of_lists[0].names)


def test_a_new_user_is_a_list_of_items(made: Path) -> None:
    said = run_in(made, "predict", "run", "--items", "group 2 item 0", "group 2 item 1", "--k", "3", "--json")
    (found,) = map(json.loads, said.splitlines())
    assert [each["name"][:8] for each in found["labels"]] == ["group 2 "] * 3
    assert list(found["labels"][0]) == ["label", "name", "score"]  # of interactions, scores only rank
    message = run_in(made, "predict", "run", "--items", "group 2 itm 0", code=2)
    assert message == "dslide: error: there is no item 'group 2 itm 0'; did you mean 'group 2 item 0'?\n"
    assert "give data to predict, or --items" in run_in(made, "predict", "run", code=2)


def test_items_have_neighbours(made: Path) -> None:
    near = run_in(made, "neighbours", "run", "group 5 item 3", "--k", "5").rstrip().split("\t")
    assert near[0] == "group 5 item 3"
    assert all(name.startswith("group 5 ") for name in near[1:])
    assert "group 5 item 3" not in {name.rpartition(":")[0] for name in near[1:]}
    vectors = dslide.Vectors.open(made / "run", "labels")
    (line,) = run_in(made, "neighbours", "run", "group 5 item 3", "--k", "2", "--labels").splitlines()
    nearest = [f"{name}:{cosine:.4f}" for name, cosine in vectors.nearest("group 5 item 3", 2)]
    assert line.split("\t")[1:] == nearest


def test_a_model_remembers_the_columns_and_stdin_is_a_table(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made / "new.csv").write_text("product,customer\ngroup 4 item 1,zoe\ngroup 4 item 2,zoe\nmissing,zoe\n")
    expected = run_in(made, "predict", "run", "new.csv", "--k", "2")
    assert expected.startswith("zoe\tgroup 4 item")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((made / "new.csv").read_bytes())))
    assert run_in(made, "predict", "run", "-", "--k", "2") == expected
    (made / "numbers.txt").write_text("0 1 2\n")
    wrong = run_in(made, "predict", "run", "ratings.csv", "--item-column", "stars", errors=True)
    assert "warning: ratings.csv: 160 of 160 users have no item that the model knows" in wrong
    message = run_in(made, "predict", "run", "numbers.txt", code=2)
    assert (
        "numbers.txt: the model knows its items by names, and this is no table with a line, such as user,item"
        in message
    )


def test_evaluation_as_json(made: Path) -> None:
    (made / "test.csv").write_text("customer,product\nreader 1,group 1 item 0\nreader 1,group 1 item 1\n")
    options = ["--history", "ratings.csv", "--k", "1", "--json"]
    found = json.loads(run_in(made, "evaluate", "run", "test.csv", *options))
    assert found["rows"] == 1
    assert found["data"] == "test.csv"
    assert {"p_at_1", "r_at_1", "ndcg_at_1", "coverage_at_1", "loss"} <= found.keys()


def test_mistakes_get_one_sentence(made: Path) -> None:
    (made / "rows.txt").write_text("0 0:1\n1 1:1\n")
    for arguments, message in (
        (["train", "ratings.csv", "--split", "time"], "split: give as hold_out which share of the interactions"),
        (["train", "ratings.csv", "--split", "lst"], "split: expected one of random, time, last, not 'lst'"),
        (["train", "ratings.csv", "--split", "last", "--hold-out", ".1"], "hold_out: split = last holds out one"),
        (["train", "rows.txt", "--recommend", "new.tsv"], "recommend: is only for interactions"),
        (["train", "ratings.csv", "--recommend", "best.tsv"], "recommend: best.tsv exists already"),
        (["train", "ratings.csv", "--item-column", "film"], "item_column: ratings.csv has no column 'film', only date"),
    ):
        assert run_in(made, *arguments, code=2).startswith(f"dslide: error: {message}")
