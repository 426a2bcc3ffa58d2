"""Training on a Ray cluster: ranks are actors of a placement group, without MPI. Needs the extra `ray`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ImportError("dslide.ray needs Ray: pip install 'dslide[ray]'") from error

from dslide import api
from dslide.comm import Communicator, solo
from dslide.comm.sockets import Address, Listener
from dslide.config import Config
from dslide.errors import CommError, ConfigError, Diverged, Terminated, UserError
from dslide.training.reading import Source

__all__ = ["RayResult", "train"]


@dataclass(frozen=True)
class RayResult:
    """The outcome of a run on a Ray cluster; the network stays in its folder, for `dslide.open_model`."""

    folder: Path
    summary: dict[str, Any]  #: the content of RUN/summary.json
    metrics: dict[str, float]  #: on the test data, as `dslide.evaluate` returns them; empty if nothing was tested


def train(
    data: Source, config: Config | Mapping[str, Any] | None = None, *, out: str | Path, ranks: int, cpus: int = 1,
    strategy: str = "SPREAD", wait: float = 60.0, **options: Any,
) -> RayResult:  # fmt: skip
    """Trains a network that is split over ranks on a Ray cluster: `dslide.train` in actors.

    Ray starts the ranks; their exchanges travel over TCP connections of their own between the nodes, not encrypted. A
    rank that is lost ends the others with an error that names it. The call again, with ``resume_existing=True``,
    resumes from the last checkpoint, also with another number of ranks.

    Parameters
    ----------
    data : path, Dataset or Tokens
        What to train on. A path must lead to the same file on every node.
    config : Config or dict
        Options, as of `dslide.train`.
    out : path
        Folder of the run, on a disk that all nodes share.
    ranks : int
        Actors that the network is split over.
    cpus : int
        CPUs of each rank, which computes with as many threads.
    strategy : {"SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"}
        How Ray places the ranks on nodes.
    wait : float
        Seconds for the cluster to have room for all ranks, and for these to connect.
    **options
        As of `dslide.train`, except `comm`.

    Returns
    -------
    RayResult

    Raises
    ------
    UserError
        Data or options that can't be used, or a cluster without room for the ranks.
    CommError
        A rank was lost.
    """
    if "comm" in options:
        raise ConfigError("comm: Ray makes the communicator; give ranks")
    for name, value in (("ranks", ranks), ("cpus", cpus)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}: expected a whole number, at least 1, not {value!r}")
    group = placement_group([{"CPU": float(cpus)}] * ranks, strategy=strategy)
    try:
        if not group.wait(timeout_seconds=wait):
            free = ray.available_resources().get("CPU", 0)
            raise ConfigError(
                f"ranks: {ranks} of {cpus} CPUs each had no place within {wait:g} s; {free:g} CPUs are free"
            )
        actors = [
            ray.remote(_Rank).options(
                num_cpus=cpus, scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank)
            ).remote()
            for rank in range(ranks)
        ]  # fmt: skip
        addresses = ray.get([actor.address.remote() for actor in actors], timeout=wait)
        given = {"threads": cpus, **(config.to_dict() if isinstance(config, Config) else config or {}), **options}
        shared = ray.put((str(data) if isinstance(data, Path) else data, given | {"out": str(out)}))
        return _outcome([actor.train.remote(rank, addresses, wait, shared) for rank, actor in enumerate(actors)])
    finally:
        remove_placement_group(group)


def _outcome(calls: list[Any]) -> RayResult:
    """What rank 0 returns. If ranks fail, the error of the first that did so by itself, not because of another."""
    found: list[Any] = []
    for rank, call in enumerate(calls):
        try:
            found.append(ray.get(call))
        except ray.exceptions.RayActorError:
            found.append(CommError(f"rank {rank} is lost: Ray's actor died", [rank]))
    errors = [outcome for outcome in found if isinstance(outcome, Exception)]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, CommError) and not error.blamed)
    return found[0]  # type: ignore[no-any-return]


class _Rank:
    """An actor that trains as one rank."""

    def __init__(self) -> None:
        self._listener = Listener()

    def address(self) -> Address:
        """Where the ranks after this one connect."""
        return Address(ray.util.get_node_ip_address(), self._listener.port, self._listener.secret)

    def train(
        self, rank: int, addresses: list[Address], wait: float, shared: tuple[Source, dict[str, Any]]
    ) -> RayResult | Exception:
        """The result, or the error that the caller is to raise."""
        data, options = shared
        comm: Communicator | None = None
        try:
            comm = solo() if len(addresses) == 1 else Communicator(self._listener.connect(rank, addresses, wait))
            result = api.train(data, comm=comm, **options)
            comm.close()
            return RayResult(result.folder, result.summary, result.metrics)
        except (UserError, CommError, Diverged, Terminated) as error:
            if comm is not None:
                with suppress(CommError):
                    comm.fail(str(error), getattr(error, "code", 1))
            if isinstance(error, CommError):  # some of them can't be sent as they are
                return CommError(f"rank {rank} ({socket.gethostname()}): {error}", error.blamed)
            return error
