"""The errors a user can meet. Each message is one sentence that names what is wrong and what was expected."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what the user gave us (file, option, value); the CLI prints it and exits with code 2."""


class DataError(UserError, ValueError):
    """Input data that can't be used; the message names file, line and value."""


class ConfigError(UserError, ValueError):
    """An option that is unknown, of the wrong type, or out of range."""


class ModelError(UserError):
    """A model folder that is missing, incomplete, damaged or from a newer version."""


class MemoryNeeded(UserError):
    """A run that would need more memory than there is."""


class Diverged(ArithmeticError):
    """Training produced a number that is not finite; the message names layer, step and learning rate."""
