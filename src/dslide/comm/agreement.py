"""A check before training that all ranks were started with the same options."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from dslide.comm.communicator import Communicator
from dslide.comm.outcomes import ranks_in_words
from dslide.config import Config
from dslide.errors import ConfigError, known_to_all

MAY_DIFFER = ("threads",)  # options that need not be the same on all ranks


def check_agreement(comm: Communicator, config: Config, facts: dict[str, Any]) -> None:
    """Raises ConfigError, the same on every rank, if ranks differ in version, options or other facts."""
    options = {name: value for name, value in config.to_dict().items() if name not in MAY_DIFFER}
    every = comm.gather_objects("agreement", {"the version of dslide": version("dslide"), **facts, **options})
    for what, expected in every[0].items():
        others = [rank for rank, given in enumerate(every) if given.get(what) != expected]
        if others:
            have = "has" if len(others) == 1 else "have"
            raise known_to_all(
                ConfigError(
                    f"ranks don't agree on {what}: rank 0 has {expected!r}, {ranks_in_words(others)} {have} "
                    f"{every[others[0]].get(what)!r}"
                )
            )
