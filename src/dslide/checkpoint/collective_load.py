"""Loads a saved model on all ranks of a job, wherever its files lie. Every public function here is a collective.

Ranks may see different disks: they gather which files each one has, and choose a save of which every file is on some
disk. Small files are sent to ranks that lack them. Files of arrays are mapped by the ranks that have them, which
send others what they need (remote_arrays.py): nothing if all have all they need, as on a shared disk. A damaged
file counts as missing, so that a copy on another disk, or an earlier checkpoint, takes its place.

All ranks make the same exchanges in the same order, since every decision depends only on what was gathered from all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dslide.checkpoint.disks import on_disks
from dslide.checkpoint.manifest import COMMON_FILES, MANIFEST, Manifest, check_file
from dslide.checkpoint.remote_arrays import Providers, RemoteArrays, open_arrays, send_named
from dslide.checkpoint.reshard import SavedArrays, ShardFile, shard_files
from dslide.checkpoint.run_folder import CHECKPOINTS, checkpoints, folders, steps_of
from dslide.checkpoint.saved_model import SavedModel, load_model, model_folder, read_model
from dslide.checkpoint.tensor_file import TensorFile
from dslide.comm import Communicator, ranks_in_words
from dslide.errors import ModelError, known_to_all, raised_as
from dslide.model.network import Network
from dslide.model.sharding import Shard
from dslide.util.arrays import Array
from dslide.util.plain import open_plain

Problems = dict[str, list[int]]  # messages, and the ranks that report them


@dataclass(frozen=True)
class _Save:
    """One save of a model, known to all ranks."""

    name: str  # of its folder among checkpoints; "" for a model that is not a checkpoint
    checksum: int  # distinguishes it from other saves of that name
    holders: tuple[int, ...]  # ranks with its manifest

    def __str__(self) -> str:
        return self.name or f"the save that {ranks_in_words(self.holders)} found"


class _Unusable(Exception):
    """Why a save can't be loaded; raised on all ranks alike."""


def load_on_all_ranks(
    folder: str | Path, comm: Communicator, *, optimizer: bool = False, verify: bool = False
) -> SavedModel:
    """As `load_model`, on every rank of a job, each its own shard; of a run, the newest checkpoint that they have
    together. ModelError on all ranks if there is no save of which every file is on the disk of some rank."""
    model = open_on_all_ranks(folder, comm, optimizer=optimizer, verify=verify)
    if isinstance(model.state, RemoteArrays):
        model.state.receive()
    return model


def restore_network(network: Network, arrays: Mapping[str, Array]) -> None:
    """Copies the state of a model into a network. Arrays on other disks are received straight into the network's own,
    without a second copy in memory; `arrays` then holds these."""
    if isinstance(arrays, RemoteArrays):
        arrays.receive(network.state())
    network.comm.together("loading the model", lambda: network.load_state(arrays))


def open_on_all_ranks(
    folder: str | Path, comm: Communicator, *, optimizer: bool = False, verify: bool = False
) -> SavedModel:
    """As `load_on_all_ranks`, but arrays that lie on other disks stay there until `restore_network`."""
    if comm.size == 1:
        return load_model(folder, optimizer=optimizer, verify=verify)
    is_run = comm.together("checkpoints on disk", lambda: bool(checkpoints(folder)))
    if any(comm.gather_objects("runs on disk", is_run)):
        newest = open_newest(Path(folder) / CHECKPOINTS, comm, optimizer=optimizer, verify=verify)
        assert newest is not None
        return newest[1]
    place = model_folder(folder)
    saves, problems = _survey(place, comm, is_run=False)
    if not saves:
        comm.together("model found", lambda: Manifest.read(place))
    failure = f"{folder}: the model can't be loaded"
    return _open_first(place, saves, problems, comm, optimizer, verify, failure)[1]


def open_newest(
    place: Path, comm: Communicator, *, optimizer: bool = True, verify: bool = True
) -> tuple[Path, SavedModel] | None:
    """The newest checkpoint of a run of which every file is on some disk: its folder, which may be missing on this
    rank's, and the model, opened as by `open_on_all_ranks`. None if there is none; ModelError if none can be used."""
    saves, problems = _survey(place, comm, is_run=True)
    if not saves and not problems:
        return None
    return _open_first(place, saves, problems, comm, optimizer, verify, f"{place}: no checkpoint can be used")


def open_checkpoint(place: Path, name: str, comm: Communicator) -> SavedModel:
    """The checkpoint of this name, with the optimizer's state, opened as by `open_on_all_ranks`; ModelError if it can't
    be used."""
    saves, problems = _survey(place, comm, is_run=True)
    saves = [save for save in saves if save.name == name]
    return _open_first(place, saves, problems, comm, True, True, f"{place / name}: can't be used")[1]


def _open_first(
    place: Path, saves: list[_Save], problems: list[str], comm: Communicator, optimizer: bool, verify: bool,
    failure: str,
) -> tuple[Path, SavedModel]:  # fmt: skip
    """The first of the saves that can be opened, and its folder; ModelError with all problems if there is none."""
    for save in saves:
        folder = place / save.name
        try:
            return folder, _open(folder, save, comm, optimizer, verify)
        except _Unusable as error:
            problems.append(f"{save}: {error}" if save.name or len(saves) > 1 else str(error))
    raise known_to_all(ModelError(f"{failure}: {'; '.join(problems)}"))


def _survey(place: Path, comm: Communicator, is_run: bool) -> tuple[list[_Save], list[str]]:
    """The saves that the ranks have in a folder of checkpoints (`is_run`) or of a model, newest first, of the same step
    those that more ranks have first; and the problems of all ranks."""
    names, own, problems = [""], {}, []
    try:
        if is_run:
            names = [path.name for path in folders(place)]  # none if only other ranks have checkpoints
    except ModelError as error:
        names, problems = [], [str(error)]
    for name in names:
        if os.path.lexists(place / name / MANIFEST):
            try:
                own[name] = Manifest.read(place / name).checksum()
            except ModelError as error:
                problems.append(str(error))
    holders: dict[tuple[str, int], list[int]] = {}
    of_all: Problems = {}
    for rank, (theirs, messages) in enumerate(comm.gather_objects("saves on disk", [own, problems])):
        for key in theirs.items():
            holders.setdefault(key, []).append(rank)
        for message in messages:
            of_all.setdefault(message, []).append(rank)
    saves = [_Save(*key, tuple(ranks)) for key, ranks in holders.items()]
    saves.sort(key=lambda save: (-(steps_of(save.name) or 0), -len(save.holders), save.checksum))
    return saves, _with_ranks(of_all)


def _with_ranks(problems: Problems) -> list[str]:
    return [f"{ranks_in_words(ranks)}: {message}" for message, ranks in problems.items()]


def _open(folder: Path, save: _Save, comm: Communicator, optimizer: bool, verify: bool) -> SavedModel:
    """Opens a save; _Unusable if a file is missing or damaged on all disks."""
    manifest, model = _small_files(folder, save, comm, verify)
    shard = Shard.of(comm)
    try:
        needed = [shard_files(manifest, shard.of_rank(rank), optimizer) for rank in range(comm.size)]
    except ModelError as error:
        raise _Unusable(str(error)) from None
    arrays = SavedArrays(folder, manifest, model.config, model.features, model.labels)
    every = list(dict.fromkeys(source for sources in needed for source in sources))
    here = [source.name for source in every if _is_here(folder, source.name, manifest, comm.rank in save.holders)]
    holders = [set(names) for names in comm.gather_objects("files of arrays on disk", here)]
    opened: dict[ShardFile, TensorFile] = {}
    damage: dict[str, Problems] = {}  # by file
    while True:
        providers = _providers(needed, holders, damage)
        own = {source: None for given in providers for source, provider in given.items() if provider == comm.rank}
        doubted = [source for source in every if source.name in damage and source.name in holders[comm.rank]]
        problems: dict[str, str] = {}
        for source in [*own, *doubted]:
            if source not in opened:
                try:
                    opened[source] = arrays.open(source, verify)
                except ModelError as error:
                    problems[source.name] = str(error)
        damaged = comm.gather_objects("damaged files of arrays", problems)
        if not any(damaged):
            model.state = open_arrays(arrays, comm, optimizer, providers, {source: opened[source] for source in own})
            return model
        for rank, theirs in enumerate(damaged):
            holders[rank] -= set(theirs)
            for name, message in theirs.items():
                damage.setdefault(name, {}).setdefault(message, []).append(rank)


def _providers(needed: list[list[ShardFile]], holders: list[set[str]], damage: Mapping[str, Problems]) -> Providers:
    """The rank that provides each reader with each file: itself, or one of those that have it, in turn by file."""
    missing = []
    providers: Providers = [{} for _ in needed]
    for number, source in enumerate(dict.fromkeys(source for sources in needed for source in sources)):
        ranks = [rank for rank, names in enumerate(holders) if source.name in names]
        if not ranks:
            problems = "; ".join(_with_ranks(damage.get(source.name, {})))
            missing.append(f"{source.name} is on no disk" + (f" undamaged ({problems})" if problems else ""))
            continue
        for reader, sources in enumerate(needed):
            if source in sources:
                providers[reader][source] = reader if reader in ranks else ranks[number % len(ranks)]
    if missing:
        more = f", and {len(missing) - 3} files more" if len(missing) > 3 else ""
        raise _Unusable(", ".join(missing[:3]) + more)
    return providers


def _is_here(folder: Path, name: str, manifest: Manifest, listed: bool) -> bool:
    """Whether a file of a save is in the folder. If its manifest is not (`listed`), only the checksum shows that."""
    try:
        check_file(folder / name, manifest.files[name], content=not listed)
    except ModelError:
        return False
    return True


def _small_files(folder: Path, save: _Save, comm: Communicator, verify: bool) -> tuple[Manifest, SavedModel]:
    """The manifest of a save and the model but for its arrays, on every rank; _Unusable if no rank can read them."""
    own: tuple[Manifest, SavedModel] | None = None
    problem = "it is not here"
    if comm.rank in save.holders:
        try:
            own = read_model(folder, verify)
        except ModelError as error:
            problem = str(error)
    problems = comm.gather_objects("small files on disk", None if own else problem)
    if None not in problems:
        raise _Unusable(problems[save.holders[0]])
    sender = problems.index(None)
    lacking = [rank for rank, each in enumerate(problems) if each is not None]
    if not lacking:
        assert own is not None
        return own

    def read() -> dict[str, bytes]:
        names = [MANIFEST, *(name for name in COMMON_FILES if own and name in own[0].files)]
        return {name: _content(folder / name) for name in names if comm.rank == sender}

    content = on_disks(comm, "small files to send", f"{folder}: can't be read", read)
    came = send_named(comm, "small files", dict.fromkeys(lacking, content) if comm.rank == sender else {})
    return comm.together("small files received", lambda: own or _read_copies(came[sender], verify))


def _content(path: Path) -> bytes:
    with open_plain(path, ModelError) as file:
        return file.read()


def _read_copies(content: Mapping[str, bytearray], verify: bool) -> tuple[Manifest, SavedModel]:
    """Reads the small files that another rank has sent."""
    with tempfile.TemporaryDirectory(prefix="dslide-") as place:
        folder = Path(place)
        with raised_as(ModelError, f"{folder}: nothing can be written there", OSError):
            for name, each in content.items():
                (folder / name).write_bytes(each)
        return read_model(folder, verify)
