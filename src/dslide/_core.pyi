"""Types of the native core."""

from typing import Any

from numpy import float32, int32, int64
from numpy.typing import NDArray

def set_threads(threads: int) -> None: ...
def threads() -> int: ...
def parse_rows(
    text: bytes,
    features: tuple[int, int],
    labels: tuple[int, int],
    comments: bool,
    chunk_bytes: int = ...,
    threads: int = ...,
) -> dict[str, Any]: ...
def gather_rows(
    indptr: NDArray[int64],
    indices: NDArray[int32],
    values: NDArray[float32],
    columns: int,
    ids: NDArray[int64],
) -> tuple[NDArray[int64], NDArray[int32], NDArray[float32]]: ...
