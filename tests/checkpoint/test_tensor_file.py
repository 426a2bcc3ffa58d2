"""The safetensors format: the same files as the safetensors package, and no way to crash the reader."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.bf16 import nearest

from dslide.checkpoint.tensor_file import DTYPES, open_tensors, stream_tensors
from dslide.errors import ModelError

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def arrays_of(types: list[str]) -> st.SearchStrategy[dict[str, np.ndarray]]:
    array = st.sampled_from(types).flatmap(
        lambda name: hnp.arrays(DTYPES[name], hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    )
    return st.dictionaries(st.text(max_size=8).filter(lambda s: s != "__metadata__"), array, max_size=5)


arrays_of_any_kind = arrays_of(sorted(DTYPES))
arrays_numpy_knows = arrays_of(sorted(set(DTYPES) - {"BF16"}))


def write_tensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with open(path, "wb") as file:
        stream_tensors(file.write, arrays)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert set(a) == set(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].shape == b[name].shape
        assert a[name].tobytes() == b[name].tobytes()  # NaN included


@given(arrays_of_any_kind)
@in_one_folder
def test_arrays_come_back(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, arrays)
    same(open_tensors(path).arrays, arrays)


@given(arrays_numpy_knows)
@in_one_folder
def test_the_safetensors_package_reads_ours(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    package = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "a.safetensors"
    write_tensors(path, arrays)
    same(package.load_file(path), arrays)


@given(arrays_numpy_knows)
@in_one_folder
def test_we_read_files_of_the_safetensors_package(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    package = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "a.safetensors"
    package.save_file(arrays, path, metadata={"kind": "test"})
    same(open_tensors(path).arrays, arrays)


def test_the_safetensors_package_reads_our_bf16(tmp_path: Path) -> None:
    torch, package = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    path = tmp_path / "a.safetensors"
    numbers = np.float32([[0.0, 1.5, -0.0078125], [3e38, 1e-30, -2.0]])
    write_tensors(path, {"a": nearest(numbers), "b": np.ones(3, np.float32)})
    loaded = package.load_file(path)["a"]
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded, torch.from_numpy(numbers).to(torch.bfloat16))


def test_what_is_read_is_read_only_aligned_and_mapped(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": np.ones(3, np.uint8), "b": np.ones(3, np.float32), "c": np.ones(5)})
    for array in open_tensors(path).arrays.values():
        assert not array.flags.writeable
        assert not array.flags.owndata
        assert array.flags.aligned
    header_length = struct.unpack("<Q", path.read_bytes()[:8])[0]
    assert (8 + header_length) % 64 == 0


def test_arrays_that_are_not_contiguous(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    write_tensors(path, {"t": array.T, "s": array[::2, 1::2]})
    same(open_tensors(path).arrays, {"t": array.T.copy(), "s": array[::2, 1::2].copy()})


def test_big_arrays_are_written_in_blocks() -> None:
    sizes: list[int] = []
    array = np.zeros((5, 1 << 21), np.float32)
    stream_tensors(lambda piece: sizes.append(len(piece)), {"a": array})
    assert max(sizes) <= 1 << 24
    assert sum(sizes[1:]) == array.nbytes


def test_types_without_a_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="x: arrays of type complex128"):
        write_tensors(tmp_path / "a", {"x": np.ones(2, np.complex128)})


def file_with(path: Path, header: Any, data: bytes = b"\0" * 16) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_metadata_of_other_writers_is_skipped(tmp_path: Path) -> None:
    path = file_with(tmp_path / "a", {"__metadata__": {"kind": "test"}, "a": entry()})
    same(open_tensors(path).arrays, {"a": np.zeros(4, np.float32)})


def entry(begin: int = 0, end: int = 16, dtype: Any = "F32", shape: Any = (4,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": 1, "a": 2}', "not valid JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON|lacks"),
        (b"\xff\xfe", "not valid JSON"),
        ([], "not a JSON object"),
        ({"a": 5}, "'a' lacks one of dtype"),
        ({"a": {"dtype": "F32", "shape": [4]}}, "'a' lacks one of dtype"),
        ({"a": entry(dtype="F31")}, "has the type 'F31'; known are BOOL"),
        ({"a": entry(dtype=["F32"])}, "has the type"),
        ({"a": entry(shape=[-4])}, "no valid shape"),
        ({"a": entry(shape=[True] * 4)}, "no valid shape"),
        ({"a": entry(shape=[4.0])}, "no valid shape"),
        ({"a": entry(shape=4)}, "no valid shape"),
        ({"a": entry(shape=[1] * 40)}, "no valid shape"),
        ({"a": entry(shape=[2**63])}, "no valid shape"),
        ({"a": entry(shape=[5])}, "can't be 16 bytes of F32"),
        ({"a": entry(shape=[2**32, 2**32])}, "can't be 16 bytes"),
        ({"a": entry(0, 64, shape=[16])}, "ends after the end of the file"),
        ({"a": entry(), "b": entry()}, "'b' begins at byte 0, expected 16"),
        ({"a": entry(4, 16, shape=[3])}, "'a' begins at byte 4, expected 0"),
        ({"a": entry(0, 8, shape=[2])}, "8 bytes after the last array"),
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, header: Any, message: str) -> None:
    path = file_with(tmp_path / "evil.safetensors", header)
    with pytest.raises(ModelError, match=message) as caught:
        open_tensors(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 2**63), struct.pack("<Q", 3) + b"{}"])
def test_files_too_short_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"too few|a header of \d+ bytes in a file"):
        open_tensors(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.safetensors: can't be read: No such file"):
        open_tensors(tmp_path / "none.safetensors")


@given(st.data())
@in_one_folder
def test_damage_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes changed, inserted or cut anywhere: an error sentence or arrays, never anything else."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.int64)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] = data.draw(st.integers(0, 255))
        else:
            content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
        if not content:
            break
    path.write_bytes(content)
    try:
        arrays = open_tensors(path).arrays
    except ModelError:
        return
    assert sum(a.nbytes for a in arrays.values()) <= len(content)
