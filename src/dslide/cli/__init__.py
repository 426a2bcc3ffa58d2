"""The `dslide` command. Each subcommand is a module here with `add_arguments(parser)` and `run(arguments)`;
only the module of the command that was asked for is imported, so that help and errors come at once."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ..config import check_name
from ..errors import Diverged, UserError
from .parser import Parser, parse

COMMANDS = {
    "train": "train a network",
    "evaluate": "measure a trained network on data with known labels",
    "predict": "write the best labels of each row",
    "convert": "turn data into a folder that is read at once",
    "synth": "make random data of a given shape",
    "plan": "say how much memory a network needs",
    "netlab": "emulate a cluster with a slow network on this machine",
    "doctor": "say what this machine offers",
}

FAILED, DIVERGED, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141  # exit codes


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code. A user's mistake ends with one sentence on stderr."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _fail(str(error), FAILED)
    except Diverged as error:
        return _fail(str(error), DIVERGED)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(f"{name}{error.strerror or error}", FAILED)
    except MemoryError:
        return _fail("out of memory; `dslide plan` says what a network needs", FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)


def _run(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-"):
        check_name(argv[0], COMMANDS, "command")
    top = Parser(
        prog="dslide", description="Neural networks with enormous output layers, on plain CPU machines."
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    asked = argv[0] if argv else ""
    for name, help_text in COMMANDS.items():
        parser = commands.add_parser(
            name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."
        )
        if name == asked:
            module = importlib.import_module(f".{name}", __name__)
            module.add_arguments(parser)
    arguments = parse(top, commands.choices.get(asked, top), argv)
    if arguments.version:
        from importlib.metadata import version

        print(f"dslide {version('dslide')}")
        return 0
    if arguments.command is None:
        top.print_help()
        return FAILED
    return int(module.run(arguments))


def _fail(message: str, code: int) -> int:
    print(f"dslide: error: {' '.join(message.split())}", file=sys.stderr)
    return code
