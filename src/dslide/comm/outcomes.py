"""One error for all ranks out of the errors of some, and how ranks are named in messages."""

from __future__ import annotations

from collections.abc import Sequence

from dslide.errors import UserError, known_to_all


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
    """Like `rank 2` or `ranks 0, 3 and 5`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
