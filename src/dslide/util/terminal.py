"""What is printed to terminals: text that can't control them, words for a shell, and their width. The terminal that
shows what a rank prints is its launcher's, not the rank's."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any, TextIO

TERMINAL = "DSLIDE_TERMINAL"  # variable that a launcher sets for its ranks, if its stderr is a terminal


def columns_variable(stream: TextIO) -> dict[str, str]:
    """The variable by which ranks know the columns of a launcher's stream; none if that is no terminal."""
    return {TERMINAL: str(os.get_terminal_size(stream.fileno()).columns or 80)} if stream.isatty() else {}


def launcher_columns() -> int:
    """Columns of the terminal to which the launcher writes what this rank prints; 0 if there is none."""
    return int(os.environ.get(TERMINAL, 0))


def printable(text: str) -> str:
    """Text of a file or a user without characters that control a terminal or turn the direction of writing, which
    appear as escapes like \\x1b."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def _shell_word(text: object) -> str:
    """A word as a shell takes it: quoted if need be."""
    word = str(text)
    escaped = printable(word)
    if escaped == word:
        return shlex.quote(word)
    bytes_ = os.fsencode(word)
    return "$'" + "".join(chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in bytes_) + "'"


def command(*words: object) -> str:
    """A dslide command as one may give it to a shell."""
    return " ".join(["dslide", *map(_shell_word, words)])


def json_line(value: Any) -> str:
    """A value as JSON; characters of its texts that `printable` would change are escaped as JSON does it, so the texts
    stay what they are."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else text.translate(_JSON_ESCAPES)


_CONTROL = [
    *range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
]  # fmt: skip
_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in _CONTROL}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROL}
