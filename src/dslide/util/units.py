"""Numbers with their units, as text."""

from __future__ import annotations


def clock(seconds: float) -> str:
    """Like 7.5 s, 12:34 or 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_bytes(size: int) -> str:
    """Like 12.3 GB; decimal units."""
    value, unit = float(size), "bytes"
    for larger in ("KB", "MB", "GB", "TB"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, larger
    if unit == "bytes":
        return f"{size} bytes"
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"


def counted(count: float, noun: str) -> str:
    """Like 1 node or 1,024 nodes."""
    return f"{count:,.0f} {noun}{'s' * (count != 1)}"
