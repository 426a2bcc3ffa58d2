"""Which ranks of a job see the same disk under a path."""

from __future__ import annotations

import secrets
from pathlib import Path

from .comm import Communicator
from .errors import ModelError


def leads(folder: Path, comm: Communicator) -> bool:
    """Whether this rank is the lowest of those that share its disk."""
    name = secrets.token_hex(16)
    token = folder / name

    def leave() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            token.touch()
        except OSError as error:
            raise ModelError(f"{folder}: can't be written to: {error.strerror or error}") from None

    comm.together("folder to save in", leave)
    names = comm.gather_objects("files left in the folder to save in", name)
    seen = [rank for rank, other in enumerate(names) if (folder / other).exists()]
    comm.barrier("files found in the folder to save in")  # nobody removes them before
    token.unlink(missing_ok=True)
    return comm.rank == min(seen, default=comm.rank)
