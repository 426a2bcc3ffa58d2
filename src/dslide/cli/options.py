"""Options that commands share: those of Config, made from its fields, and how data is read."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dslide.config import Config, literal_choices
from dslide.errors import ConfigError

if TYPE_CHECKING:
    from dslide.data import Data


def add_fields(parser: argparse.ArgumentParser, title: str, fields_of: type) -> None:
    """An option for each field of a dataclass; only those given will be in the parsed arguments."""
    group = parser.add_argument_group(title)
    hints = typing.get_type_hints(fields_of)
    for field in dataclasses.fields(fields_of):
        hint, name = hints[field.name], "--" + field.name.replace("_", "-")
        default = field.default
        if hint is bool:
            shown = "yes" if default else "no"
        elif isinstance(default, tuple):
            shown = ",".join(map(str, default)) or "empty"
        else:
            shown = str(default)
        help_text = f"{field.metadata['help']} (default: {shown})".replace("%", "%%")
        settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": help_text}
        if hint is bool:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            settings["type"], settings["metavar"] = _converter(hint)
        group.add_argument(name, **settings)


def given(arguments: argparse.Namespace, fields_of: type) -> dict[str, Any]:
    """The values of a dataclass's fields that the user gave."""
    names = [field.name for field in dataclasses.fields(fields_of)]
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Everything in Config, and `--config` for a file of it."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with options, by the names they have here")
    add_fields(parser, "network and training", Config)


def add_reading_options(parser: argparse.ArgumentParser, sizes: bool = True) -> None:
    """How data files are read; `sizes`: with numbers of columns and names of labels, which a model already has."""
    group = parser.add_argument_group("reading data")
    group.add_argument("--format", default="auto", help="format of the data files (default: auto)")
    group.add_argument(
        "--base",
        type=_base,
        default="auto",
        metavar="{auto,0,1}",
        help="number of the first feature and label in text files (default: auto)",
    )
    group.add_argument("--y", metavar="FILE", help="file with the labels, where they are not in DATA (default: none)")
    for what in ("label", "text"):
        group.add_argument(
            f"--{what}-column",
            type=whole_number,
            metavar="N",
            help=f"column of the {what}{'s' * (what == 'label')} in raw text that has others too, counted from 1 "
            "(default: as in training, or two columns, labels and text)",
        )
    if sizes:
        group.add_argument(
            "--features", type=whole_number, metavar="N", help="number of features (default: as the data has)"
        )
        group.add_argument(
            "--labels", type=whole_number, metavar="N", help="number of labels (default: as the data has)"
        )
        group.add_argument(
            "--label-names",
            metavar="FILE",
            help="text file with the name of a label per line (default: none)",
        )


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """How raw text becomes features."""
    from dslide.data import TextOptions

    add_fields(parser, "features of raw text", TextOptions)


def add_token_options(parser: argparse.ArgumentParser) -> None:
    """How a stream of words becomes rows."""
    from dslide.data import TokenOptions

    add_fields(parser, "rows of a stream of words (--format tokens)", TokenOptions)


def reading_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of reading files that are given, of those that the command has."""
    from dslide.training.reading import FILE_OPTIONS, TEXT_OPTIONS, TOKEN_OPTIONS

    names = (*FILE_OPTIONS, *TEXT_OPTIONS, *TOKEN_OPTIONS)
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name, None) is not None}


def add_k_option(parser: argparse.ArgumentParser) -> None:
    """The ranks at which metrics are reported."""
    parser.add_argument("--k", metavar="N,N,...", help="ranks to report (default: 1,3,5; for interactions 1,5,20)")


def parse_ks(text: str | None) -> tuple[int, ...] | None:
    """Ranks like 1,3,5, if any are given."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"k: expected whole numbers like 1,3,5, not {text!r}") from None


def describe(name: str, data: Data) -> str:
    """One line about a data set."""
    from dslide.data import Tokens

    if isinstance(data, Tokens):
        return f"{name}: {data.in_words()}"
    rows = max(len(data.x), 1)
    text = (
        f"{name}: {len(data.x):,} rows, {data.x.columns:,} features, {data.y.columns:,} labels; a row has "
        f"{data.x.nnz / rows:.1f} features and {data.y.nnz / rows:.1f} labels on average"
    )
    no_features, no_labels = data.x.empty_rows(), data.y.empty_rows()
    if data.users is not None and no_features:
        text += f"; {no_features:,} users have no history"
    elif no_features or no_labels:
        text += f"; {no_features:,} rows have no features, {no_labels:,} no labels"
    return text


def _base(text: str) -> str | int:
    if text not in ("auto", "0", "1"):
        raise argparse.ArgumentTypeError(f"expected auto, 0 or 1, not {text!r}")
    return text if text == "auto" else int(text)


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, not {text!r}") from None


def _converter(hint: Any) -> tuple[Callable[[str], Any], str]:
    """How an option's text becomes a value of the type, and what help shows in its place. Ranges are for the
    dataclass to check."""
    if choices := literal_choices(hint):
        return str, "{" + ",".join(choices) + "}"
    if typing.get_origin(hint) is tuple:
        item, _ = _converter(typing.get_args(hint)[0])
        return lambda text: tuple(item(part) for part in text.split(",") if part.strip()), "N,N,..."
    if hint is int:
        return whole_number, "N"
    if hint is float:
        return number, "X"
    return str, "TEXT"
