"""Options that commands share: those of Config, made from its fields, and how data is read."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dslide.config import Config, literal_choices
from dslide.errors import UserError
from dslide.util.terminal import printable

if TYPE_CHECKING:
    from dslide.data import Data


def add_fields(parser: argparse.ArgumentParser, title: str, fields_of: type) -> None:
    """An option for each field of a dataclass; only those given will be in the parsed arguments."""
    group = parser.add_argument_group(title)
    hints = typing.get_type_hints(fields_of)
    for field in dataclasses.fields(fields_of):
        hint, default = hints[field.name], field.default
        settings: dict[str, Any] = {"default": argparse.SUPPRESS}
        if hint is bool:
            settings["action"], default = argparse.BooleanOptionalAction, "yes" if default else "no"
        else:
            settings["type"], settings["metavar"] = _converter(hint)
        if isinstance(default, tuple):
            default = ",".join(map(str, default)) or "empty"
        settings["help"] = f"{field.metadata['help']} (default: {default})".replace("%", "%%")
        group.add_argument("--" + field.name.replace("_", "-"), **settings)


def given(arguments: argparse.Namespace, fields_of: type) -> dict[str, Any]:
    """The values of a dataclass's fields that the user gave."""
    names = [field.name for field in dataclasses.fields(fields_of)]
    return {name: getattr(arguments, name) for name in names if name in arguments}


def add_option(
    parser: argparse._ActionsContainer, flag: str, help_text: str, default: int | str, metavar: str | None = "N",
    type: Callable[[str], Any] | None = None,
) -> None:  # fmt: skip
    """An option, by default of a whole number. A text as `default` says what holds without the option, which is None
    then."""
    parser.add_argument(
        flag, help=f"{help_text} (default: {default})", default=None if isinstance(default, str) else default,
        metavar=metavar, type=type or (whole_number if metavar == "N" else str),
    )  # fmt: skip


def add_json_option(parser: argparse._ActionsContainer, help_text: str) -> None:
    """Output for programs."""
    add_switch(parser, "--json", help_text)


def add_switch(parser: argparse._ActionsContainer, flag: str, help_text: str) -> None:
    """An option without a value."""
    parser.add_argument(flag, action="store_true", help=f"{help_text} (default: no)")


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Everything in Config, and `--config` for a file of it."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with options, by the same names as here")
    add_fields(parser, "network and training", Config)


def add_reading_options(
    parser: argparse.ArgumentParser, sizes: bool = True, text: bool = False, tokens: bool = False
) -> None:
    """How data files are read. `sizes`: with numbers of columns and names of labels, which a model already has; `text`:
    with how raw text becomes features; `tokens`: with how a stream of words becomes rows."""
    group = parser.add_argument_group("reading data")
    group.add_argument("--format", default="auto", help="format of the data files (default: auto)")
    group.add_argument(
        "--base", type=_base, default="auto", metavar="{auto,0,1}",
        help="number of the first feature and label in text files (default: auto)",
    )  # fmt: skip
    add_option(group, "--y", "file with the labels, if DATA has none", "Y.npz beside X.npz", "FILE")
    dense = "file with dense features of the rows, a matrix that numpy.save wrote, beside those in DATA"
    add_option(group, "--embeddings", dense, "none", "FILE")
    add_option(
        group, "--separator", "what is between columns: a text, or tab, comma, semicolon, blank", "guessed", "TEXT"
    )
    group.add_argument(
        "--header", action=argparse.BooleanOptionalAction, default=None,
        help="whether the first line has the names of columns (default: guessed)",
    )  # fmt: skip
    add_option(group, "--label-separator", "separator between labels, like ';'", "blanks", "TEXT")
    for flag, what, usual in (
        ("--label-column", "labels", "named labels or the like, or 1"),
        (
            "--text-column",
            "text, or several as title:3,abstract (words of the first count three times)",
            "named text or the like, or 2",
        ),
        ("--user-column", "users of interactions", "named user_id or the like, or 1"),
        ("--item-column", "items of interactions", "named item_id or the like, or 2"),
        ("--weight-column", "weights of interactions", "none"),
        ("--time-column", "times of interactions", "named timestamp or the like"),
    ):
        add_option(group, flag, f"column of the {what}: a name in the header, or a number from 1", usual, "COLUMN")
    if sizes:
        add_option(group, "--features", "number of features", "that of the data")
        add_option(group, "--labels", "number of labels", "that of the data")
        add_option(group, "--label-names", "text file with one label name per line", "none", "FILE")
    if text or tokens:
        from dslide.data import TextOptions, TokenOptions

        if text:
            add_fields(parser, "features of raw text", TextOptions)
        if tokens:
            add_fields(parser, "rows of a stream of words (--format tokens)", TokenOptions)


def reading_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of reading files that are given, of those that the command has."""
    from dslide.training.reading import READING_OPTIONS

    return {name: getattr(arguments, name) for name in READING_OPTIONS if getattr(arguments, name, None) is not None}


def add_k_option(parser: argparse.ArgumentParser) -> None:
    """The ranks at which metrics are reported."""
    add_option(parser, "--k", "values of k to report metrics for", "1,3,5; for interactions 1,5,20", "N,N,...", _ranks)


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:  # not a ConfigError, a ValueError that argparse would reword
        raise UserError(f"k: expected whole numbers like 1,3,5, not {text!r}") from None


def describe(name: str, data: Data) -> str:
    """One line about a data set."""
    from dslide.data import Tokens, sparse_part

    name = printable(name)
    if isinstance(data, Tokens):
        return f"{name}: {data.in_words()}"
    x, y, dense = sparse_part(data.x), data.y, data.dense_features
    features, labels = data.values_per_row
    which = f" ({dense:,} dense)" if 0 < dense < data.features else " (dense)" * (dense > 0)
    each = "" if dense == data.features else f"{features:.1f}{' sparse' * (dense > 0)} features and "
    text = (
        f"{name}: {len(data):,} rows, {data.features:,} features{which}, {data.labels:,} labels; a row has "
        f"{each}{labels:.1f} labels on average"
    )
    no_features, no_labels = 0 if dense else x.empty_rows(), y.empty_rows()
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


def _numbers(text: str, item: Callable[[str], Any]) -> tuple[Any, ...]:
    return () if text.strip() == "none" else tuple(item(part) for part in text.split(",") if part.strip())


def _converter(hint: Any) -> tuple[Callable[[str], Any], str]:
    """How an option's text becomes a value of the type, and what help shows in its place. Ranges are for the
    dataclass to check."""
    if choices := literal_choices(hint):
        return str, "{" + ",".join(choices) + "}"
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is str:
        return str, "FILE"
    if typing.get_origin(hint) is tuple:
        item, _ = _converter(typing.get_args(hint)[0])
        return lambda text: _numbers(text, item), "N,N,..."
    if hint is int:
        return whole_number, "N"
    if hint is float:
        return number, "X"
    return str, "TEXT"
