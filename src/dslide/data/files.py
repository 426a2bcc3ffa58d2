"""Reading files: decompression, blocks of whole lines."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from dslide.errors import DataError, MemoryNeeded
from dslide.util.memory import available_bytes, rss_bytes

BLOCK_BYTES = 1 << 23  # text read at a time; larger blocks are mapped anew each time, which is slower
MAX_LINE_BYTES = 1 << 28
XZ_MEMORY = 1 << 28  # bytes: xz -9 takes 65 MB
CHECK_BYTES = 1 << 27  # read between checks of free memory
LEAST_FREE = 1 / 8  # reading stops if free memory is below this share of what the process holds
BLANKS = (b" ", b"\t", b"\n", b"\r", b"\v", b"\f")  # between words

_PACKED_BYTES = 1 << 20  # of xz, read at a time
_GZIP, _XZ, _BOM = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\xef\xbb\xbf"


def is_compressed(path: str | Path) -> bool:
    """Whether a file starts with the magic bytes of gzip or xz."""
    with open_file(path) as file:
        return file.read(6).startswith((_GZIP, _XZ))


def open_file(path: str | Path) -> IO[bytes]:
    """Opens a regular file that is not empty, without decompression."""
    try:
        mode = os.stat(path).st_mode  # before opening: opening a pipe may block forever
        if not stat.S_ISREG(mode):
            kind = "is a folder, expected a file" if stat.S_ISDIR(mode) else "is not a regular file"
            raise DataError(f"{path}: {kind}")
        file = open(path, "rb")  # noqa: SIM115 (the caller closes it)
        if os.fstat(file.fileno()).st_size == 0:
            file.close()
            raise DataError(f"{path}: the file is empty")
        return file
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except DataError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise DataError(f"{path}: can't be read: {getattr(error, 'strerror', error)}") from None


def line_blocks(path: str | Path, block_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines of a plain, gzip or xz file, each with the number of its first line (from 1). Every block
    ends with a newline, also the last one; a byte order mark is dropped."""
    for line, block in _whole_pieces(path, block_bytes or BLOCK_BYTES, "line", (b"\n",)):
        yield line, block if block.endswith(b"\n") else block + b"\n"


def word_blocks(path: str | Path, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole words, each with the number of its first line. Lines may be of any length."""
    return _whole_pieces(path, block_bytes, "word", BLANKS)


def _whole_pieces(path: str | Path, block_bytes: int, what: str, ends: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Blocks of a file that end with one of `ends`, each with the number of its first line."""
    line = 1
    rest: list[bytes] = []  # joined once: a long line may span thousands of blocks
    size = 0  # of the rest
    for data in _blocks(path, block_bytes):
        end = min((at for at in map(data.find, ends) if at >= 0), default=-1)
        if size + (end if end >= 0 else len(data)) > MAX_LINE_BYTES:
            raise DataError(f"{path}, line {line}: the {what} is longer than {MAX_LINE_BYTES >> 20} MB")
        if end < 0:
            rest.append(data)
            size += len(data)
            continue
        cut = max(map(data.rfind, ends)) + 1
        block = b"".join((*rest, memoryview(data)[:cut]))
        yield line, block
        line += block.count(b"\n")
        rest, size = [data[cut:]], len(data) - cut
    if size:
        yield line, b"".join(rest)


def _blocks(path: str | Path, block_bytes: int) -> Iterator[bytes]:
    """The bytes of a plain, gzip or xz file without its byte order mark; DataError if it is empty."""
    begin, read = True, 0
    with _read_only(open_file(path)) as file:
        for data in _unpacked(path, file, block_bytes):
            read += len(data)
            if read >= CHECK_BYTES:  # most readers keep all they read, and a small file can decompress to a lot
                read = 0
                if available_bytes() < rss_bytes() * LEAST_FREE:
                    raise MemoryNeeded(f"{path}: the data needs more memory than there is")
            if begin:
                data = data.removeprefix(_BOM)
            if data:
                begin = False
                yield data
    if begin:
        raise DataError(f"{path}: the file is empty")


@contextlib.contextmanager
def _read_only(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The file, closed afterwards. Nothing is lost if that fails, since nothing was written."""
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            file.close()


def _unpacked(path: str | Path, raw: IO[bytes], size: int) -> Iterator[bytes]:
    """The bytes of a plain, gzip or xz file, at most `size` at a time."""
    magic = raw.read(6)
    raw.seek(0)
    try:
        if magic.startswith(_XZ):
            yield from _unpacked_xz(raw, size)
        else:
            file = gzip.GzipFile(fileobj=raw) if magic.startswith(_GZIP) else raw
            while data := file.read(size):
                yield data
    except EOFError:
        raise DataError(f"{path}: the file is cut off, its compressed data is incomplete") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        if "limit" in str(error):
            most = f"{XZ_MEMORY >> 20} MB"
            raise DataError(f"{path}: takes more than {most} to decompress, compress it with xz -9 or less") from None
        raise DataError(f"{path}: the compressed data is damaged: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from None


def _unpacked_xz(raw: IO[bytes], size: int) -> Iterator[bytes]:
    """Like lzma.LZMAFile, but with a bound on the memory that a file's header can request."""
    packed = raw.read(_PACKED_BYTES)
    while packed:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY)
        while not stream.eof:
            if stream.needs_input and not packed and not (packed := raw.read(_PACKED_BYTES)):
                raise EOFError
            piece, packed = stream.decompress(packed, size), b""
            if piece:
                yield piece
        packed = stream.unused_data.lstrip(b"\0")  # zeros may pad the end of a stream
        while not packed and (data := raw.read(_PACKED_BYTES)):
            packed = data.lstrip(b"\0")


def decode_lines(path: str | Path, first_line: int, block: bytes) -> list[str]:
    """The lines of a block from `line_blocks` as text, without their ends."""
    return [line.removesuffix("\r") for line in decode(path, first_line, block).split("\n")[:-1]]


def decode(path: str | Path, first_line: int, block: bytes) -> str:
    """A block of a file as text; DataError, with the line, if it is not UTF-8."""
    try:
        return block.decode()
    except UnicodeDecodeError as error:
        line = first_line + block.count(b"\n", 0, error.start)
        found = " ".join(f"0x{byte:02x}" for byte in block[error.start : error.end])
        convert = f"if it is {_encoding(block)}, iconv -f {_encoding(block)} -t UTF-8 converts it"
        raise DataError(f"{path}, line {line}: not UTF-8 text, found {found}; {convert}") from None


def _encoding(block: bytes) -> str:
    """What text that is not UTF-8 most likely is, by the name that iconv has for it."""
    if block.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    some = block[:4096]
    if some.count(b"\0") > len(some) // 4:
        return "UTF-16BE" if some[:1] == b"\0" else "UTF-16LE"
    return "CP1252"


def source_of(paths: Sequence[str | Path]) -> str:
    """Where rows come from, for messages."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def read_names(path: str | Path) -> list[str]:
    """A text file of names, one per line.

    Parameters
    ----------
    path : path
        File of text, plain, gzip or xz.

    Returns
    -------
    list of str

    Raises
    ------
    DataError
        The file can't be read.
    """
    return [name for first, block in line_blocks(path) for name in decode_lines(path, first, block)]


def write_names(path: Path, names: Sequence[str]) -> None:
    """The opposite of `read_names`."""
    for i, name in enumerate(names):
        if "\n" in name or name.endswith("\r"):
            raise DataError(f"name {i} can't be written as one line of text: {name!r}")
    try:
        path.write_bytes("".join(f"{name}\n" for name in names).encode())
    except UnicodeEncodeError as error:
        raise DataError(f"a name can't be written as UTF-8 text: {error.object[error.start : error.end]!r}") from None


def quoted(text: bytes) -> str:
    """Bytes of a file for a message: quoted, truncated, with unprintable bytes escaped."""
    shown = repr(text[:60].decode(errors="backslashreplace"))
    return f"{shown}..." if len(text) > 60 else shown
