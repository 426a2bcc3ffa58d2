"""What `dslide doctor` prints about several ranks: what each has, the links between them, and how fast a network trains
on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dslide.comm import Communicator
from dslide.comm.topology import local_ranks
from dslide.config import Config
from dslide.errors import ConfigError, known_to_all
from dslide.planner.diagnosis import Expected, find_differences, memory_problem, rank_facts, slowest_step
from dslide.planner.link_test import ALL_AT_ONCE_BYTES, AllAtOnce, Pair, measure_all_at_once, measure_pairs, pairs
from dslide.planner.memory import plan
from dslide.util.tables import plain_table
from dslide.util.units import format_bytes, format_ms, three_digits

MATRIX_RANKS = 8  # up to which figures of all pairs are printed
SLOWEST = 3  # pairs that are named otherwise


def examine(comm: Communicator, config: Config, shape: Mapping[str, int], is_example: bool) -> None:
    """Measures on all ranks and prints on the first. Raises ConfigError, the same on every rank, if ranks differ where
    they must not or if the network does not fit."""
    every = comm.gather_objects("doctor", comm.together("facts", rank_facts))
    differences = find_differences(every)
    wrong = ConfigError(f"ranks have different versions of {' and '.join(differences)}; install the same on all hosts")
    if "dslide" in differences:  # ranks may not even have the exchanges that follow
        _print(comm, [*ranks_table(every), *differences.values()])
        raise known_to_all(wrong)
    threads = config.threads or local_ranks(comm).threads
    for facts, number in zip(every, comm.gather_objects("threads", threads), strict=True):
        facts["threads"] = number
    _print(comm, [f"{comm.size} ranks, {every[0]['MPI']}", *ranks_table(every), *differences.values()])
    _print(comm, ["", *links_lines(comm.size, measure_pairs(comm))])
    together = measure_all_at_once(comm)
    _print(comm, [
        f"all ranks to all others at once: {format_ms(together.empty_seconds)} ms without content, "
        f"{format_ms(together.seconds)} ms with {ALL_AT_ONCE_BYTES >> 10} KB to each: "
        f"{_mbit(together.bandwidth)} Mbit/s out of every rank", "",
    ])  # fmt: skip
    _examine_network(comm, config.replace(threads=threads), shape, is_example, together)
    if differences:
        raise known_to_all(wrong)


def _examine_network(
    comm: Communicator, config: Config, shape: Mapping[str, int], is_example: bool, together: AllAtOnce
) -> None:
    """Prints whether the network fits, and how fast it trains."""
    planned = plan(config, shape["features"], shape["labels"], ranks=comm.size)
    example = " (those of Amazon-670K; --features and --labels give others)" if is_example else ""
    _print(comm, [
        f"a network with {planned.what}{example}:",
        f"  {shape['features_per_row']} features and {shape['labels_per_row']} labels per row, batches of "
        f"{config.batch_size} rows, {config.wire} on the wire",
    ])  # fmt: skip
    if problem := memory_problem(comm, planned):
        if not is_example:
            raise known_to_all(ConfigError(problem))
        _print(comm, [f"  {problem}"])
        return
    _print(comm, [f"  {format_bytes(planned.bytes_total)} of memory on each rank without data, and there is enough"])
    timed = slowest_step(comm, config, shape)
    expected = Expected.of(config, shape["labels"], comm.size, timed, together)
    _print(comm, [  # from none of the communication overlapped with compute to all of it
        f"  each rank sends at most {format_bytes(expected.bytes_sent)} in a step, in {expected.rounds} rounds",
        f"  compute about {format_ms(timed.compute)} ms, network about {format_ms(expected.network_seconds)} ms: "
        f"{expected.least_speed:,.0f} to {expected.most_speed:,.0f} samples/s expected, more if they overlap better",
        f"  measured for a second with large layers cut down: {config.batch_size / timed.total:,.0f} samples/s, "
        f"{timed.waiting / timed.total:.0%} of the time spent waiting for other ranks",
    ])  # fmt: skip


def ranks_table(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each rank, below one with the names of the facts."""
    names = [name for name in every[0] if name != "MPI"]
    lines = [[rank, *(facts[name] for name in names)] for rank, facts in enumerate(every)]
    return _indented([["rank", *names], *lines], "<")


def links_lines(size: int, found: Mapping[tuple[int, int], Pair]) -> list[str]:
    """The figures of pairs: all of them, or the middle and the slowest where there are many."""
    trips, speeds = {}, {}
    for (first, second), link in found.items():
        trips[first, second] = trips[second, first] = link.round_trip
        speeds[first, second], speeds[second, first] = link.forth, link.back
    left_out = len(list(pairs(size))) - len(found)
    note = [f"{left_out} pairs were left out: measuring them would take long"] if left_out else []
    trip, speed = "round trip of a small message between two ranks", "bandwidth from one rank to another"
    quiet = "while the others are quiet"
    if size <= MATRIX_RANKS:
        return [
            f"{trip} {quiet}, ms:",
            *_matrix(size, {pair: format_ms(seconds) for pair, seconds in trips.items()}),
            f"{speed} (lines to columns) {quiet}, Mbit/s:",
            *_matrix(size, {pair: _mbit(rate) for pair, rate in speeds.items()}),
            *note,
        ]
    slow, narrow = sorted(found, key=lambda pair: -trips[pair]), sorted(speeds, key=lambda pair: speeds[pair])
    slowest = ", ".join(f"{a} and {b} {format_ms(trips[a, b])}" for a, b in slow[:SLOWEST])
    narrowest = ", ".join(f"{a} to {b} {_mbit(speeds[a, b])}" for a, b in narrow[:SLOWEST])
    return [
        f"{trip} {quiet}, ms: {format_ms(trips[slow[len(slow) // 2]])} in the middle; slowest: {slowest}",
        f"{speed} {quiet}, Mbit/s: {_mbit(speeds[narrow[len(narrow) // 2]])} in the middle; slowest: {narrowest}",
        *note,
    ]


def _print(comm: Communicator, lines: Sequence[str]) -> None:
    if comm.rank == 0 and lines:
        print("\n".join(lines), flush=True)


def _matrix(size: int, texts: Mapping[tuple[int, int], str]) -> list[str]:
    texts = {(rank, rank): "-" for rank in range(size)} | dict(texts)
    lines = [[row, *(texts.get((row, column), "") for column in range(size))] for row in range(size)]
    return _indented([["rank", *range(size)], *lines], ">")


def _indented(lines: Sequence[Sequence[object]], align: str) -> list[str]:
    return [f"  {line}" for line in plain_table([[str(cell) for cell in line] for line in lines], align)]


def _mbit(bytes_per_second: float) -> str:
    return three_digits(8e-6 * bytes_per_second)
