"""Texts with labels as people have them: tables with other separators, labels with blanks, plain text to predict."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli.test_tables import run_in

import dslide
from dslide.data import load

TRAIN = ["--epochs", "10", "--hidden", "16", "--batch-size", "32", "--threads", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each label has a word of its own; quotes, commas and blanks where a table of a spreadsheet has them."""
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    lines = ["id,subjects,title"]
    for number, label in enumerate(rng.integers(8, size=400).tolist()):
        other = (label + 1) % 8
        text = f'word{label}, "quoted" word{other} other{rng.integers(40)} the'.replace('"', '""')
        lines.append(f'{number},"New label {label}; label, {other}","{text}"')
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    (folder / "stop.txt").write_text("the\nquoted\n")
    columns = ["--label-column", "subjects", "--text-column", "title", "--label-separator", ";", "--min-df", "1"]
    words = ["--stop-words", "stop.txt", "--characters", "4"]
    run_in(folder, "train", "train.csv", "--out", "run", *columns, *words, *TRAIN)
    return folder


def test_labels_have_blanks_and_commas(made: Path) -> None:
    model = dslide.open_model(made / "run")
    names = {f"New label {n}" for n in range(8)} | {f"label, {n}" for n in range(8)}
    assert set(model.saved.label_names or ()) == names
    words = set(model.saved.feature_names or ())
    assert {"word3", "~<wor", "~ord3", "~rd3>", "~the"} <= words
    assert not {"the", "quoted", "~<the", "~<quo", "id"} & words


def test_predicting_from_tables_without_labels_and_from_lines_of_text(made: Path) -> None:
    (made / "new.csv").write_text('title,year\n"word3, again",2024\nword5,2025\n')
    (made / "new.txt").write_text("word3, again\nword5\n")
    (made / "new.jsonl").write_text('{"title": "word3, again"}\n{"title": "word5"}\n')
    expected = run_in(made, "predict", "run", "new.csv", "--k", "2")
    rows = [set(line.split("\t")) for line in expected.splitlines()]
    assert rows[0] <= {"New label 3", "label, 4", "New label 2", "label, 3"}
    assert rows[1] <= {"New label 5", "label, 6", "New label 4", "label, 5"}
    assert run_in(made, "predict", "run", "new.txt", "--k", "2") == expected
    assert run_in(made, "predict", "run", "new.jsonl", "--k", "2") == expected
    assert "there are no labels in it" in run_in(made, "evaluate", "run", "new.txt", code=2)


def test_json_has_names_scores_and_the_probabilities_of_the_estimator(made: Path) -> None:
    texts = ["word3 again", "word5"]
    (made / "two.txt").write_text("\n".join(texts) + "\n")
    found = [json.loads(line) for line in run_in(made, "predict", "run", "two.txt", "--json").splitlines()]
    assert [row["row"] for row in found] == [0, 1]
    model = dslide.SlideClassifier.load(made / "run")
    columns, scores = model.predict_topk(texts, 5)
    chances = model.predict_proba(texts)
    for row, line in enumerate(found):
        assert [each["name"] for each in line["labels"]] == model.classes_[columns[row]].tolist()
        assert [each["label"] for each in line["labels"]] == columns[row].tolist()
        np.testing.assert_allclose([each["score"] for each in line["labels"]], scores[row], rtol=1e-5)
        given = [each["probability"] for each in line["labels"]]
        np.testing.assert_allclose(given, chances[row, columns[row]], rtol=1e-4)
    of_python = [row.to_dict() for row in dslide.predict(made / "run", texts, probabilities=True)]
    assert of_python == found


def test_plan_and_doctor_as_json(made: Path) -> None:
    planned = json.loads(run_in(made, "plan", "--features", "100", "--labels", "50", "--json"))
    assert planned["forecasts"][0]["nodes"] == 1
    assert planned["forecasts"][0]["fits"] is True
    assert json.loads(run_in(made, "doctor", "--json"))["dslide"] == dslide.__version__


def test_labels_between_commas_are_suspected(tmp_path: Path) -> None:
    from dslide.data.checks import check_training_data

    path = tmp_path / "rows.tsv"
    path.write_text("".join(f"red{n % 2}, blue, green{n % 3}\tone two three\n" for n in range(29)) + "green0\tone\n")
    (warning,) = check_training_data(load(path))
    assert "3 of 6 labels end with a comma, a semicolon or a bar, like 'blue,': are labels separated by it?" in warning
    assert load(path, label_separator=",").label_names == ["blue", "red0", "red1", "green0", "green1", "green2"]
    path.write_text("".join(f"red|blue{n % 3}\tone two three\n" for n in range(30)))
    assert "3 of 3 labels have a comma" in check_training_data(load(path))[0]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("id;tags;note\n1;a;one two\n", {"label_column": "tag"}, "label_column: {} has no column 'tag', only id, tags"),
        ("id;tags;note\n1;a;one two\n", {"label_column": "tags"}, "text_column: {} has the columns id, tags, note"),
        ("a\tone\n", {"text_column": 3}, "text_column: {} has 2 columns, and none with number 3"),
        ("a\tone\n", {"separator": ""}, "separator: expected a text such as ';', or tab, comma, semicolon, blank"),
        ("a\tone\n", {"label_column": True}, "label_column: expected the name or the number of a column, not True"),
        ("a\tone\n", {"user_column": "x"}, "user_column: has no use with tsv data, only with interactions"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, text: str, options: dict[str, object], message: str) -> None:
    path = tmp_path / "rows"
    path.write_text(text)
    with pytest.raises(dslide.UserError) as caught:
        load(path, format="tsv", **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message.format(path))
