"""Loads a saved model on all ranks of a job, wherever its files lie.

Ranks may see different disks under the same path, or under different ones: each says what it has, and all agree on a
save of which every file is somewhere. A rank that lacks the small files gets them from one that has them. Files of
arrays are mapped where they are, by whoever reads them; what a rank needs of files that it lacks is sent to it when the
array is requested (remote_arrays.py). A damaged file counts as missing, so that a copy on another disk, or
an earlier checkpoint, takes its place. Where all ranks have all they need, as on a shared disk, nothing is sent but
words of agreement.

Every rank goes through the same exchanges in the same order: all that is decided follows from what all have said.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dslide.checkpoint.manifest import COMMON_FILES, MANIFEST, Manifest, check_content, check_size
from dslide.checkpoint.remote_arrays import Providers, gather_arrays, send_bytes
from dslide.checkpoint.reshard import OpenPart, Part, SavedArrays, parts_of
from dslide.checkpoint.run_folder import CHECKPOINTS, checkpoints, steps_of
from dslide.checkpoint.saved_model import SavedModel, found, load_model, model_folder, read_model
from dslide.comm import Communicator, ranks_in_words
from dslide.errors import ModelError, known_to_all
from dslide.model.sharding import Shard

Words = dict[str, list[int]]  # sentences, and the ranks that say them


@dataclass(frozen=True)
class _Save:
    """One save of a model, as all ranks know it."""

    name: str  # of its folder among checkpoints; "" where there is only one place
    checksum: int  # tells it from other saves of that name
    holders: tuple[int, ...]  # ranks with its manifest

    def __str__(self) -> str:
        return self.name or f"the save that {ranks_in_words(self.holders)} found"


class _Unusable(Exception):
    """Why a save can't be loaded; raised on all ranks alike."""


def load_together(
    folder: str | Path, comm: Communicator, *, optimizer: bool = False, verify: bool = False
) -> SavedModel:
    """As `load_model`, on every rank of a job, each its own shard; of a run, the newest checkpoint that they
    have together. ModelError on all of them if there is no save of the model of which every file is on the disk of some
    rank.

    Where files lie on other disks than those of the ranks that need them, to ask for an array of `state` is something
    that all ranks do together: each must ask for the same ones in the same order, as `Network` does.
    """
    if comm.size == 1:
        return load_model(folder, optimizer=optimizer, verify=verify)
    if any(comm.gather_objects("runs on disk", bool(checkpoints(folder)))):
        newest = load_newest(Path(folder) / CHECKPOINTS, comm, optimizer=optimizer, verify=verify)
        assert newest is not None
        return newest[1]
    place = found(model_folder(folder))
    saves, problems = _survey({"": place}, [], comm)
    if not saves:
        comm.together("model found", lambda: Manifest.read(place))
    for save in saves:
        try:
            return _load(place, save, comm, optimizer, verify)
        except _Unusable as error:
            problems.append(f"{save}: {error}" if len(saves) > 1 else str(error))
    raise known_to_all(ModelError(f"{folder}: the model can't be loaded: {'; '.join(problems)}"))


def load_newest(
    place: Path, comm: Communicator, *, optimizer: bool = True, verify: bool = True
) -> tuple[Path, SavedModel] | None:
    """The newest checkpoint of a run of which every file is on the disk of some rank: its folder, which on this rank's
    disk may not be there, and the model. None if no rank has any checkpoint; ModelError on all ranks, with the reason
    for each, if none can be used. Arrays are asked for as `load_together` says."""
    folders: dict[str, Path] = {}
    problems: list[str] = []
    try:
        folders = {path.name: path for path in sorted(place.iterdir()) if steps_of(path.name) is not None}
    except FileNotFoundError:
        pass  # others may have what is not here
    except OSError as error:
        problems = [f"{place}: can't be read: {error.strerror or error}"]
    saves, problems = _survey(folders, problems, comm)
    for save in saves:
        folder = place / save.name
        try:
            return folder, _load(folder, save, comm, optimizer, verify)
        except _Unusable as error:
            problems.append(f"{save}: {error}")
    if problems:
        raise known_to_all(ModelError(f"{place}: no checkpoint can be used: {'; '.join(problems)}"))
    return None


def _survey(folders: Mapping[str, Path], problems: Sequence[str], comm: Communicator) -> tuple[list[_Save], list[str]]:
    """The saves that the ranks have in these folders, newest first, and then those that more ranks have; and what is
    wrong with others, in words, beside the problems of this rank that are given."""
    own: dict[str, int] = {}
    problems = [*problems]
    for name, folder in folders.items():
        if (folder / MANIFEST).exists():
            try:
                own[name] = Manifest.read(folder).checksum()
            except ModelError as error:
                problems.append(str(error))
    holders: dict[tuple[str, int], list[int]] = {}
    words: Words = {}
    for rank, (theirs, wrong) in enumerate(comm.gather_objects("saves on disk", [own, problems])):
        for key in theirs.items():
            holders.setdefault(key, []).append(rank)
        for sentence in wrong:
            words.setdefault(sentence, []).append(rank)
    saves = [_Save(*key, tuple(ranks)) for key, ranks in holders.items()]
    saves.sort(key=lambda save: (-(steps_of(save.name) or 0), -len(save.holders), save.checksum))
    return saves, _sentences(words)


def _sentences(words: Words) -> list[str]:
    return [f"{ranks_in_words(ranks)}: {sentence}" for sentence, ranks in words.items()]


def _load(folder: Path, save: _Save, comm: Communicator, optimizer: bool, verify: bool) -> SavedModel:
    """Loads a save; _Unusable if files are missing or damaged everywhere."""
    manifest, model = _small_files(folder, save, comm, verify)
    try:
        needed = [parts_of(manifest, Shard(rank, comm.size), optimizer) for rank in range(comm.size)]
    except ModelError as error:
        raise _Unusable(str(error)) from None
    arrays = SavedArrays(folder, manifest, model.config, model.features, model.labels)
    every = list(dict.fromkeys(part for parts in needed for part in parts))
    here = [part.name for part in every if _is_here(folder, part.name, manifest, comm.rank in save.holders)]
    holders = [set(names) for names in comm.gather_objects("files of arrays on disk", here)]
    opened: dict[Part, OpenPart] = {}
    damage: dict[str, Words] = {}  # by file
    while True:
        providers = _providers(needed, holders, damage)
        own = {part: None for given in providers for part, provider in given.items() if provider == comm.rank}
        doubted = [part for part in every if part.name in damage and part.name in holders[comm.rank]]
        problems: dict[str, str] = {}
        for part in [*own, *doubted]:
            if part not in opened:
                try:
                    opened[part] = arrays.open(part, verify)
                except ModelError as error:
                    problems[part.name] = str(error)
        damaged = comm.gather_objects("damaged files of arrays", problems)
        if not any(damaged):
            model.state = gather_arrays(arrays, comm, optimizer, providers, {part: opened[part] for part in own})
            return model
        for rank, theirs in enumerate(damaged):
            holders[rank] -= set(theirs)
            for name, words in theirs.items():
                damage.setdefault(name, {}).setdefault(words, []).append(rank)


def _providers(needed: list[list[Part]], holders: list[set[str]], damage: Mapping[str, Words]) -> Providers:
    """Who provides each reader with each file: itself if it has it, else one of those that have it, in turns.
    _Unusable if nobody has one."""
    missing = []
    providers: Providers = [{} for _ in needed]
    for number, part in enumerate(dict.fromkeys(part for parts in needed for part in parts)):
        ranks = [rank for rank, names in enumerate(holders) if part.name in names]
        if not ranks:
            words = "; ".join(_sentences(damage.get(part.name, {})))
            missing.append(f"{part.name} is on no disk" + (f" undamaged ({words})" if words else ""))
            continue
        for reader, parts in enumerate(needed):
            if part in parts:
                providers[reader][part] = reader if reader in ranks else ranks[number % len(ranks)]
    if missing:
        more = f", and {len(missing) - 3} files more" if len(missing) > 3 else ""
        raise _Unusable(", ".join(missing[:3]) + more)
    return providers


def _is_here(folder: Path, name: str, manifest: Manifest, listed: bool) -> bool:
    """Whether a file of arrays is in the folder. Where the save's manifest is not beside it (`listed`), only its
    checksum tells whether it is of this save."""
    try:
        (check_size if listed else check_content)(folder / name, manifest.files[name])
    except ModelError:
        return False
    return True


# ---- small files ----------------------------------------------------------------------------------------------------


def _small_files(folder: Path, save: _Save, comm: Communicator, verify: bool) -> tuple[Manifest, SavedModel]:
    """The manifest of a save and the model but for its arrays, on every rank; _Unusable if no rank can read them."""
    own: tuple[Manifest, SavedModel] | None = None
    problem = "it is not here"
    if comm.rank in save.holders:
        try:
            manifest = Manifest.read(folder)
            own = manifest, read_model(folder, manifest, verify)
        except ModelError as error:
            problem = str(error)
    problems = comm.gather_objects("small files on disk", None if own else problem)
    if None not in problems:
        raise _Unusable(problems[save.holders[0]])
    sender = problems.index(None)
    lacking = [rank for rank, words in enumerate(problems) if words is not None]
    if not lacking:
        assert own is not None
        return own
    names = [MANIFEST, *(name for name in COMMON_FILES if own and name in own[0].files)]
    content = comm.together("small files to send", lambda: _read(folder, names) if comm.rank == sender else {})
    sizes = comm.gather_objects("sizes of small files", {name: len(each) for name, each in content.items()})[sender]
    came: dict[str, bytes] = {}
    for name, size in sizes.items():
        outgoing = dict.fromkeys(lacking, content[name]) if comm.rank == sender else {}
        arrived = send_bytes(comm, f"small file {name}", outgoing, {(sender, rank): size for rank in lacking})
        if sender in arrived:
            came[name] = bytes(arrived[sender])
    return comm.together("small files of others", lambda: own or _read_copies(came, verify))


def _read(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    try:
        return {name: (folder / name).read_bytes() for name in names}
    except OSError as error:
        raise ModelError(f"{folder}: can't be read: {error.strerror or error}") from None


def _read_copies(content: Mapping[str, bytes], verify: bool) -> tuple[Manifest, SavedModel]:
    """Reads the small files that another rank has sent."""
    with tempfile.TemporaryDirectory(prefix="dslide-") as place:
        folder = Path(place)
        try:
            for name, each in content.items():
                (folder / name).write_bytes(each)
        except OSError as error:
            raise ModelError(f"{folder}: nothing can be written there: {error.strerror or error}") from None
        manifest = Manifest.read(folder)
        return manifest, read_model(folder, manifest, verify)
