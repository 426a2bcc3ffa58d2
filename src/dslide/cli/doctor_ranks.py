"""What `dslide doctor` says of several ranks: what each has, how they are connected, how a network trains on them."""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from dslide.cli.doctor import installed
from dslide.comm import Communicator, ranks_in_words
from dslide.comm.topology import local_ranks
from dslide.config import Config
from dslide.errors import ConfigError, MemoryNeeded, known_to_all
from dslide.planner.link_test import ALL_AT_ONCE_BYTES, AllAtOnce, Pair, measure_all_at_once, measure_pairs, pairs
from dslide.planner.memory import plan
from dslide.planner.traffic import bytes_per_step, rounds_per_step
from dslide.planner.trial_rows import made_up
from dslide.planner.trial_steps import StepTime, time_step
from dslide.util.memory import available_bytes
from dslide.util.threads import available_cores, instruction_set
from dslide.util.units import format_bytes

MATRIX_RANKS = 8  # up to which figures of all pairs are printed
SLOWEST = 3  # pairs that are named otherwise
# Facts that must be the same on all ranks, and what of them counts.
SAME = {"dslide": r".*", "python": r"\d+\.\d+", "MPI": r".*"}


def examine(comm: Communicator, config: Config, shape: Mapping[str, int], is_example: bool) -> None:
    """Prints it all, on the first rank. Raises ConfigError, the same on every rank, if ranks differ where they must not
    or if the network does not fit."""
    every = comm.gather_objects("doctor", comm.together("facts", own_facts))
    differences = find_differences(every)
    wrong = ConfigError(f"ranks have different versions of {_listed(differences)}; install the same on all hosts")
    if "dslide" in differences:  # ranks may not even know the exchanges that follow
        _say(comm, [*ranks_table(every), *differences.values()])
        raise known_to_all(wrong)
    threads = config.threads or local_ranks(comm).threads
    for facts, number in zip(every, comm.gather_objects("threads", threads), strict=True):
        facts["threads"] = number
    _say(comm, [f"{comm.size} ranks, {every[0]['MPI']}", *ranks_table(every), *differences.values()])
    _say(comm, ["", *links_lines(comm.size, measure_pairs(comm))])
    together = measure_all_at_once(comm)
    _say(comm, [together_line(together), ""])
    _examine_network(comm, config.replace(threads=threads), shape, is_example, together)
    if differences:
        raise known_to_all(wrong)


def _examine_network(
    comm: Communicator, config: Config, shape: Mapping[str, int], is_example: bool, together: AllAtOnce
) -> None:
    """Says whether the network fits, and how fast it trains."""
    planned = plan(config, shape["features"], shape["labels"], ranks=comm.size)
    _say(comm, network_lines(config, planned.what, shape, is_example))
    problem = None
    try:
        planned.check(local_ranks(comm).ranks)
    except MemoryNeeded as error:
        problem = str(error)
    problems = {rank: said for rank, said in enumerate(comm.gather_objects("memory", problem)) if said}
    if problems:
        text = f"{ranks_in_words(list(problems))}: {next(iter(problems.values()))}"
        if not is_example:
            raise known_to_all(ConfigError(text))
        _say(comm, [f"  {text}"])
        return
    _say(comm, [f"  {format_bytes(planned.bytes_total)} of memory on each rank without data, and there is enough"])
    own = time_step(config, made_up(config.batch_size, **shape), comm)
    every = [StepTime(**given) for given in comm.gather_objects("step", vars(own))]
    slowest = max(every, key=lambda step: step.compute)
    _say(comm, speed_lines(config, shape["labels"], comm.size, slowest, together))


def own_facts() -> dict[str, Any]:
    """What to know about this rank, by name."""
    from mpi4py import MPI

    return {
        "host": socket.gethostname(),
        "cores": available_cores(),
        "threads": "",  # known when all ranks are
        "free memory": format_bytes(available_bytes()),
        "dslide": version("dslide"),
        "python": platform.python_version(),
        "numpy": installed("numpy"),
        "mpi4py": installed("mpi4py"),
        "instruction set": instruction_set(),
        "MPI": library_name(MPI.Get_library_version()),
    }


def library_name(text: str) -> str:
    """Name and version out of what an MPI library says of itself."""
    words = re.sub(r"\bversion:|\blibrary\b|\(R\)", " ", text.split("\n")[0].split(",")[0], flags=re.IGNORECASE)
    match = re.match(r"\s*(\D*?)\s+v?(\d[\w.]*)", words)
    return f"{' '.join(match[1].split())} {match[2]}" if match else " ".join(words.split()) or "an MPI without name"


def find_differences(every: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Facts that must be the same on all ranks and are not, by name, each with a line that says who has what."""
    lines = {}
    for name, counts in SAME.items():
        holders: dict[str, list[int]] = {}
        for rank, facts in enumerate(every):
            match = re.match(counts, facts[name])
            holders.setdefault(match[0] if match else facts[name], []).append(rank)
        if len(holders) > 1:
            each = [f"{value} on {ranks_in_words(ranks)}" for value, ranks in holders.items()]
            lines[name] = f"{name} is {', '.join(each)}"
    return lines


def ranks_table(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each rank, below one with the names of the facts."""
    names = [name for name in every[0] if name != "MPI"]
    return _aligned([["rank", *names], *([rank, *(facts[name] for name in names)] for rank, facts in enumerate(every))])


def links_lines(size: int, found: Mapping[tuple[int, int], Pair]) -> list[str]:
    """The figures of pairs: all of them, or the middle and the slowest where there are many."""
    trips = {pair: link.round_trip for pair, link in found.items()}
    trips |= {(second, first): seconds for (first, second), seconds in trips.items()}
    speeds = {pair: link.forth for pair, link in found.items()}
    speeds |= {(second, first): link.back for (first, second), link in found.items()}
    left_out = len(list(pairs(size))) - len(found)
    note = [f"{left_out} pairs were left out: measuring them would take long"] if left_out else []
    trip, speed = "round trip of a small message between two ranks", "bandwidth from one rank to another"
    quiet = "while the others are quiet"
    if size <= MATRIX_RANKS:
        return [
            f"{trip} {quiet}, ms:",
            *_matrix(size, {pair: _ms(seconds) for pair, seconds in trips.items()}),
            f"{speed} (lines to columns) {quiet}, Mbit/s:",
            *_matrix(size, {pair: _mbit(rate) for pair, rate in speeds.items()}),
            *note,
        ]
    slow, narrow = sorted(found, key=lambda pair: -trips[pair]), sorted(speeds, key=lambda pair: speeds[pair])
    slowest = ", ".join(f"{a} and {b} {_ms(trips[a, b])}" for a, b in slow[:SLOWEST])
    narrowest = ", ".join(f"{a} to {b} {_mbit(speeds[a, b])}" for a, b in narrow[:SLOWEST])
    return [
        f"{trip} {quiet}, ms: {_ms(trips[slow[len(slow) // 2]])} in the middle; slowest: {slowest}",
        f"{speed} {quiet}, Mbit/s: {_mbit(speeds[narrow[len(narrow) // 2]])} in the middle; slowest: {narrowest}",
        *note,
    ]


def together_line(together: AllAtOnce) -> str:
    return (
        f"all ranks to all others at once: {_ms(together.empty_seconds)} ms without content, "
        f"{_ms(together.seconds)} ms with {ALL_AT_ONCE_BYTES >> 10} KB to each: "
        f"{_mbit(together.bandwidth)} Mbit/s out of every rank"
    )


def network_lines(config: Config, what: str, shape: Mapping[str, int], is_example: bool) -> list[str]:
    """The network that is timed."""
    example = " (those of Amazon-670K; --features and --labels give others)" if is_example else ""
    return [
        f"a network with {what}{example}:",
        f"  {shape['features_per_row']} features and {shape['labels_per_row']} labels per row, batches of "
        f"{config.batch_size} rows, {config.wire} on the wire",
    ]


def speed_lines(config: Config, labels: int, ranks: int, timed: StepTime, together: AllAtOnce) -> list[str]:
    """The step to expect: between all of the network's time hidden behind computing, and none of it."""
    sent, rounds = bytes_per_step(config, labels, ranks), rounds_per_step(config, labels)
    network = together.time_for(sent, rounds)
    least, most = (config.batch_size / seconds for seconds in (timed.compute + network, max(timed.compute, network)))
    return [
        f"  each rank sends at most {format_bytes(sent)} in a step, in {rounds} rounds",
        f"  compute about {_ms(timed.compute)} ms, network about {_ms(network)} ms: {least:,.0f} to "
        f"{most:,.0f} samples/s expected, the more the better one hides behind the other",
        f"  tried for a second with large layers cut down: {config.batch_size / timed.total:,.0f} samples/s, "
        f"{timed.waiting / timed.total:.0%} of the time spent waiting for other ranks",
    ]


def _say(comm: Communicator, lines: Sequence[str]) -> None:
    if comm.rank == 0 and lines:
        print("\n".join(lines), flush=True)


def _listed(names: Mapping[str, str]) -> str:
    return " and ".join(names)


def _matrix(size: int, texts: Mapping[tuple[int, int], str]) -> list[str]:
    lines = [
        [row, *("-" if row == column else texts.get((row, column), "") for column in range(size))]
        for row in range(size)
    ]
    return _aligned([["rank", *range(size)], *lines], right=True)


def _aligned(lines: Sequence[Sequence[object]], right: bool = False) -> list[str]:
    texts = [[str(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    padded = [
        [cell.rjust(w) if right else cell.ljust(w) for cell, w in zip(line, widths, strict=True)] for line in texts
    ]
    return ["  " + "  ".join(line).rstrip() for line in padded]


def _ms(seconds: float) -> str:
    return _short(1e3 * seconds)


def _mbit(bytes_per_second: float) -> str:
    return _short(8e-6 * bytes_per_second)


def _short(value: float) -> str:
    """Three digits, or as many as there are before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
