"""Streams of words, as commands read them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslide.cli.options import add_fields, given
from dslide.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dslide.checkpoint.saved_model import SavedModel
    from dslide.data import TokenOptions, Tokens


def add_token_options(parser: argparse.ArgumentParser) -> None:
    """How a stream of words becomes rows."""
    from dslide.data import TokenOptions

    add_fields(parser, "rows of a stream of words (--format tokens)", TokenOptions)


def is_stream(options: dict[str, Any], saved: SavedModel | None) -> bool:
    """Whether data is a stream of words: because that is said, or because nothing is and the model learned from one."""
    return options["format"] == "tokens" or (
        options["format"] == "auto" and saved is not None and saved.tokens is not None
    )


def token_options(arguments: argparse.Namespace, saved: SavedModel | None, stream: bool) -> TokenOptions:
    """The options to train with; ConfigError if some are given that DATA has no use for, or that have to stay as they
    were when the run was begun."""
    from dslide.data import TokenOptions

    options = given(arguments, TokenOptions)
    if options and not stream:
        raise ConfigError(
            f"{next(iter(options))}: {arguments.data} is not read as a stream of words, so this has no use; "
            "--format tokens reads it as one"
        )
    if saved is None or not stream:
        return TokenOptions(**options)
    begun = options_of(saved, arguments.data)
    for name, value in options.items():
        if value != getattr(begun, name):
            raise ConfigError(f"{name}: the run was begun with {getattr(begun, name)!r}, which can't change")
    return begun


def options_of(saved: SavedModel, path: str | Path) -> TokenOptions:
    """The options that a model was trained with; DataError if that was no stream of words, so that it can't read the
    file as one."""
    from dslide.data import TokenOptions

    if saved.tokens is None:
        raise DataError(f"{path}: is to be read as a stream of words, but the model was not trained on one")
    return TokenOptions(**saved.tokens)


def load_stream(
    path: str | Path, reading: dict[str, Any], options: TokenOptions, names: Sequence[str] | None = None
) -> Tokens:
    """Reads a stream of words; `reading` are the reading options, few of which it has a use for."""
    from dslide.data import load_tokens

    unused = [name for name in reading if name not in ("format", "base")]
    if reading["base"] != "auto":
        unused.append("base")
    if unused:
        raise ConfigError(f"{unused[0]}: has no use with a stream of words")
    return load_tokens(path, options, names)
