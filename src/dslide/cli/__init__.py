"""The `dslide` command. Each subcommand is a module here with `add_arguments(parser)` and `run(arguments)`, which
returns the exit code if it is not 0; only the module of the requested command is imported, so that help and errors
appear at once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from dslide.cli.parser import Parser, parse
from dslide.cli.ranks import start_ranks
from dslide.config import check_name
from dslide.errors import USER_ERROR
from dslide.launch.exit import run_to_end

COMMANDS = {
    "train": "train a network",
    "evaluate": "measure a trained network on data with known labels",
    "predict": "write the best labels of each row",
    "vectors": "write the vectors of words, items or labels",
    "relabel": "remove labels from a model, or rename them",
    "neighbours": "find the words, items or labels nearest to some",
    "serve": "answer requests for predictions over HTTP",
    "export": "write a smaller model, or plain arrays",
    "index": "make what approximate prediction looks labels up in",
    "convert": "turn data into a folder that is memory-mapped",
    "synth": "make random data of a given shape",
    "plan": "predict memory and time of a training",
    "report": "write a page with charts of runs",
    "netlab": "emulate a cluster with a slow network on this machine",
    "doctor": "report what this machine, or several together, have",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code. A user's mistake ends with one sentence on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_to_end(lambda: _run(words))


def _run(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-"):
        check_name(argv[0], COMMANDS, "command")
    top = Parser(prog="dslide", description="Neural networks with very large output layers, trained on CPUs.")
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    requested = argv[0] if argv else ""
    for name, help_text in COMMANDS.items():
        parser = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
        if name == requested:
            module = importlib.import_module(f".{name}", __name__)
            module.add_arguments(parser)
    arguments = parse(top, commands.choices.get(requested, top), argv)
    if arguments.version:
        from importlib.metadata import version

        print(f"dslide {version('dslide')}")
        return 0
    if arguments.command is None:
        top.print_help()
        return USER_ERROR
    code = start_ranks(arguments, argv)
    return int(module.run(arguments) or 0) if code is None else code
