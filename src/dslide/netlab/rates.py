"""Rates of links: how they are written, and the shaping that makes them."""

from __future__ import annotations

import re

from dslide.errors import ConfigError

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}
_LEAST, _MOST = 10**5, 10**11  # bits per second
_BURST_SECONDS = 5e-4  # timers wake late by some 0.1 ms; what was missed meanwhile may be made up for
_BURST_BYTES = 8_000  # and more than one of the packets below
_NODE_QUEUE = 1_000_000  # bytes that wait in a node to be sent
_SWITCH_QUEUE = 256_000  # bytes that wait in the switch for one node, as in small office switches
# TCP may hand over several segments of 1.5 KB as one packet. Each costs the same CPU time, so there should be few of
# them, but a packet that is long on the wire arrives all at once.
_PACKET_SECONDS = 2e-4
_SEGMENT_BYTES, _LEAST_SEGMENTS, _MOST_SEGMENTS = 1_514, 4, 44


def parse_rate(text: str, option: str = "rate") -> int | None:
    """Bits per second of a text like `100mbit`, `2.5 Gbit/s` or `unlimited`, which gives None."""
    if text.strip().lower() == "unlimited":
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg])bit(?:/s|ps)?\s*", text.lower())
    if match is None:
        raise ConfigError(f"{option}: expected something like 100mbit, 1gbit or unlimited, not {text!r}")
    bits = round(float(match[1]) * _UNITS[match[2]])
    if not _LEAST <= bits <= _MOST:
        raise ConfigError(f"{option}: expected {format_rate(_LEAST)} to {format_rate(_MOST)}, not {text!r}")
    return bits


def format_rate(bits: int | None) -> str:
    """Like 100 Mbit/s."""
    if bits is None:
        return "unlimited"
    letter = "g" if bits >= 10**9 else "m" if bits >= 10**6 else "k"
    return f"{bits / _UNITS[letter]:g} {letter.upper() if letter != 'k' else 'k'}bit/s"


def segments(bits: int | None) -> int:
    """How many TCP segments may travel as one packet."""
    rate = _MOST if bits is None else bits
    return min(_MOST_SEGMENTS, max(_LEAST_SEGMENTS, int(rate / 8 * _PACKET_SECONDS / _SEGMENT_BYTES)))


def shaping(bits: int | None, switch: bool) -> list[str]:
    """The queueing discipline of one end of a link, as `tc` takes it; `switch`: of the switch's end.

    Without a limit it is the same with a rate that is never reached, because it counts bytes too: as they would be on
    a wire, with the headers of every segment, where interfaces count those of a packet once.
    """
    rate = _MOST if bits is None else bits
    burst = _BURST_BYTES + round(rate / 8 * _BURST_SECONDS)
    queue = burst + (_SWITCH_QUEUE if switch else _NODE_QUEUE)
    return ["tbf", "rate", f"{rate}bit", "burst", f"{burst}b", "limit", f"{queue}b"]
