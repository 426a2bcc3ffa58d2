"""Files that were verified before are not read again until they change."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dslide import Config, Network
from dslide.checkpoint import reshard, verified
from dslide.checkpoint.saved_model import SavedModel, load_model, save_model
from dslide.errors import ModelError

CONFIG = Config(hidden=(4,), output="full", prior_labels=0)
WEIGHTS = "weights.safetensors"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = Network(CONFIG, 6, 20)
    save_model(tmp_path / "m", SavedModel(network.config, 6, 20, network.state()), optimizer=False)
    return tmp_path / "m"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the content was checked each time that arrays were opened."""
    seen: list[bool] = []
    check = reshard.check_file

    def noted(path: Path, entry: dict[str, int], *, content: bool) -> None:
        seen.append(content)
        check(path, entry, content=content)

    monkeypatch.setattr(reshard, "check_file", noted)
    return seen


def test_content_is_checked_once_and_again_after_a_change(
    model: Path, reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(model, verify=True)
    load_model(model, verify=True)
    assert reads == [True, True]  # the file is too new for its times to tell
    monkeypatch.setattr(verified, "SETTLED", -1.0)
    for _ in range(3):
        load_model(model, verify=True)
    assert reads[2:] == [True, False, False]
    before = os.stat(model / WEIGHTS)
    content = np.fromfile(model / WEIGHTS, np.uint8)
    content[-5] ^= 1
    content.tofile(model / WEIGHTS)
    os.utime(model / WEIGHTS, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a forger would
    with pytest.raises(ModelError, match="checksum"):
        load_model(model, verify=True)
    with pytest.raises(ModelError, match="checksum"):  # what failed is not noted
        load_model(model, verify=True)


def test_lists_that_are_damaged_or_cannot_be_written_are_no_error(
    model: Path, reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "SETTLED", -1.0)
    place = Path(os.environ["XDG_CACHE_HOME"], "dslide", "verified.json")
    for content in (b"[]", b"{", b'{"x": 1}'):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        load_model(model, verify=True)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    load_model(model, verify=True)
    assert reads == [True] * 4
