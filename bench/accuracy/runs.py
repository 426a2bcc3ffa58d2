"""One run of a recipe, or of a peer on the same data, in a process of its own."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.commands import as_arguments, read_records, read_summary
from dslide.cli import main
from dslide.data import Dataset, SparseRows, TextOptions, TextVectorizer, load
from dslide.training.metrics import KS, Evaluation
from dslide.util.memory import peak_rss_bytes

READING = ("format", "label_column", "text_column")  # options that are needed to read the files of a recipe


def train(data: str, options: dict[str, Any], curve: str, out: str, seed: int) -> dict[str, Any]:
    """`dslide train` with these options: the numbers of its summary, and a metric over seconds of training."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        run = Path(folder) / "run"
        code = main(["train", data, "--quiet", f"--out={run}", f"--seed={seed}", *as_arguments(options)])
        if code:
            raise SystemExit(code)  # the reason is on stderr
        summary, records = read_summary(run), read_records(run / "log.jsonl")
    numbers = {name: value for name, value in summary.items() if isinstance(value, float)}
    return numbers | {
        "peak_gigabytes": summary["peak_rss_bytes"] / 1e9,
        "curve": [[record["seconds"], record[curve]] for record in records if record["record"] == "test"],
    }


def parabel(folder: str, trees: int, seed: int) -> dict[str, Any]:
    """Parabel by omikuji, with its default settings but the number of trees. It takes no seed. Reading the file is not
    timed, as in dslide."""
    import omikuji
    from omikuji import ffi, lib

    # `train_on_data` would read and train in one call.
    pool = omikuji._ThreadPoolHandle(0)  # a thread for each core
    rows = ffi.gc(lib.load_omikuji_data_set(f"{folder}/train.txt".encode(), pool.ptr), lib.free_omikuji_data_set)
    settings = omikuji.Model.default_hyper_param()
    settings.n_trees = trees
    start = time.perf_counter()
    model = omikuji.Model(lib.train_omikuji_model(rows, settings, pool.ptr), pool)
    seconds = time.perf_counter() - start
    peak, evaluation = peak_rss_bytes(), _evaluation(load(f"{folder}/train.txt", base=0))
    test = load(f"{folder}/test.txt", base=0)
    for row in range(len(test)):
        x = test.x.part(row, row + 1)
        found = model.predict(list(zip(x.indices.tolist(), x.values.tolist(), strict=True)), top_k=max(KS))
        ids = np.full((1, max(KS)), -1)
        ids[0, : len(found)] = [label for label, _ in found]
        evaluation.update(ids, test.y.part(row, row + 1))
    return _peer_results(evaluation, seconds, peak)


def pecos(folder: str, seed: int) -> dict[str, Any]:
    """PECOS's XR-Linear with its default settings: labels are clustered by their rows, then ranked down the tree."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel
    from scipy.sparse import csr_matrix

    def matrix(rows: SparseRows) -> csr_matrix:
        return csr_matrix((rows.values, rows.indices, rows.indptr), (len(rows), rows.columns))

    data, test = (load(f"{folder}/{part}.txt", base=0) for part in ("train", "test"))
    x, y = matrix(data.x), matrix(data.y)
    start = time.perf_counter()
    tree = Indexer.gen(LabelEmbeddingFactory.create(y, x, method="pifa"), seed=seed)
    model = XLinearModel.train(x, y, C=tree)
    seconds = time.perf_counter() - start
    peak, evaluation = peak_rss_bytes(), _evaluation(data)
    found = model.predict(matrix(test.x), only_topk=max(KS)).tocsr()
    ids = np.full((len(test), max(KS)), -1)
    for row in range(len(test)):
        scores = found.data[found.indptr[row] : found.indptr[row + 1]]
        labels = found.indices[found.indptr[row] : found.indptr[row + 1]]
        ids[row, : len(labels)] = labels[np.argsort(-scores, kind="stable")]
    evaluation.update(ids, test.y)
    return _peer_results(evaluation, seconds, peak)


def _evaluation(data: Dataset) -> Evaluation:
    """Of a model that was trained on this data."""
    return Evaluation(KS, np.bincount(data.y.indices, minlength=data.labels), len(data))


def _peer_results(evaluation: Evaluation, seconds: float, peak: int) -> dict[str, Any]:
    result = evaluation.result()
    return result | {"seconds": seconds, "peak_gigabytes": peak / 1e9, "curve": [[seconds, result["p_at_1"]]]}


def write_bag_of_words(recipe: dict[str, Any], train_file: Path, test_file: Path, folder: Path) -> None:
    """The rows that the recipe's network is trained on, as train.txt and test.txt for other systems."""
    reading = {name: recipe[name] for name in READING if name in recipe}
    names = [field.name for field in dataclasses.fields(TextOptions)]
    words = None
    if recipe["format"] == "tsv":
        words = TextVectorizer(TextOptions(**{name: recipe[name] for name in names if name in recipe}))
    rows = load(train_file, **reading, vectorizer=words)
    test = load(test_file, **reading, vectorizer=words, label_names=rows.label_names)
    folder.mkdir(parents=True, exist_ok=True)
    write_xmc(rows, folder / "train.txt")
    write_xmc(test, folder / "test.txt")


def write_xmc(data: Dataset, path: Path) -> None:
    """XMLRepository text, without the weights of labels."""
    x, y = data.x, data.y
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{len(data)} {data.features} {data.labels}\n")
        for row in range(len(data)):
            begin, end = x.indptr[row], x.indptr[row + 1]
            pairs = zip(x.indices[begin:end].tolist(), x.values[begin:end].tolist(), strict=True)
            labels = ",".join(map(str, y.indices[y.indptr[row] : y.indptr[row + 1]].tolist()))
            file.write(labels + "".join(f" {column}:{value:.6g}" for column, value in pairs) + "\n")
