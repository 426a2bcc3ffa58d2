"""What `dslide doctor` prints about several ranks: what each has, the links between them, and how fast a network trains
on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dslide.comm import Communicator
from dslide.comm.topology import local_ranks
from dslide.config import Config
from dslide.errors import ConfigError, known_to_all
from dslide.model.defaults import resolve
from dslide.planner.diagnosis import computing_times, find_differences, memory_problem, rank_facts
from dslide.planner.link_test import ALL_AT_ONCE_BYTES, AllAtOnce, Pair, measure_all_at_once, measure_pairs, pairs
from dslide.planner.memory import plan
from dslide.planner.shares import measured_shares, shares_in_memory
from dslide.planner.traffic import bytes_per_step, rounds_per_step
from dslide.planner.trial_steps import StepTime
from dslide.util.memory import available_bytes, rss_bytes
from dslide.util.tables import plain_table
from dslide.util.units import format_bytes

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
    content = f"{_ms(together.seconds)} ms with {ALL_AT_ONCE_BYTES >> 10} KB to each"
    rate = f"{_mbit(together.bandwidth)} Mbit/s out of every rank"
    empty = f"{_ms(together.empty_seconds)} ms without content"
    _print(comm, [f"all ranks to all others at once: {empty}, {content}: {rate}", ""])
    config = resolve(config.replace(threads=threads), shape["labels"], ranks=comm.size)
    _examine_network(comm, config, shape, is_example, together)
    if differences:
        raise known_to_all(wrong)


def _examine_network(
    comm: Communicator, config: Config, shape: Mapping[str, int], is_example: bool, together: AllAtOnce
) -> None:
    """Prints whether the network fits, and how fast it trains."""
    memory = partial(plan, config, shape["features"], shape["labels"], ranks=comm.size)
    planned = memory()
    example = " (those of Amazon-670K; --features and --labels give others)" if is_example else ""
    rows = f"{shape['features_per_row']} features and {shape['labels_per_row']} labels per row"
    batches = f"batches of {config.batch_size} rows, {config.wire} on the wire"
    _print(comm, [f"a network with {planned.what}{example}:", f"  {rows}, {batches}"])
    free = available_bytes() // local_ranks(comm).ranks + rss_bytes()
    fitting = partial(shares_in_memory, comm, bytes_of=lambda part: memory(share=part).bytes_total, free=free)
    if problem := memory_problem(comm, planned):
        if shares := fitting(()):
            problem += f"; with --shares {','.join(map(str, shares))} all have enough"
        if not is_example:
            raise known_to_all(ConfigError(problem))
        _print(comm, [f"  {problem}"])
        return
    _print(comm, [f"  {format_bytes(planned.bytes_total)} of memory on each rank without data, and there is enough"])
    every = computing_times(comm, config, shape)
    slowest = max(every, key=lambda step: step.compute)
    _print(comm, speed_lines(config, shape["labels"], comm.size, slowest, together))
    measured = measured_shares(comm, config, shape)
    _print(comm, shares_lines([step.compute for step in every], measured, fitting(measured)))


def shares_lines(seconds: Sequence[float], measured: tuple[int, ...], shares: tuple[int, ...]) -> list[str]:
    """What each rank computes for a step with equal shares, and the shares that `--shares -1` would choose."""
    text = f"  computing for a step, with equal shares, ms: {', '.join(map(_ms, seconds))}"
    if not shares:
        return [f"{text}; the ranks are alike: equal shares"]
    why = "as far as memory allows" if shares != measured else "in proportion to what each computes in a second"
    return [f"{text}; --shares {','.join(map(str, shares))} would suit them, {why} (--shares -1 measures that)"]


def ranks_table(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each rank, below one with the names of the facts."""
    names = [name for name in every[0] if name != "MPI"]
    lines = [[rank, *(facts[name] for name in names)] for rank, facts in enumerate(every)]
    return _indented([["rank", *names], *lines], "<")


def links_lines(size: int, found: Mapping[tuple[int, int], Pair]) -> list[str]:
    """The figures of pairs: all of them, or the middle and the slowest where there are many."""
    trips = {pair: link.round_trip for pair, link in found.items()}
    speeds = {pair: link.forth for pair, link in found.items()}
    speeds |= {(second, first): link.back for (first, second), link in found.items()}
    trip = "round trip of a small message between two ranks"
    speed = "bandwidth from one rank to another"
    quiet = "while the others are quiet"
    if size <= MATRIX_RANKS:
        both_ways = trips | {(second, first): seconds for (first, second), seconds in trips.items()}
        lines = [f"{trip} {quiet}, ms:", *_matrix(size, both_ways, _ms)]
        lines += [f"{speed} (lines to columns) {quiet}, Mbit/s:", *_matrix(size, speeds, _mbit)]
    else:
        slow, narrow = sorted(trips, key=lambda pair: -trips[pair]), sorted(speeds, key=lambda pair: speeds[pair])
        slowest = ", ".join(f"{a} and {b} {_ms(trips[a, b])}" for a, b in slow[:SLOWEST])
        narrowest = ", ".join(f"{a} to {b} {_mbit(speeds[a, b])}" for a, b in narrow[:SLOWEST])
        middle, middle_speed = _ms(trips[slow[len(slow) // 2]]), _mbit(speeds[narrow[len(narrow) // 2]])
        lines = [f"{trip} {quiet}, ms: {middle} in the middle; slowest: {slowest}"]
        lines += [f"{speed} {quiet}, Mbit/s: {middle_speed} in the middle; slowest: {narrowest}"]
    left_out = len(list(pairs(size))) - len(found)
    return lines + [f"{left_out} pairs were left out: measuring them would take long"] * (left_out > 0)


def speed_lines(config: Config, labels: int, ranks: int, timed: StepTime, together: AllAtOnce) -> list[str]:
    """The speed to expect: between all of the communication overlapped with compute, and none of it."""
    sent, rounds, rows = bytes_per_step(config, labels, ranks), rounds_per_step(config, labels), config.batch_size
    compute, network = timed.compute, together.time_for(sent, rounds)
    return [
        f"  each rank sends at most {format_bytes(sent)} in a step, in {rounds} rounds",
        f"  compute about {_ms(compute)} ms, network about {_ms(network)} ms: {rows / (compute + network):,.0f} to "
        f"{rows / max(compute, network):,.0f} samples/s expected, more if they overlap better",
        f"  measured for a second with large layers cut down: {config.batch_size / timed.total:,.0f} samples/s, "
        f"{timed.waiting / timed.total:.0%} of the time spent waiting for other ranks",
    ]


def _print(comm: Communicator, lines: Sequence[str]) -> None:
    if comm.rank == 0 and lines:
        print("\n".join(lines), flush=True)


def _matrix(size: int, figures: Mapping[tuple[int, int], float], text: Callable[[float], str]) -> list[str]:
    texts = {pair: text(figure) for pair, figure in figures.items()} | {(rank, rank): "-" for rank in range(size)}
    lines = [[row, *(texts.get((row, column), "") for column in range(size))] for row in range(size)]
    return _indented([["rank", *range(size)], *lines], ">")


def _indented(lines: Sequence[Sequence[object]], align: str) -> list[str]:
    return [f"  {line}" for line in plain_table([[str(cell) for cell in line] for line in lines], align)]


def _ms(seconds: float) -> str:
    return _short(1e3 * seconds)


def _mbit(bytes_per_second: float) -> str:
    return _short(8e-6 * bytes_per_second)


def _short(value: float) -> str:
    """Three digits, or as many as there are before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
