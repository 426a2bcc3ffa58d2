"""What ranks agree on: one error for all out of the errors of some, and, before training, the same options. And how
ranks are named in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dslide.errors import ConfigError, UserError, known_to_all

if TYPE_CHECKING:
    from dslide.comm.communicator import Communicator
    from dslide.config import Config

MAY_DIFFER = ("threads",)  # options that need not be the same on all ranks


def check_agreement(comm: Communicator, config: Config, facts: dict[str, Any]) -> None:
    """Raises ConfigError, the same on every rank, if ranks differ in version, options or other facts."""
    options = {name: value for name, value in config.to_dict().items() if name not in MAY_DIFFER}
    check_alike(comm.gather_objects("agreement", {"the version of dslide": version("dslide"), **facts, **options}))


def check_alike(every: Sequence[Mapping[str, Any]]) -> None:
    """Raises ConfigError if the facts of some rank, each with its name, are not those of rank 0."""
    for what, expected in every[0].items():
        others = [rank for rank, given in enumerate(every) if given.get(what) != expected]
        if others:
            found = f"{ranks_in_words(others)} {'has' if len(others) == 1 else 'have'} {every[others[0]].get(what)!r}"
            raise known_to_all(ConfigError(f"ranks don't agree on {what}: rank 0 has {expected!r}, {found}"))


def error_of_all(outcomes: Sequence[tuple[str, str] | None]) -> UserError | None:
    """The error that all ranks raise if some failed. `outcomes` has each rank's class and message of its error, None if
    it has none. The class is the first one's; the message has those of all that failed with their ranks, without ranks
    if it is the same everywhere."""
    failed = {rank: outcome for rank, outcome in enumerate(outcomes) if outcome is not None}
    if not failed:
        return None
    name, message = next(iter(failed.values()))
    if any(outcome != outcomes[0] for outcome in outcomes):
        said: dict[str, list[int]] = {}  # ranks by message
        for rank, (_, words) in failed.items():
            said.setdefault(words, []).append(rank)
        message = "; ".join(f"{ranks_in_words(ranks)}: {words}" for words, ranks in said.items())
    kinds = {kind.__name__: kind for kind in UserError.__subclasses__()}
    error = known_to_all(kinds.get(name, UserError)(message))
    error.blamed = tuple(failed) if len(failed) < len(outcomes) else ()
    return error


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Like `rank 2` or `ranks 0, 3 and 5`.

    Parameters
    ----------
    ranks : list of int

    Returns
    -------
    str

    Examples
    --------
    >>> from dslide.comm import ranks_in_words
    >>> ranks_in_words([0, 3, 5])
    'ranks 0, 3 and 5'
    """
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
