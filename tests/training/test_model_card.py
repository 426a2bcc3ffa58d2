"""The card of a model: that what it says is so, and that programs can read its metadata."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

import dslide
from dslide import SlideClassifier
from dslide.cli import main

OPTIONS = {"epochs": 2, "hidden": (8,), "threads": 1, "batch_size": 20, "validation": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on texts, and the data: 60 rows of label sea, 30 of earth, and 2 of rare."""
    folder = tmp_path_factory.mktemp("card")
    lines = ["sea\twhale ship wave\n"] * 60 + ["earth\tstone rock cave\n"] * 30 + ["rare\tsky cloud\n"] * 2
    (folder / "data.tsv").write_text("".join(lines))
    result = dslide.train(folder / "data.tsv", out=folder / "whales", test=folder / "data.tsv", **OPTIONS)
    return result


def parts(card):
    """The metadata, each value of which is JSON, and the text."""
    begin, metadata, text = card.split("---\n", 2)
    assert begin == ""
    return {line.split(": ", 1)[0]: line.split(": ", 1)[1] for line in metadata.splitlines()}, text


def test_an_exported_model_has_a_card_with_the_metrics_of_its_run(run, tmp_path):
    assert main(["export", str(run.folder), str(tmp_path / "model")]) == 0
    metadata, text = parts((tmp_path / "model/README.md").read_text())
    assert metadata["library_name"] == "dslide" or json.loads(metadata["library_name"]) == "dslide"
    (model,) = json.loads(metadata["model-index"])
    values = {metric["type"]: metric["value"] for metric in model["results"][0]["metrics"]}
    assert model["name"] == "whales"
    assert values["P@1"] == round(run.metrics["p_at_1"], 4)
    assert "# whales\n" in text
    assert f"| P@1 | {run.metrics['p_at_1']:.4f} |" in text
    assert "On 92 test rows:" in text
    assert "trained on 92 rows: texts" in text
    assert "8 features; 3 labels" in text
    assert "2 epochs in " in text
    assert "| hidden | [8] |" in text
    assert "0 of them occur in no row of it, 1 in fewer than 5" in text


def test_the_code_of_the_card_works(run, tmp_path, capsys):
    assert main(["export", str(run.folder), str(tmp_path / "model")]) == 0
    text = (tmp_path / "model/README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0].replace("FOLDER", str(tmp_path / "model"))
    exec(code.replace("a text", "whale").replace("another one", "cave"), {})
    assert [line.split("'")[1] for line in capsys.readouterr().out.splitlines()[-2:]] == ["sea", "earth"]


def test_an_estimator_is_saved_and_opened_as_the_hub_has_it(tmp_path):
    x, y = sp.csr_matrix(np.eye(6, dtype=np.float32).repeat(10, 0)), np.array(list("abcdef")).repeat(10)
    model = SlideClassifier(**OPTIONS).fit(x, y)
    for _ in range(2):  # the second time in place of the first
        model.save_pretrained(tmp_path / "model", metrics={"p_at_1": 0.75, "rows": 1000.0, "loss": 1.0})
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"README.md", "config.json", "weights.safetensors"} <= names
    assert "optimizer.safetensors" not in names
    text = (tmp_path / "model/README.md").read_text()
    assert "On 1,000 test rows:" in text
    assert "| P@1 | 0.7500 |" in text
    opened = SlideClassifier.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(opened.predict(x), model.predict(x))


def test_a_card_that_was_edited_does_not_damage_the_model(run, tmp_path):
    assert main(["export", str(run.folder), str(tmp_path / "model")]) == 0
    (tmp_path / "model/README.md").write_text("My model.\n")
    assert len(list(dslide.predict(tmp_path / "model", ["a whale"]))) == 1


def test_a_model_without_metrics_says_so(tmp_path):
    x = sp.csr_matrix(np.eye(6, dtype=np.float32).repeat(10, 0))
    SlideClassifier(**OPTIONS).fit(x, np.arange(60) // 10).save_pretrained(tmp_path / "model")
    metadata, text = parts((tmp_path / "model/README.md").read_text())
    assert "model-index" not in metadata
    assert "It was not measured on test data." in text


def test_a_name_of_the_hub_is_not_taken_for_a_folder():
    with pytest.raises(dslide.UserError, match="hf download someone/whales --local-dir FOLDER"):
        SlideClassifier.from_pretrained("someone/whales")


def test_the_hub_reads_the_metadata(run, tmp_path):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    assert main(["export", str(run.folder), str(tmp_path / "model")]) == 0
    card = hub.ModelCard.load(tmp_path / "model/README.md")
    assert card.data.library_name == "dslide"
    assert card.data.pipeline_tag == "text-classification"
    assert {result.metric_type: result.metric_value for result in card.data.eval_results}["P@1"] == 1.0
