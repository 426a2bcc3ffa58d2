"""Hostile input: what fuzzing found, sizes that are only claimed, and what the package must never do with data."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dslide
from dslide import SlideClassifier
from dslide.checkpoint.saved_model import SavedModel, load_model, save_model
from dslide.cli import main
from dslide.config import Config, load_toml
from dslide.data import Dataset, SparseRows, TextOptions, TextVectorizer, convert, files, load, load_tokens
from dslide.errors import ConfigError, DataError, MemoryNeeded, ModelError, UserError
from dslide.model.network import Network
from dslide.sklearn.label_coder import LabelCoder
from dslide.training.trainer import Trainer


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model of 5 features and 4 labels, with a label prior."""
    x = np.array([[1, 0, 0, 0.5, 0], [0, 1, 0, 0, 0.5], [0, 0, 1, 1, 0], [0.5, 0, 0, 0, 1]], np.float32)
    data = Dataset(SparseRows.from_scipy(x), SparseRows.from_scipy(np.eye(4, dtype=np.float32)))
    trainer = Trainer(Config(hidden=(8,), prior_labels=4, epochs=2, threads=1), 5, 4)
    trainer.fit(data)
    network = trainer.network
    assert network.prior is not None
    saved = SavedModel(
        network.config, 5, 4, network.state(), progress=trainer.progress(), label_counts=np.ones(4, np.int64), rows=4
    )
    folder = tmp_path_factory.mktemp("sample") / "model"
    save_model(folder, saved)
    return folder


@pytest.fixture
def model(sample: Path, tmp_path: Path) -> Path:
    shutil.copytree(sample, tmp_path / "model")
    return tmp_path / "model"


def put(folder: Path, name: str, content: Any) -> None:
    """Writes a JSON file of a model, with the right checksum."""
    data = json.dumps(content).encode() if not isinstance(content, bytes) else content
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"size": len(data), "crc32": zlib.crc32(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def changed(folder: Path, name: str, **changes: Any) -> None:
    put(folder, name, json.loads((folder / name).read_text()) | changes)


# ---- models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["manifest.json", "config.json", "weights.safetensors", "label_counts.safetensors"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "zeros"])
def test_files_of_a_model_are_plain_files(model: Path, name: str, kind: str) -> None:
    path, outside = model / name, model.parent / "outside"
    shutil.copy(path, outside)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)  # to open it would wait forever
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(outside if kind == "link" else "/dev/zero")  # to read which never ends
    with pytest.raises(ModelError, match=rf"{name}: is (a link, expected a file|not a regular file)"):
        load_model(model)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("config.json", {"features": 0}, r"features: expected a whole number, 1 to 2147483647, not 0"),
        ("config.json", {"labels": 2**40}, r"labels: expected a whole number"),
        ("config.json", {"base": 7}, r"base: expected a whole number, 0 to 1, not 7"),
        ("config.json", {"hash_hits": 10**20}, r"hash_hits: expected a whole number, at most 2147483647"),
        ("config.json", {"hidden": []}, r"config\.json: hidden_share: 1 values given for 0 hidden layers"),
        ("config.json", {"hidden": [-1]}, r"config\.json: hidden: a saved network has layers of known sizes"),
        ("config.json", {"dense_features": 2**20}, r"config\.json: dense_features: 1048576 of \d+ features"),
        ("config.json", {"dense_features": "x"}, r"config\.json: dense_features: expected a whole number"),
        ("config.json", {"interactions": True}, "features and labels must be as many"),
        ("progress.json", {"step": "x"}, r"progress\.json: step: expected a whole number"),
        ("progress.json", {"epoch": -1}, r"progress\.json: epoch: expected a whole number"),
        ("progress.json", {"position": None}, r"progress\.json: position: expected a whole number"),
    ],
)
def test_numbers_of_a_model_are_checked(model: Path, name: str, changes: dict[str, Any], message: str) -> None:
    changed(model, name, **changes)
    with pytest.raises(ModelError, match=message):
        load_model(model, optimizer=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b'{"features": 5, "features": 6}', r"config\.json: damaged: not valid JSON"),
        ("config.json", b'{"features": NaN}', r"config\.json: damaged: not valid JSON"),
        ("config.json", b"[" * 10**5, r"config\.json: damaged: not valid JSON"),
        ("labels.json", ["a", "b", "c", "\ud800"], r"labels\.json: the name '.ud800' is not text"),
        ("vectorizer.json", {"words": []}, r"vectorizer\.json: damaged: not a saved vectorizer: options"),
        ("vectorizer.json", TextVectorizer().to_dict(), r"vectorizer\.json: damaged: it has 0 words for 5 features"),
        ("tokens.json", {}, r"a model of words must have them in labels\.json"),
    ],
)
def test_parts_of_a_model_are_checked(model: Path, name: str, content: Any, message: str) -> None:
    put(model, name, content)
    with pytest.raises(ModelError, match=message):
        load_model(model)


@pytest.mark.parametrize(
    ("about", "names"),
    [
        ({"dtype": "<U999999999"}, ["a", "b"]),  # 8 GB
        ({"dtype": ["x"]}, ["a", "b"]),
        ({"dtype": "<i8"}, ["2", "2"]),  # would be taken for each other
        ({"dtype": "<i8"}, ["1", "x"]),
        ({"dtype": "|b1", "dense": "no"}, ["False", "True"]),
        ({"dtype": "<i1"}, ["1", "1000"]),
        ({"dtype": "(2,"}, ["1", "2"]),
    ],
)
def test_classes_of_an_estimator_are_checked(
    about: dict[str, Any], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dslide.util.memory, "available_bytes", lambda: 10**9)
    with pytest.raises((ModelError, MemoryNeeded), match="classes"):
        LabelCoder.restore({"multilabel": False, "dense": True} | about, names, 2)


def test_passes_of_an_estimator_are_checked(tmp_path: Path) -> None:
    SlideClassifier(hidden=(2,), epochs=1, threads=1).fit(np.eye(4), [0, 1, 0, 1]).save(tmp_path / "m")
    changed(tmp_path / "m", "estimator.json", passes=[1])
    with pytest.raises(ModelError, match=r"passes: expected a whole number, not \[1\]"):
        SlideClassifier.load(tmp_path / "m")


def test_hash_tables_that_a_model_asks_for_have_to_fit(model: Path) -> None:
    changed(model, "config.json", output="lsh", tables=1024, table_bits=24)  # 69 GB
    saved = load_model(model)
    network = Network(saved.config, saved.features, saved.labels, trainable=False, weights=saved.state)
    x = dslide.data.SparseRows.from_scipy(np.ones((1, 5), np.float32))
    network.predict_topk(x, 1)
    if dslide.util.memory.available_bytes() < 60e9:
        with pytest.raises(MemoryNeeded, match="approximate prediction needs about"):
            network.predict_topk_approximate(x, 1)


# ---- data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": "x"}, "rows: expected a whole number, not 'x'"),
        ({"rows": True}, "rows: expected a whole number, not True"),
        ({"unknown_labels": "x"}, "unknown_labels: expected a whole number"),
        ({"unknown_labels": 100}, "more unknown labels than labels"),
        ({"x": None}, "x: columns: expected a whole number, not None"),
        ({"y": {"columns": 2.5}}, "y: columns: expected a whole number, not 2.5"),
        ({"checksum": 5}, "there is no checksum"),
    ],
)
def test_numbers_of_a_converted_folder_are_checked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "d").write_text("0 1:1\n")
    convert(tmp_path / "d", tmp_path / "f")
    manifest = tmp_path / "f/dataset.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))
    with pytest.raises(DataError, match=message):
        load(tmp_path / "f")


@pytest.mark.parametrize("name", ["dataset.json", "x_indices.i32", "vectorizer.json", "label_names.txt"])
def test_files_of_a_converted_folder_are_plain_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "d.tsv").write_text("a\tone two\nb\tone two\n")
    convert(tmp_path / "d.tsv", tmp_path / "f")
    (tmp_path / "f" / name).rename(tmp_path / "outside")
    (tmp_path / "f" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match=f"{name}: is a link, expected a file"):
        load(tmp_path / "f", format="csr")


def test_texts_in_a_matrix_are_refused(tmp_path: Path) -> None:
    part = sp.coo_matrix(np.eye(2))
    np.savez(tmp_path / "X.npz", row=part.row, col=part.col, data=np.array(["a", "b"]), shape=(2, 2), format=b"coo")
    shutil.copy(tmp_path / "X.npz", tmp_path / "Y.npz")
    with pytest.raises(DataError, match=r"X\.npz: "):
        load(tmp_path)


def test_offsets_that_are_no_whole_numbers_are_refused(tmp_path: Path) -> None:
    matrix = sp.csr_matrix(np.eye(3, dtype=np.float32)[[0, 1, 2, 0]])
    for name, indptr in (("X", matrix.indptr), ("Y", np.array([0, 1, 2, 3, -1.0]))):
        parts = {"indices": matrix.indices, "data": matrix.data, "shape": matrix.shape, "format": b"csr"}
        np.savez(tmp_path / f"{name}.npz", indptr=indptr, **parts)
    with pytest.raises(DataError, match=r"Y\.npz"):
        load(tmp_path)


def test_matrices_of_16_bits_are_read(tmp_path: Path) -> None:
    diagonal = {"offsets": [0], "data": np.full((1, 4), 0.5, np.float16), "shape": (4, 4), "format": b"dia"}
    np.savez(tmp_path / "X.npz", **diagonal)
    sp.save_npz(tmp_path / "Y.npz", sp.csr_matrix(np.eye(4, dtype=np.float32)))
    assert load(tmp_path).x.values.tolist() == [0.5] * 4


@pytest.mark.parametrize("options", [{"ngrams": 10**9}, {"min_df": 10**20}])
def test_text_options_have_bounds(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))}: expected a whole number"):
        TextOptions(**options)


def test_xz_streams_padding_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lines = tmp_path / "f", [b"0 %d:1\n" % i for i in range(20_000)]
    half = len(lines) // 2
    one, two = (lzma.compress(b"".join(part)) for part in (lines[:half], lines[half:]))
    for content in (one + two, one + b"\0" * 8 + two, one + two + b"\0" * 4):
        path.write_bytes(content)
        for size in (1000, 1 << 23):
            assert b"".join(block for _, block in files.line_blocks(path, size)) == b"".join(lines)
    path.write_bytes(one + two[:-20])
    with pytest.raises(DataError, match="cut off"):
        list(files.line_blocks(path))
    monkeypatch.setattr(files, "XZ_MEMORY", 1 << 20)  # the sample asks for 8 MB
    path.write_bytes(one)
    with pytest.raises(DataError, match="f: takes more than 1 MB to decompress"):
        list(files.line_blocks(path))


def test_data_that_outgrows_memory_ends_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(gzip.compress(b"\n" * (3 << 20)))  # 3 KB
    monkeypatch.setattr(files, "CHECK_BYTES", 1 << 20)
    monkeypatch.setattr(files, "available_bytes", lambda: 1 << 20)
    for read in (lambda: load(path, format="libsvm"), lambda: load_tokens(path)):
        with pytest.raises(MemoryNeeded, match="f: the data needs more memory than there is"):
            read()


# ---- claimed sizes ----------------------------------------------------------------------------------------------


# In a process of its own, which has no memory of earlier tests to use again. Prints exit code and growth of the peak.
PEAK_OF_COMMAND = """
import sys
from dslide.cli import main
from dslide.util import memory
memory.available_bytes = lambda: 2 * 10**9
before = memory.peak_rss_bytes()
code = main(sys.argv[1:])
print(code, memory.peak_rss_bytes() - before)
"""


@pytest.mark.parametrize(
    ("content", "format"),
    [
        ("1 2147483647 2147483647\n0 1:1\n", "xmc"),
        ("2147483646 2147483646:1\n", "libsvm"),
        ("0 2147483646\n", "interactions"),
    ],
)
def test_billions_of_columns_are_a_sentence_and_no_allocation(tmp_path: Path, content: str, format: str) -> None:
    (tmp_path / "f").write_text(content)
    words = ["train", str(tmp_path / "f"), "--format", format, "--out", str(tmp_path / "run"), "--quiet"]
    run = subprocess.run([sys.executable, "-c", PEAK_OF_COMMAND, *words], capture_output=True, text=True, timeout=60)
    assert re.search(r"needs about .* but .* are available", run.stderr)
    code, grown = map(int, run.stdout.split())
    assert code == 2
    assert grown < 2 * 10**8
    assert not (tmp_path / "run").exists()


def test_matrices_that_claim_billions_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dslide.util.memory, "available_bytes", lambda: 2 * 10**9)
    part = sp.coo_matrix(([1.0], ([0], [0])), shape=(2**31, 3))
    for name in ("X.npz", "Y.npz"):
        sp.save_npz(tmp_path / name, part)
    with pytest.raises(MemoryNeeded, match=r"X\.npz: a matrix of 2147483648 rows needs about"):
        load(tmp_path)


def test_matrices_that_unpack_to_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dslide.util.memory, "available_bytes", lambda: 10**6)
    for name in ("X.npz", "Y.npz"):
        sp.save_npz(tmp_path / name, sp.csr_matrix(np.zeros((10**6, 3))))
    assert (tmp_path / "X.npz").stat().st_size < 10**5
    with pytest.raises(MemoryNeeded, match=r"reading .*X\.npz needs about"):
        load(tmp_path)


# ---- options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", ["epochs = " + "9" * 5000, "hidden = " + "[" * 5000, "a = " + "{a = " * 3000, 'x = "\xff"']
)
def test_toml_that_python_trips_over(tmp_path: Path, content: str) -> None:
    (tmp_path / "o.toml").write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"o\.toml: not a TOML file"):
        load_toml(tmp_path / "o.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epochs = 0x" + "f" * 5000, "epochs: the number is too long"),
        ('out = "a\\u0000b"', "out: a zero byte can't be in it"),
    ],
)
def test_toml_values_that_can_be_no_option(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (tmp_path / "o.toml").write_text(content)
    assert main(["train", "missing", "--config", str(tmp_path / "o.toml")]) == 2
    assert message in capfd.readouterr().err


def test_options_come_from_plain_files_only(tmp_path: Path) -> None:
    """A pipe would never end, nor would a device."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    for name in ("pipe.toml", "zero.toml"):
        with pytest.raises(ConfigError, match="is not a regular file"):
            load_toml(tmp_path / name)


def test_whole_numbers_have_bounds() -> None:
    with pytest.raises(ConfigError, match="epochs: expected a whole number, at most 2147483647, not 10000000000"):
        Config(epochs=10**10)


def test_messages_are_one_line_of_bounded_length() -> None:
    assert str(UserError("a\nb\x1b[2J\ud800é")) == "a\\nb\\x1b[2J\\ud800é"
    assert len(str(DataError("x" * 10**6))) < 1300


# ---- the package itself -------------------------------------------------------------------------------------------


FORBIDDEN = {
    "unpickles": r"\bc?[pP]ickle\b(?!d)|\bmarshal\b|\bshelve\b|\bjoblib\b|allow_pickle\s*=\s*True|torch\.load",
    "runs code": r"(?<![\w.])(eval|exec|compile|__import__)\(|\bos\.(system|popen)\(|shell\s*=\s*True",
    "reads YAML": r"\byaml\b",
    "unpacks archives": r"\btarfile\b|extractall|\bunpack_archive\b",
    "has guessable temporary files": r"\bmktemp\(",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_package_never(what: str) -> None:
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted(Path(dslide.__file__).parent.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(FORBIDDEN[what], line.split("#")[0])
    ]
    assert found == [], what


def test_opening_a_model_unpickles_starts_and_connects_to_nothing(model: Path) -> None:
    called = []
    watched = True

    def hook(event: str, _: Any) -> None:
        if watched and event in ("pickle.find_class", "os.system", "subprocess.Popen", "socket.connect"):
            called.append(event)

    load_model(model)  # imports are done
    sys.addaudithook(hook)
    load_model(model, optimizer=True, verify=True)
    watched = False
    assert called == []


def test_a_long_line_is_put_together_once(tmp_path: Path) -> None:
    """Line by block, each time anew, these 250,000 blocks would be 2 TB to copy."""
    line = b"1 " + b"2:1 " * (1 << 22)
    (tmp_path / "x.txt").write_bytes(line + b"\n")
    assert list(files.line_blocks(tmp_path / "x.txt", block_bytes=64)) == [(1, line + b"\n")]
