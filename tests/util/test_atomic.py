"""Atomic files: complete under their name or not there at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dslide.errors import DataError
from dslide.util import atomic
from dslide.util.atomic import AtomicFile, new_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "a") as file:
        file.write(b"con")
        file.flush()
        assert "a" not in names(tmp_path)
        file.write(b"tent")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"content"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_the_old_file_is_left(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(error), AtomicFile(tmp_path / "a", encoding="utf-8") as file:  # noqa: PT012
        file.write("new")
        raise error
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_content_is_on_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure must not leave an empty file under the name."""
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(handle: int) -> None:
        events.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{handle}')).name.split('.')[-1]}")
        fsync(handle)

    def note_replace(path: Path, target: Path) -> Path:
        assert path.read_bytes() == b"x" * 10
        events.append(f"rename to {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_replace)
    (tmp_path / "folder").mkdir()
    with AtomicFile(tmp_path / "folder/a") as file:
        file.write(b"x" * 10)
    assert events == ["fsync partial", "rename to a", "fsync folder"]


def test_a_disk_that_is_full_at_the_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), AtomicFile(tmp_path / "a") as file:
        file.write(b"x")
    with pytest.raises(DataError, match="b: can't be written: No space left"), new_file(tmp_path / "b") as text:
        text.write("x")
    assert names(tmp_path) == []


def test_discarding_and_writers_of_the_same_name(tmp_path: Path) -> None:
    first, second = AtomicFile(tmp_path / "a"), AtomicFile(tmp_path / "a")
    first.file.write(b"1")
    second.file.write(b"2")
    first.commit()
    assert (tmp_path / "a").read_bytes() == b"1"
    second.discard()
    second.discard()
    assert names(tmp_path) == ["a"]


def test_a_new_file_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("nowhere")
    with pytest.raises(DataError, match="a: exists already, give another name or remove it"), new_file(tmp_path / "a"):
        pass
    assert os.readlink(tmp_path / "a") == "nowhere"
