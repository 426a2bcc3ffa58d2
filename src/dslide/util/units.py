"""Numbers with units, to text and from text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dslide.errors import ConfigError

LEAST_RATE, MOST_RATE = 10**5, 10**11  # bits per second

_BYTES = {
    f"{letter}{binary}{b}": float(1024 if binary else 1000) ** power
    for power, letter in enumerate(["", "k", "m", "g", "t"])
    for binary in ("", "i")
    for b in ("", "b")
    if letter or not binary
}
_RATES = {"k": 10**3, "m": 10**6, "g": 10**9}
_BITS_PER_SECOND = {f"{letter}bit{end}": size for letter, size in _RATES.items() for end in ("", "/s", "ps")}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def clock(seconds: float) -> str:
    """Like 7.5 s, 12:34 or 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(count: float, noun: str) -> str:
    """Like 1 node or 1,024 nodes."""
    return f"{count:,.0f} {noun}{'s' * (count != 1)}"


def format_bytes(size: int) -> str:
    """Like 12.3 GB; decimal units."""
    value = float(size)
    if abs(value) < 999.5:
        return f"{size} bytes"
    for unit in ("KB", "MB", "GB", "TB"):
        value /= 1000
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value:,.0f} TB"


def three_digits(value: float) -> str:
    """Three digits, or as many as there are before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def format_ms(seconds: float) -> str:
    """The number of milliseconds."""
    return three_digits(1e3 * seconds)


def format_rate(bits: int | None) -> str:
    """Like 100 Mbit/s; None is unlimited."""
    if bits is None:
        return "unlimited"
    letter = "g" if bits >= 10**9 else "m" if bits >= 10**6 else "k"
    return f"{bits / _RATES[letter]:g} {letter.upper() if letter != 'k' else 'k'}bit/s"


def parse_bytes(text: str, option: str = "size") -> int:
    """The bytes that a text like `8GB`, `1.5 GiB` or `500000` stands for."""
    return int(_quantity(text, _BYTES, option, "a size like 8GB or 500MB"))


def parse_rate(text: str, option: str = "rate") -> int | None:
    """Bits per second of a text like `100mbit`, `2.5 Gbit/s` or `unlimited`, which gives None."""
    if text.strip().lower() == "unlimited":
        return None
    rate = round(_quantity(text, _BITS_PER_SECOND, option, "something like 100mbit, 1gbit or unlimited"))
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ConfigError(f"{option}: expected {format_rate(LEAST_RATE)} to {format_rate(MOST_RATE)}, not {text!r}")
    return rate


def parse_seconds(text: str, option: str = "time") -> float:
    """The seconds that a text like `0.2ms`, `50us` or `1s` stands for."""
    return _quantity(text, _SECONDS, option, "a time like 0.2ms or 50us")


def _quantity(text: str, units: Mapping[str, float], option: str, expected: str) -> float:
    """A number followed by one of the units, times that unit; ConfigError if the text is anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z/]*)\s*", text.lower())
    if match is None or match[2] not in units:
        raise ConfigError(f"{option}: expected {expected}, not {text!r}")
    return float(match[1]) * units[match[2]]


METRIC_NAMES = {"p": "P", "r": "R", "ndcg": "nDCG", "psp": "PSP", "coverage": "coverage"}


def metric_name(name: str) -> str:
    """Like P@1, of p_at_1."""
    kind, k = name.split("_at_")
    return f"{METRIC_NAMES[kind]}@{k}"
