"""The same dataset through every format, and the dataset folder on disk."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dslide.data import Dataset, SparseRows, TextVectorizer, convert, load, open_dataset, write_dataset
from dslide.data.formats import folder as ondisk
from dslide.errors import DataError
from dslide.util.atomic import new_folder

XMC = "3 5 4\n0,3:0.5 1:0.25 4\n 2:1e-3\n1\n"
ARRAYS = [f"{m}_{part}" for m in "xy" for part in ("indptr.i64", "indices.i32", "values.f32")]


@pytest.fixture
def xmc(tmp_path: Path) -> Path:
    path = tmp_path / "data.txt"
    path.write_text(XMC)
    return path


def same(a: Dataset, b: Dataset) -> bool:
    return a.checksum == b.checksum and all(
        np.array_equal(getattr(p, part), getattr(q, part)) and p.columns == q.columns
        for p, q in ((a.x, b.x), (a.y, b.y))
        for part in ("indptr", "indices", "values")
    )


def test_every_format_gives_the_same_dataset(tmp_path: Path, xmc: Path) -> None:
    first = load(xmc)
    assert (len(first), first.features, first.labels) == (3, 5, 4)
    assert (first.x.empty_rows(), first.y.empty_rows()) == (1, 1)

    (tmp_path / "data.svm").write_text(XMC.split("\n", 1)[1])
    assert same(load(tmp_path / "data.svm", base=0, features=5, labels=4), first)

    for names in (("X.npz", "Y.npz"), ("X.trn.npz", "Y.trn.npz")):
        folder = tmp_path / names[0].replace(".", "")
        folder.mkdir()
        sp.save_npz(folder / names[0], first.x.to_scipy())
        sp.save_npz(folder / names[1], first.y.to_scipy())
        assert same(load(folder), first)
        assert same(load(folder / names[0]), first)
        assert same(load(folder / names[0], y=folder / names[1], format="npz"), first)

    write_dataset(first, tmp_path / "written")
    assert same(load(tmp_path / "written"), first)
    convert(xmc, tmp_path / "converted")
    assert same(open_dataset(tmp_path / "converted", verify=True), first)


rows_of_text = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=3), st.lists(st.integers(0, 4), max_size=4)), max_size=6
)


@given(rows=rows_of_text, shift=st.integers(0, 1), blanks=st.integers(0, 2), header=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_convert_equals_load(
    tmp_path_factory: pytest.TempPathFactory, rows: list, shift: int, blanks: int, header: bool
) -> None:
    folder = tmp_path_factory.mktemp("convert")
    lines = [",".join(str(i + shift) for i in y) + "".join(f" {i + shift}:{i + 0.5}" for i in x) for y, x in rows] + [
        f"{3 + shift} {4 + shift}"
    ]
    text = "\n".join([f"{len(lines)} 5 4", *lines] if header else lines) + "\n" * (1 + blanks)
    (folder / "f").write_text(text)
    convert(folder / "f", folder / "out", format="xmc" if header else "libsvm")
    loaded, opened = (
        load(folder / "f", format="xmc" if header else "libsvm"),
        open_dataset(folder / "out", verify=True),
    )
    assert same(loaded, opened)
    assert loaded.base == opened.base


def test_pieces_are_written_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ondisk, "_CHUNK", 16)  # rows to a piece when writing, bytes when rewriting
    matrix = sp.random(50, 9, 0.5, "csr", np.float32, np.random.default_rng(0))
    dataset = Dataset(SparseRows.from_scipy(matrix), SparseRows.from_scipy(sp.eye(50, dtype=np.float32)))
    write_dataset(dataset, tmp_path / "d")
    assert same(open_dataset(tmp_path / "d", verify=True), dataset)
    (tmp_path / "f").write_text("".join(f"{i + 1} {i + 1}\n" for i in range(50)) + "\n\n")
    convert(tmp_path / "f", tmp_path / "c")
    assert open_dataset(tmp_path / "c", verify=True).x.indices.tolist() == list(range(50))


def test_an_opened_dataset_stays_mapped(tmp_path: Path, xmc: Path) -> None:
    convert(xmc, tmp_path / "d")
    dataset = open_dataset(tmp_path / "d")
    for rows in (dataset.x, dataset.y, dataset.x.part(0, 2)):
        assert isinstance(rows.indices, np.memmap)
        assert isinstance(rows.values, np.memmap)
    assert dataset.x.take([2, 0]).indices.tolist() == [1, 4]
    assert (tmp_path / "d" / "x_indices.i32").read_bytes() == np.array([1, 4, 2], "<i4").tobytes()


def test_names_and_vectorizer_are_kept(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("b a\tred fish\na\tred house\n\tblue fish äöü äöü\n")
    loaded = load(tmp_path / "t.tsv")
    assert loaded.label_names == ["a", "b"]
    assert loaded.feature_names == ["fish", "red"]
    write_dataset(loaded, tmp_path / "d")
    opened = open_dataset(tmp_path / "d", verify=True)
    assert same(opened, loaded)
    assert opened.label_names == loaded.label_names
    assert opened.feature_names == loaded.feature_names
    assert opened.vectorizer == loaded.vectorizer
    with pytest.raises(DataError, match="other label names"):
        load(tmp_path / "d", label_names=["a", "c"])
    with pytest.raises(DataError, match="another vocabulary"):
        load(tmp_path / "d", vectorizer=TextVectorizer())


def test_tsv_with_a_learned_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x y\tred fish\nx\tred fish\n")
    (tmp_path / "b.tsv").write_text("y new x\tfish unseen\r\nnew older older\tred\r\n\n")
    first = load(tmp_path / "a.tsv")
    second = load(tmp_path / "b.tsv", vectorizer=first.vectorizer, label_names=first.label_names, features=2, labels=2)
    assert second.x.columns == first.x.columns == 2
    assert second.label_names == ["x", "y", "new", "older"]  # unknown ones last
    assert second.unknown_labels == 2
    assert second.y.indices.tolist() == [0, 1, 2, 2, 3]
    assert second.y.values.tolist() == [1, 1, 1, 1, 2]


def test_label_names_of_other_formats(xmc: Path, tmp_path: Path) -> None:
    assert load(xmc, label_names=list("abcd")).label_names == list("abcd")
    convert(xmc, tmp_path / "d", label_names=list("abcd"))
    assert open_dataset(tmp_path / "d").label_names == list("abcd")
    with pytest.raises(DataError, match="4 labels but 2 label names"):
        convert(xmc, tmp_path / "e", label_names=list("ab"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "data.txt"]


def test_checksums_of_different_datasets_differ(xmc: Path, tmp_path: Path) -> None:
    first = load(xmc)
    for change in (
        ("0.25", "0.26"),
        ("3:0.5", "2:0.5"),
        (" 4\n ", "\n 4 "),
        ("3 5 4", "3 6 4"),
        ("3 5 4", "3 5 5"),
    ):
        xmc.write_text(XMC.replace(*change))
        assert load(xmc).checksum != first.checksum
    write_dataset(first, tmp_path / "d")
    opened = load(tmp_path / "d", label_names=list("abcd"))
    (tmp_path / "d" / "x_values.f32").write_bytes(bytes(12))  # the checksum is known without reading this
    assert opened.checksum == first.checksum
    assert dataclasses.replace(opened, x=opened.x.take([0, 1, 2])).checksum != first.checksum
    stored = json.loads((tmp_path / "d" / "dataset.json").read_text())["checksum"]
    assert stored == first.checksum


def test_an_existing_target_is_left_alone(xmc: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("precious")
    for name in ("there", "file"):
        with pytest.raises(DataError, match=f"{name}: exists already"):
            convert(xmc, tmp_path / name)
        with pytest.raises(DataError, match=f"{name}: exists already"):
            write_dataset(load(xmc), tmp_path / name)
    assert list((tmp_path / "there").iterdir()) == []
    assert (tmp_path / "file").read_text() == "precious"


def test_nothing_is_left_after_an_error(xmc: Path, tmp_path: Path) -> None:
    xmc.write_text(XMC + "0 1:1\n")
    with pytest.raises(DataError, match="more rows"):
        convert(xmc, tmp_path / "d")
    with (
        pytest.raises(DataError, match=r"d: can't be written, there is no space left"),
        new_folder(tmp_path / "d"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "d"):  # noqa: PT012
        next(tmp_path.glob(".d.*.partial")).joinpath("some").write_text("text")
        raise KeyboardInterrupt
    with pytest.raises(DataError, match=r"d: can't be written, .*data.txt is not a folder"):
        write_dataset(load(xmc, format="libsvm"), xmc / "d")
    assert list(tmp_path.iterdir()) == [xmc]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device that is always full")
def test_a_full_disk(tmp_path: Path, xmc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = open

    def open_full(path, mode="r", *args, **kwargs):
        full = "+" in mode and str(path).endswith("x_values.f32")
        return real_open("/dev/full" if full else path, mode, *args, **kwargs)

    monkeypatch.setattr(ondisk, "open", open_full, raising=False)
    with pytest.raises(DataError, match="d: can't be written, there is no space left on the disk"):
        convert(xmc, tmp_path / "d")
    assert list(tmp_path.iterdir()) == [xmc]


@pytest.mark.parametrize("name", ARRAYS)
def test_damaged_arrays(xmc: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "d"
    convert(xmc, folder)
    good = (folder / name).read_bytes()
    (folder / name).write_bytes(good[:-1])
    with pytest.raises(DataError, match=f"{name}: is damaged, expected {len(good)} bytes but found {len(good) - 1}"):
        open_dataset(folder)
    (folder / name).write_bytes(good[:4] + bytes([good[4] ^ 1]) + good[5:])  # within the second number or the first
    with pytest.raises(DataError, match=f"{name}: is damaged, its checksum|is damaged: indptr must begin with 0"):
        open_dataset(folder, verify=True)
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name}: can't be read: No such file"):
        open_dataset(folder)


def test_damaged_manifests(xmc: Path, tmp_path: Path) -> None:
    folder, manifest = tmp_path / "d", tmp_path / "d" / "dataset.json"
    convert(xmc, folder)
    good = json.loads(manifest.read_text())
    for text, words in (
        (json.dumps(good)[:-30], "damaged: not valid JSON"),
        ("[]", "does not describe"),
        (json.dumps({**good, "kind": "other"}), "does not describe"),
        (json.dumps({**good, "version": 2}), r"newer dslide \(format 2"),
        (json.dumps({**good, "version": "x"}), "version 'x'"),
        (json.dumps({**good, "rows": 4}), "x_indptr.i64: is damaged"),
        (json.dumps({**good, "rows": "3"}), "is damaged"),
        (json.dumps({**good, "rows": -1}), "is damaged"),
        (json.dumps({**good, "x": {**good["x"], "columns": 6}}), "checksums don't fit"),
        (json.dumps({**good, "x": {**good["x"], "columns": -6}}), "x: columns: expected"),
        (json.dumps({**good, "x": {**good["x"], "columns": "5"}}), "is damaged"),
        (json.dumps({key: value for key, value in good.items() if key != "base"}), "base: expected"),
    ):
        manifest.write_text(text)
        with pytest.raises(DataError, match=words) as caught:
            open_dataset(folder)
        assert str(folder) in str(caught.value)
    manifest.unlink()
    with pytest.raises(DataError, match=r"has no dataset\.json"):
        open_dataset(folder)
    with pytest.raises(DataError, match="no such folder"):
        open_dataset(tmp_path / "nowhere")


def test_an_index_damaged_on_disk_is_refused_when_it_is_read(xmc: Path, tmp_path: Path) -> None:
    convert(xmc, tmp_path / "d")
    (tmp_path / "d" / "x_indices.i32").write_bytes(np.array([1, 400, 2], "<i4").tobytes())
    dataset = open_dataset(tmp_path / "d")
    with pytest.raises(DataError, match="row 0 has an index that is not below 5"):
        dataset.x.take([1, 0])


def test_names_that_are_not_one_line(xmc: Path, tmp_path: Path) -> None:
    for bad in ("two\nlines", "return\r", "\ud800"):
        with pytest.raises(DataError, match="can't be written as"):
            convert(xmc, tmp_path / "d", label_names=["a", "b", "c", bad])
