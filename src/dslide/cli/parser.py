"""Command lines: argparse with one-sentence errors, nearest names, and options from TOML files."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NoReturn

from dslide.config import RENAMED, check_name, load_toml
from dslide.errors import ConfigError

NOT_IN_TOML = ("help", "config", "resume")
_START_PROCESSES = ("ranks", "hosts", "elastic")  # a file may come from anyone


class Parser(argparse.ArgumentParser):
    """Options can't be abbreviated, and errors are raised, for `main` to print."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def parse(top: Parser, command: Parser, argv: list[str]) -> argparse.Namespace:
    """The arguments of the command, with those of the TOML file it names as defaults."""
    arguments = _parse_known(top, command, argv)
    if getattr(arguments, "config", None) is not None:
        from_file = _toml_arguments(command, arguments.config)
        # Options of the command line come later, and so they win.
        arguments = _parse_known(top, command, argv[:1] + from_file + argv[1:])
    return arguments


def _parse_known(top: Parser, command: Parser, argv: list[str]) -> argparse.Namespace:
    arguments, unknown = top.parse_known_args(argv)
    for text in unknown:
        name = text.split("=", 1)[0]
        if not name.startswith("-"):
            raise ConfigError(f"unexpected argument {name!r}; see {command.prog} --help")
        renamed = RENAMED.get(name.removeprefix("--").replace("-", "_"), "").replace("_", "-")
        if f"--{renamed}" in command._option_string_actions:
            raise ConfigError(f"there is no option {name}: it is called --{renamed} now")
        near = difflib.get_close_matches(name, command._option_string_actions, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else f"; see {command.prog} --help"
        raise ConfigError(f"there is no option {name}{hint}")
    return arguments


def _toml_arguments(command: Parser, path: str) -> list[str]:
    """The options in a TOML file, as the command line would have them."""
    actions = {a.dest: a for a in command._actions if a.option_strings and a.dest not in NOT_IN_TOML}
    arguments = []
    for key, value in load_toml(path).items():
        name = key.replace("-", "_")
        try:
            check_name(name, actions)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        if name in _START_PROCESSES:
            raise ConfigError(f"{path}: {key}: a file can't start processes; give --{name} on the command line")
        option, is_switch = actions[name].option_strings[0], actions[name].nargs == 0
        try:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        except ValueError:  # Python writes no hexadecimal number of thousands of digits as a decimal one
            raise ConfigError(f"{path}: {key}: the number is too long") from None
        if isinstance(value, dict) or is_switch != isinstance(value, bool):
            expected = "true or false" if is_switch else "a value"
            raise ConfigError(f"{path}: {key}: expected {expected}, not {value!r}")
        if "\0" in text:
            raise ConfigError(f"{path}: {key}: a zero byte can't be in it")
        if not is_switch:
            arguments.append(f"{option}={text}")
        elif value:
            arguments.append(option)
        elif isinstance(actions[name], argparse.BooleanOptionalAction):
            arguments.append(f"--no-{option[2:]}")
    return arguments
