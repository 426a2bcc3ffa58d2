"""Directives that write the reference from the sources: `option` from the fields of Config and its like, `command` from
the parsers of the command line, `messages` from errors."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import typing
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from messages import messages_of
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from dslide.cli import COMMANDS
from dslide.cli.parser import Parser
from dslide.config import Config, literal_choices
from dslide.data import TextOptions, TokenOptions

OPTIONS = {
    field.name: (kind, field)
    for kind in (Config, TextOptions, TokenOptions)
    for field in dataclasses.fields(kind)
}  # fmt: skip


def type_in_words(hint: Any, field: dataclasses.Field[Any]) -> str:
    """The values that an option takes."""
    if choices := literal_choices(hint):
        return " or ".join(f"`{choice}`" for choice in choices)
    if hint is bool:
        return "yes or no"
    low, high = field.metadata["low"], field.metadata["high"]
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if item is str:
            return "list of texts"
        return f"list of {'whole numbers' if item is int else 'numbers'}, each {bounds(low, high)}".removesuffix(
            ", each "
        )
    return f"{'whole number' if hint is int else 'number'}, {bounds(low, high)}".removesuffix(", ")


def bounds(low: float, high: float) -> str:
    """A range; -1 stands for an option that is left open."""
    least = 0 if low == -1 else low
    if math.isinf(least) and math.isinf(high):
        return ""
    text = f"at least {least:g}" if math.isinf(high) or high >= 2**62 else f"{least:g} to {figure(high)}"
    return text + (" or -1" if low == -1 else "")


def figure(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


class Option(SphinxDirective):
    """`{option} NAME` with advice as its content: what the option is, as Config says, and when to change it."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        kind, field = OPTIONS[name]
        hint = typing.get_type_hints(kind)[name]
        default = field.default
        if isinstance(default, bool):
            default = "yes" if default else "no"
        elif isinstance(default, tuple):
            default = ",".join(map(str, default)) or "empty"
        flag = f"--{name.replace('_', '-')}"
        text = f"`{flag}`, {type_in_words(hint, field)}; default `{default}`\n\n{sentence(field.metadata['help'])}\n"
        definition = nodes.definition_list_item(
            "",
            nodes.term("", "", nodes.literal(text=name), ids=[f"option-{name.replace('_', '-')}"]),
            nodes.definition("", *self.parse_text_to_nodes(text), *self.parse_content_to_nodes()),
        )
        return [nodes.definition_list("", definition, classes=["option"])]


def sentence(text: str) -> str:
    """A help text as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


class Commands(SphinxDirective):
    """`{commands}`: every command of dslide with its arguments, as its parser has them."""

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        shown: dict[tuple[str, ...], str] = {}  # groups of options, and the command that has them already
        for name, help_text in COMMANDS.items():
            parser = Parser(prog=f"dslide {name}")
            importlib.import_module(f"dslide.cli.{name}").add_arguments(parser)
            lines += ["", f"## dslide {name}", "", sentence(help_text), *described(parser, shown)]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def described(parser: argparse.ArgumentParser, shown: dict[tuple[str, ...], str]) -> Iterator[str]:
    """The usage and the arguments of a command, and those of its actions."""
    arguments = [action for action in parser._actions if action.dest != "help"]
    actions = [action for action in arguments if isinstance(action, argparse._SubParsersAction)]
    positional = [str(action.metavar) for action in arguments if not action.option_strings]
    yield from (
        "",
        "```text",
        " ".join([parser.prog, *["[OPTIONS]"] * (len(arguments) > len(positional)), *positional]),
        "```",
        "",
    )
    for group in parser._action_groups:
        members = [action for action in group._group_actions if action in arguments and action not in actions]
        if not members:
            continue
        title = sentence(group.title or "").removesuffix(".")
        items = tuple(line for action in members for line in described_argument(action))
        if all(action.dest in OPTIONS for action in members):
            yield from (f"**{title}**: {len(members)} [options](options.md), with hyphens for underscores.", "")
        elif items in shown:
            yield from (f"**{title}**: those of [{shown[items]}](#{shown[items].replace(' ', '-')}).", "")
        else:
            yield from (
                "",
                *([f"**{title}**", ""] if group.title not in ("positional arguments", "options") else []),
                *items,
            )
            shown[items] = parser.prog
    for action in actions:
        for choice, help_of in zip(action.choices.values(), action._choices_actions, strict=True):
            yield from (f"### {choice.prog}", "", sentence(help_of.help or ""), *described(choice, shown))


def described_argument(action: argparse.Action) -> Iterator[str]:
    """An entry of a definition list."""
    flags = list(action.option_strings) or [str(action.metavar)]
    if action.option_strings and action.nargs != 0:
        flags[-1] += f" {action.metavar or action.dest.upper()}"
    text = (action.help or "").replace("%%", "%")
    yield from (
        ", ".join(f"`{flag}`" for flag in flags),
        f": {sentence(text).removesuffix(').') + (')' if text.endswith(')') else '')}",
        "",
    )


class Messages(SphinxDirective):
    """`{messages} FAMILY`: the error messages of a family, as the sources have them."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        texts = messages_of(self.arguments[0])
        items = (nodes.list_item("", nodes.paragraph("", "", nodes.literal(text=text))) for text in texts)
        summary = f"<details><summary>All {len(texts)} messages</summary>"
        begin, end = (nodes.raw("", text, format="html") for text in (summary, "</details>"))
        return [begin, nodes.bullet_list("", *items), end]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("messages", Messages)
    app.add_directive("option-of", Option)
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
