"""The card of a model: README.md in its folder, as the Hugging Face hub shows it: data, options, metrics, limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dslide.checkpoint.manifest import CARD
from dslide.checkpoint.saved_model import SavedModel
from dslide.config import Config
from dslide.errors import ModelError
from dslide.util.atomic import AtomicFile
from dslide.util.json_files import read_plain_json
from dslide.util.units import METRIC_NAMES, clock, format_bytes, metric_name

FEW = 5  # rows of a label that is called rare


def write_card(folder: Path, model: SavedModel, summary: Mapping[str, Any], name: str) -> None:
    """Writes the card of a model; `summary` is that of its run, or some metrics alone."""
    with AtomicFile(folder / CARD, encoding="utf-8", errors="replace") as file:
        file.write(card(model, summary, name))


def read_summary(run: str | Path) -> dict[str, Any]:
    """The summary of a run; empty if there is none, as in a model folder."""
    path = Path(run) / "summary.json"
    found = read_plain_json(path, ModelError) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def card(model: SavedModel, summary: Mapping[str, Any], name: str) -> str:
    """The text of the card."""
    metrics = {key: summary[key] for key in summary if _is_metric(key) and isinstance(summary[key], (int, float))}
    sections = {
        "Use": _use(model),
        "Data": _list(_data(model)),
        "Metrics": _table("metric", {metric_name(key): f"{value:.4f}" for key, value in metrics.items()}, summary),
        "Training": _list(_training(summary)),
        "Options": _options(model.config),
        "Limits": _list(_limits(model, metrics)),
    }
    body = "\n".join(f"## {title}\n\n{text}\n" for title, text in sections.items() if text)
    layers = " × ".join(f"{size:,}" for size in (model.features, *model.config.hidden, model.labels))
    about = "A neural network with a large output layer, trained by dslide"
    return f"---\n{_metadata(model, metrics, name)}---\n\n# {_line(name)}\n\n{about}: {layers}.\n\n{body}"


def _metadata(model: SavedModel, metrics: Mapping[str, float], name: str) -> str:
    """YAML, of which JSON is a part."""
    task = "text-classification" if model.vectorizer is not None else "tabular-classification"
    if model.interactions:
        task = "recommendation"
    tags = ["dslide", "extreme-classification", *["recommendation"] * model.interactions]
    values: dict[str, Any] = {"library_name": "dslide", "tags": tags}
    if not model.interactions:
        values["pipeline_tag"] = task
    if metrics:
        results = [{"type": metric_name(key), "value": round(value, 4)} for key, value in metrics.items()]
        of_task = {"task": {"type": task}, "dataset": {"name": "test rows", "type": "custom"}, "metrics": results}
        values["model-index"] = [{"name": name, "results": [of_task]}]
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())


def _use(model: SavedModel) -> str:
    rows = "rows"
    if model.vectorizer is not None and not model.dense_features:
        rows = '["a text", "another one"]'
    elif model.interactions:
        rows = '[["an item", "another one"]]  # of each user'
    reading, _, comment = rows.partition("  #")
    code = f'import dslide\n\nfor row in dslide.predict("FOLDER", {reading}, k=5):{"  #" * bool(comment)}{comment}\n'
    if reading == "rows":
        code = (
            'from dslide import SlideClassifier\n\nmodel = SlideClassifier.from_pretrained("FOLDER")\n'
            f"labels, scores = model.predict_topk(X, k=5)  # X: scipy sparse or an array, {model.features:,} columns\n"
        )
    else:
        code += "    print(row.names, row.scores)\n"
    return f"With dslide installed; FOLDER is a copy of this one.\n\n```python\n{code}```"


def _data(model: SavedModel) -> Iterator[str]:
    kind = "sparse rows"
    if model.interactions:
        kind = "users and the items they had to do with"
    elif model.vectorizer is not None:
        kind = "texts" + " with dense features" * (model.dense_features > 0)
    elif model.tokens is not None:
        kind = "running text"
    elif model.dense_features:
        kind = "dense rows" if model.dense_features == model.features else "sparse rows with dense features"
    yield f"trained on {model.rows:,} rows: {kind}"
    dense = f", of which {model.dense_features:,} are dense" if model.dense_features else ""
    yield f"{model.features:,} features{dense}; {model.labels:,} labels"


def _training(summary: Mapping[str, Any]) -> Iterator[str]:
    if "epochs" not in summary:
        return
    best = summary.get("best_epoch")
    kept = "" if best is None else f"; the network after epoch {best} was kept, by held-out rows"
    yield f"{summary['epochs']} epochs in {clock(summary['seconds'])}{kept}"
    ranks, threads = summary["ranks"], summary["threads"]
    yield f"{ranks} rank{'s' * (ranks != 1)} of {threads} thread{'s' * (threads != 1)}, {summary['isa']} instructions"
    yield f"{summary['parameters']:,} parameters, {format_bytes(summary['peak_rss_bytes'])} of memory at most"
    yield f"dslide {summary['version']}, seed {summary['seed']}"


def _options(config: Config) -> str:
    """Options that differ from those that dslide has when nothing is given, decided ones included."""
    defaults = Config().to_dict()
    changed = {key: value for key, value in config.to_dict().items() if value != defaults.get(key)}
    return _table("option", {key: _line(str(value)) for key, value in changed.items()})


def _limits(model: SavedModel, metrics: Mapping[str, float]) -> Iterator[str]:
    if not metrics:
        yield "It was not measured on test data."
    if model.label_counts is not None:
        unseen = int((model.label_counts == 0).sum())
        rare = int((model.label_counts < FEW).sum()) - unseen
        yield (
            f"Labels are those of the training data: {unseen:,} of them occur in no row of it, {rare:,} in fewer than "
            f"{FEW}, and are hardly predicted."
        )
    if model.vectorizer is not None:
        yield "Words that the training data did not have are ignored. A text of none that is known gets common labels."
    if model.interactions or model.config.ranking == "propensity":
        yield "Scores rank labels; they give no probabilities."
    if model.config.weights != "float32":
        yield f"Weights are stored as {model.config.weights}, which costs a little accuracy."
    yield "What training data lacks or repeats too often, predictions do too: check them for your use."


def _is_metric(key: str) -> bool:
    kind, _, k = key.partition("_at_")
    return kind in METRIC_NAMES and k.isdigit()


def _list(items: Iterator[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _table(head: str, values: Mapping[str, str], summary: Mapping[str, Any] | None = None) -> str:
    if not values:
        return ""
    rows = "" if not summary or not summary.get("test_rows") else f"On {summary['test_rows']:,.0f} test rows:\n\n"
    lines = "\n".join(f"| {key} | {value} |" for key, value in values.items())
    return f"{rows}| {head} | value |\n|---|---|\n{lines}"


def _line(text: str) -> str:
    """A text that can't break out of a heading or of a cell of a table."""
    return "".join(c if c.isprintable() else " " for c in text).replace("|", "\\|").replace("<", "&lt;")
