"""What fuzz.py damages and opens: each target makes a valid sample once, then opens damaged copies of it."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import scipy.sparse as sp
import support.run_folders as run_folders
from fuzz.mutations import VALUES, WORDS, bytes_mutated, file_replaced, folder_mutated, sealed
from fuzz.run_targets import RunTarget, frames, lock, predict, relabelled, replicas, requests, resume

from dslide import SlideClassifier
from dslide.checkpoint.saved_model import load_model, model_folder
from dslide.checkpoint.tensor_file import open_tensors
from dslide.cli import main
from dslide.config import Config
from dslide.data import TextOptions, TextVectorizer, convert, load, load_tokens
from dslide.errors import ConfigError
from dslide.launch.mpiexec import read_hosts
from dslide.model.network import Network
from dslide.report import write_report
from dslide.sklearn.ranks import rebuild
from dslide.training.reading import load_for
from dslide.util.threads import use_threads

Open = Callable[[Path, Random], object]

XMC = b"5 6 4\n0,2 0:1 3:0.5\n1 1:2.25 5:1e-3\n3 2:1\n\n0:0.5,1 0:-1 4:.5\n"
LIBSVM = b"1,3 1:1 4:0.5 # first\n2 2:2.25 6:1e-3\r\n4:0.5 3:1\n\n1 1:-1 5:.5\n"
INTERACTIONS = b"0 1 2 3\n1 2 3\n7 0 4\n2\n"
TOKENS = "the cat sat on the mat\nthe dog sat on the cat \u00e9t\u00e9\n".encode() * 3
TSV = "a b\tthe cat sat\nb\tthe dog sat on it\nc\tthe \u00e9t\u00e9 on a cat\n".encode() * 2
JSONL = b'{"text": "the cat sat", "labels": ["a", "b c"]}\n{"text": "the dog sat", "labels": 7}\n' * 2
TABLE = b'user,item,stars,day\nanna,"pen, red",2,3\nbert,book,1,2024-05-31\nanna,book,4,5\n'
TOML = b'# options\nhidden = [8, 4]\nepochs = 2\nlearning_rate = 0.5e-2\noutput = "full"\ncorrection = true\n'
HOSTS = b"node-1 # the first\n10.0.0.2 ranks=2\n\nnode-3 ranks=12\n"


def read_hosts_of(folder: Path, _: Random) -> None:
    """Reads a host file, which may be a pipe if the user wants it to be."""
    read_hosts(folder / "file")


class Target:
    """A kind of input. `files` are its sample: one file or a folder of them."""

    def __init__(self, sample: Path, files: dict[str, bytes], open: Open) -> None:
        self.sample, self.open = sample, open
        sample.mkdir()
        for name, content in files.items():
            (sample / name).write_bytes(content)

    def damage(self, random: Random, path: Path, outside: Path) -> None:
        """Puts a damaged copy at `path`."""
        folder_mutated(random, self.sample, path, outside)


class TextTarget(Target):
    """A single text file, also compressed before or after the damage."""

    def damage(self, random: Random, path: Path, outside: Path) -> None:
        path.mkdir()
        (sample,) = self.sample.iterdir()
        content, file = sample.read_bytes(), path / sample.name
        squeeze = random.choice([None, None, None, gzip.compress, lzma.compress])
        if squeeze is not None and random.random() < 0.5:
            content, squeeze = squeeze(content), None
        content = bytes_mutated(random, content)
        file.write_bytes(content if squeeze is None else squeeze(content))
        if self.open is not read_hosts_of and random.random() < 0.02:
            file_replaced(random, file, outside)


def _text(content: bytes, open: Callable[[Path], object], name: str = "file") -> Callable[[Path], Target]:
    return lambda sample: TextTarget(sample, {name: content}, lambda folder, _: open(folder / name))


def _used(data: Any) -> None:
    """Goes through all that training and prediction do with a dataset."""
    data.batch(np.arange(len(data)))
    use_threads(1)
    if data.features <= 1000 and data.labels <= 1000 and data.features and data.labels:
        network = Network(Config(hidden=(3,), threads=1), data.features, data.labels, trainable=False)
        network.predict_topk(data.rows(0, len(data))[0], 2)


def _loads(**options: Any) -> Callable[[Path], object]:
    return lambda path: _used(load(path, threads=1, **options))


def _model(sample: Path, data: bytes, *words: str) -> None:
    """Trains a model of this data, in place of the sample."""
    name = sample.with_name("data")
    name.write_bytes(data)
    run = sample.with_name("run")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["train", str(name), "--out", str(run), "--hidden", "4", "--epochs", "1", "--threads", "1",
                     "--quiet", *words]) == 0  # fmt: skip
    shutil.copytree(model_folder(run), sample)
    shutil.rmtree(run)
    name.unlink()


class ModelTarget(Target):
    """A saved model. Most damage is sealed with good checksums, or nothing would get past these."""

    def __init__(self, sample: Path, open: Open) -> None:
        self.sample, self.open = sample, open

    def damage(self, random: Random, path: Path, outside: Path) -> None:
        folder_mutated(random, self.sample, path, outside)
        if random.random() < 0.9:
            sealed(path)


def _models(data: bytes, *words: str) -> Callable[[Path], Target]:
    def make(sample: Path) -> Target:
        _model(sample, data, *words)
        return ModelTarget(sample, _predict)

    return make


def _predict(folder: Path, random: Random) -> None:
    """Predicts with a model, or resumes training it."""
    data, use = folder.parent / "data", random.choice(["predict", "predict", "resume"])
    use_threads(1)
    if use == "resume":
        saved = load_model(folder, optimizer=True, verify=True)
        rebuild(saved.config, saved.features, saved.labels, saved.state, saved.progress)
        return
    saved = load_model(folder, verify=random.random() < 0.5)
    format, text = "libsvm", b"0 1:1\n"
    if saved.interactions:
        format, text = "interactions", b"0 1\n"
    elif saved.vectorizer is not None:
        format, text = "tsv", b"a\tthe cat\n"
    elif saved.tokens is not None:
        format, text = "tokens", b"the cat sat\n"
    data.write_bytes(text)
    rows = load_for(saved, data, {"format": format, "base": "auto" if format != "libsvm" else 0})
    network = Network(saved.config, saved.features, saved.labels, trainable=False, weights=saved.state)
    x = rows.rows(0, len(rows))[0]
    network.predict_topk(x, min(3, network.labels))
    network.predict_topk_approximate(x, min(3, network.labels))


def _estimator(sample: Path) -> Target:
    x = sp.csr_matrix(np.eye(6, 5, dtype=np.float32) + 0.5)
    kinds = (["b", "c", "a"] * 2, [3, 1, 2] * 2, [False, True] * 3)
    sample.mkdir()
    for number, y in enumerate(kinds):
        SlideClassifier(hidden=(4,), epochs=1, threads=1).fit(x, y).save(sample / str(number))

    class Estimator(ModelTarget):
        def damage(self, random: Random, path: Path, outside: Path) -> None:
            folder_mutated(random, self.sample / str(random.randrange(len(kinds))), path, outside)
            if random.random() < 0.9:
                sealed(path)

    def open(folder: Path, random: Random) -> None:
        SlideClassifier.load(folder, trainable=random.random() < 0.3).predict(x)

    return Estimator(sample, open)


def _folder(sample: Path) -> Target:
    """A converted folder, of text with a vocabulary."""
    file = sample.with_name("data.tsv")
    file.write_bytes(TSV)
    convert(file, sample)
    return ModelTarget(sample, lambda folder, _: _used(load(folder, format="csr")))


def _npz(sample: Path) -> Target:
    sample.mkdir()
    matrix = sp.random(5, 4, 0.5, "csr", np.float32, 0)
    sp.save_npz(sample / "X.npz", matrix)
    sp.save_npz(sample / "Y.npz", matrix)

    class Npz(ModelTarget):
        def damage(self, random: Random, path: Path, outside: Path) -> None:
            if random.random() < 0.3:
                folder_mutated(random, self.sample, path, outside)
                return
            shutil.copytree(self.sample, path)
            kind = random.choice(["csr", "csr", "csc", "coo", "dia", "bsr"])
            file = io.BytesIO()
            sp.save_npz(file, matrix.asformat(kind))
            with np.load(io.BytesIO(file.getvalue())) as loaded:
                arrays = dict(loaded)
            name = random.choice(list(arrays))
            arrays[name] = _array_mutated(random, arrays[name])
            np.savez(path / random.choice(["X.npz", "Y.npz"]), **arrays)

    return Npz(sample, lambda folder, _: _used(load(folder, format="npz")))


def _dense(sample: Path) -> Target:
    sample.mkdir()
    random = np.random.default_rng(0)
    x, y = random.standard_normal((6, 5)).astype(np.float16), np.arange(6) % 4
    np.save(sample / "X.npy", x)
    np.save(sample / "Y.npy", y)
    np.savez(sample / "both.npz", X=x, y=y)
    np.savez_compressed(sample / "packed.npz", X=x, y=y)
    (sample / "Y.txt").write_text("".join(f"label{label}\n" for label in y))

    class Dense(ModelTarget):
        def damage(self, random: Random, path: Path, outside: Path) -> None:
            if random.random() < 0.5:
                folder_mutated(random, self.sample, path, outside)
                return
            shutil.copytree(self.sample, path)
            np.save(path / "X.npy", _array_mutated(random, x))

    def open(folder: Path, random: Random) -> None:
        name = random.choice(["X.npy", "X.npy", "both.npz", "packed.npz"])
        labels = folder / "Y.txt" if name == "X.npy" and random.random() < 0.3 else None
        _used(load(folder / name, y=labels))

    return Dense(sample, open)


def _array_mutated(random: Random, array: Any) -> Any:
    what = random.choice(["number", "number", "number", "type", "cut", "shape", "text"])
    if what == "number" and array.dtype.kind in "iuf" and array.size:
        array = array.astype(random.choice([np.int32, np.int64, np.float64]))
        numbers = [-1, 1, 2**31 - 1, 10**9] + [2**40, 2**62] * (array.dtype != np.int32)
        array.reshape(-1)[random.randrange(array.size)] = random.choice(numbers)
        return array
    if what == "type" and array.dtype.kind in "iuf":
        return array.astype(random.choice(["f2", "f8", "i1", "u8", "c8", "?", "U3", "V4"]))
    if what == "cut":
        return array.reshape(-1)[: random.randrange(array.size + 1)]
    if what == "shape":
        return array.reshape(random.choice([(1, -1), (-1, 1), (-1,)]))
    return np.array(random.choice(["csr", "x", b"coo", 5, [[1]]]))


def _tensors(sample: Path) -> Target:
    from dslide.checkpoint.manifest import write_arrays

    sample.mkdir()
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((4, 0)), "c": np.ones(3, bool)}
    write_arrays(sample / "a.safetensors", arrays)

    def open(folder: Path, _: Random) -> None:
        for array in open_tensors(folder / "a.safetensors").arrays.values():
            array.tobytes()

    return ModelTarget(sample, open)


def _vectorizer(sample: Path) -> Target:
    import json

    made = TextVectorizer(TextOptions(min_df=1, ngrams=2))
    made.fit_transform(["the cat sat", "the dog"])
    content = json.dumps(made.to_dict()).encode()

    def open(folder: Path, _: Random) -> None:
        from dslide.checkpoint.manifest import read_json

        TextVectorizer.from_dict(read_json(folder / "v.json", dict)).transform(["the cat and the dog " * 3])

    return Target(sample, {"v.json": content}, open)


def _run(sample: Path) -> Target:
    """The folder of a run, of which a report is made."""
    run_folders.write(sample, run_folders.whole(ranks=2, steps=6), events=run_folders.EVENTS,
                      profile=run_folders.PROFILE, summary={"steps": 6, "peak_rss_bytes": 10**8})  # fmt: skip

    def open(folder: Path, _: Random) -> None:
        write_report([folder], folder.parent / "report.html")

    return ModelTarget(sample, open)


def _said(words: list[str]) -> None:
    """Runs a command. Its sentence, which it prints, is raised."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main(words)
        except SystemExit as error:  # after --help
            code = int(error.code or 0)
    if code not in (0, 2):
        raise AssertionError(f"{words}: exit code {code}: {errors.getvalue()}")
    if code and errors.getvalue():
        lines = errors.getvalue().splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("dslide: error: "), lines
        raise ConfigError(lines[0])


def _toml(sample: Path) -> Target:
    def open(folder: Path, _: Random) -> None:
        os.chdir(folder)
        _said(["train", "missing", "--config", str(folder / "o.toml")])

    return Target(sample, {"o.toml": TOML}, open)


def _relabelled(sample: Path) -> Target:
    _model(sample, LIBSVM, "--format", "libsvm", "--label-names", str(_names_file(sample)))
    return ModelTarget(sample, relabelled)


def _names_file(sample: Path) -> Path:
    path = sample.with_name("names")
    path.write_bytes("a\nb b\n\u00e9t\u00e9\nd\n".encode())
    return path


def _words(sample: Path) -> Target:
    """Command lines; of data that is not there, so that none does real work."""
    options = [f"--{name.replace('_', '-')}" for name in Config().to_dict()]
    options += ["--out", "--format", "--base", "--features", "--labels", "--k", "--config", "--window", "--min-df",
                "--rows", "--memory", "--y", "--label-column", "--ngrams", "--test", "--hold-out", "--no-correction",
                "--version", "--approximate", "--label-names", "--test-every", "--resume", "--x", "--separator",
                "--header", "--user-column", "--item-column", "--time-column", "--split", "--items", "--json",
                "--recommend", "--stop-words", "--label-separator"]  # fmt: skip
    commands = ["train", "evaluate", "predict", "vectors", "neighbours", "convert", "plan", "trian", ""]

    def open(folder: Path, random: Random) -> None:
        os.chdir(folder)
        texts = [w.decode(errors="surrogateescape") for w in WORDS] + [str(v)[:5000] for v in VALUES if v != 10**4000]
        words = [random.choice(commands)]
        for _ in range(random.randrange(1, 6)):
            word = random.choice(texts) if random.random() < 0.3 else random.choice([*options, "missing", "gone"])
            words += [word, random.choice(texts)] if random.random() < 0.7 else [word]
        _said([word.replace("\0", "") for word in words])

    return Target(sample, {"file": LIBSVM}, open)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "xmc": _text(XMC, _loads(format="xmc")),
    "libsvm": _text(LIBSVM, _loads(format="libsvm")),
    "auto": _text(LIBSVM, _loads()),
    "tsv": _text(TSV, _loads(format="tsv")),
    "jsonl": _text(JSONL, _loads(format="jsonl")),
    "table": _text(TABLE, _loads(format="interactions", weight_column="stars", time_column="day")),
    "interactions": _text(INTERACTIONS, _loads(format="interactions")),
    "tokens": _text(TOKENS, lambda path: load_tokens(path).epoch(0, 0)),
    "npz": _npz,
    "dense": _dense,
    "folder": _folder,
    "tensors": _tensors,
    "vectorizer": _vectorizer,
    "model": _models(LIBSVM, "--format", "libsvm", "--output", "lsh"),
    "text-model": _models(TSV, "--format", "tsv"),
    "item-model": _models(INTERACTIONS, "--format", "interactions"),
    "word-model": _models(TOKENS, "--format", "tokens", "--subsample", "0"),
    "estimator": _estimator,
    "toml": _toml,
    "run": _run,
    "predict": lambda sample: RunTarget(sample, predict),
    "resume": lambda sample: RunTarget(sample, resume),
    "lock": lock,
    "relabel": _relabelled,
    "frames": frames,
    "replicas": replicas,
    "requests": requests,
    "hosts": lambda sample: TextTarget(sample, {"file": HOSTS}, read_hosts_of),
    "words": _words,
}
