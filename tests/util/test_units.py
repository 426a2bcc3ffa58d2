"""Numbers with units, to text and from text."""

from __future__ import annotations

import pytest

from dslide.errors import ConfigError
from dslide.util import units


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 KB"), (12_345_678_901, "12.3 GB"), (999_600, "1 MB")],
)
def test_format_bytes(size: int, text: str) -> None:
    assert units.format_bytes(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("1.5 GiB", 3 << 29), ("500000", 500_000), ("2k", 2000), ("7 b", 7), ("1TB", 10**12)],
)
def test_parse_bytes(text: str, size: int) -> None:
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "8XB", "1e9", "8 G B", "iB", "8iB"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"--memory: expected a size like 8GB or 500MB, not {text!r}"):
        units.parse_bytes(text, "--memory")


@pytest.mark.parametrize(("text", "seconds"), [("0.2ms", 2e-4), ("50 us", 5e-5), ("1s", 1.0), ("0MS", 0.0)])
def test_parse_seconds(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "ms", "-1ms", "1 min", "1e3us"])
def test_parse_seconds_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"--latency: expected a time like 0\.2ms or 50us, not {text!r}"):
        units.parse_seconds(text, "--latency")


@pytest.mark.parametrize("text", ["1mbit", "1 Mbit/s", "1.0mbitps", "1000kbit"])
def test_parse_rate_takes_every_spelling(text: str) -> None:
    assert units.parse_rate(text) == 10**6


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1:00"), (754.4, "12:34"), (3723, "1:02:03")]
)
def test_clock(seconds: float, text: str) -> None:
    assert units.clock(seconds) == text


def test_counted() -> None:
    assert [units.counted(n, "row") for n in (0, 1, 1024)] == ["0 rows", "1 row", "1,024 rows"]
