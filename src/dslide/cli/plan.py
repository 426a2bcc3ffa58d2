"""dslide plan: the memory a network needs, what its nodes send each other and how long training will take, before
anything is allocated."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dslide.cli.options import (
    add_config_options,
    add_reading_options,
    add_token_options,
    given,
    reading_options,
    whole_number,
)
from dslide.config import LARGEST, Config
from dslide.errors import ConfigError
from dslide.util.memory import available_bytes
from dslide.util.tables import plain_table
from dslide.util.units import clock, format_bytes, format_rate, parse_bytes, parse_rate, parse_seconds

if TYPE_CHECKING:
    from dslide.planner.calibration import Calibration
    from dslide.planner.forecast import Forecast, Workload
    from dslide.planner.step_time import NetworkSpeed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", nargs="?", help="data to train on; without it, give the numbers below")
    for name, default in (("rows", 0), ("features-per-row", 75), ("labels-per-row", 5)):
        parser.add_argument(
            f"--{name}",
            type=whole_number,
            default=default,
            metavar="N",
            help=f"{name.replace('-', ' ')} of the data, without DATA (default: {default})",
        )
    group = parser.add_argument_group("the machines")
    group.add_argument(
        "--nodes",
        type=whole_number,
        default=1,
        metavar="N",
        help="machines that share the network, a rank on each (default: 1)",
    )
    group.add_argument(
        "--cores", type=whole_number, metavar="N", help="cores of each of them (default: as many as here)"
    )
    group.add_argument(
        "--memory", metavar="SIZE", help="memory of each to fit into, like 8GB (default: what is free here)"
    )
    group.add_argument(
        "--bandwidth",
        default="1gbit",
        metavar="RATE",
        help="of each one's network, like 100mbit or unlimited (default: 1gbit)",
    )
    group.add_argument(
        "--latency",
        default="0.1ms",
        metavar="TIME",
        help="of a small message from one to another, like 50us (default: 0.1ms)",
    )
    add_reading_options(parser)
    add_token_options(parser)
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> int:
    config = Config(**given(arguments, Config))
    available = available_bytes() if arguments.memory is None else parse_bytes(arguments.memory, "--memory")
    _check(arguments)

    from dslide.planner.step_time import NetworkSpeed
    from dslide.util.threads import available_cores

    network = NetworkSpeed(
        parse_rate(arguments.bandwidth, "--bandwidth"), parse_seconds(arguments.latency, "--latency")
    )
    work = _workload(arguments, config)
    if not 1 <= arguments.nodes <= work.most_nodes:
        raise ConfigError(f"--nodes: expected 1 to {work.most_nodes} for this network, not {arguments.nodes}")
    cores = work.config.threads or (available_cores() if arguments.cores is None else arguments.cores)
    _print_plan(work, arguments.nodes, cores, available, network)
    return 0


def _workload(arguments: argparse.Namespace, config: Config) -> Workload:
    from dslide.planner.forecast import Workload
    from dslide.training.reading import Reading, read_training_data

    if arguments.data is not None:
        return Workload.of_data(config, read_training_data(arguments.data, Reading.of(reading_options(arguments))))
    if arguments.features is None or arguments.labels is None:
        raise ConfigError("without DATA, --features and --labels are needed")
    per_row = arguments.features_per_row, arguments.labels_per_row
    return Workload.of_size(config, arguments.features, arguments.labels, *per_row, arguments.rows)


def _check(arguments: argparse.Namespace) -> None:
    for name in ("features", "labels", "rows", "features_per_row", "labels_per_row", "cores"):
        value, low = getattr(arguments, name), int(name != "rows")
        if value is not None and not low <= value <= LARGEST:
            raise ConfigError(f"--{name.replace('_', '-')}: expected {low} to {LARGEST}, not {value}")


def _print_plan(work: Workload, nodes: int, cores: int, memory: int, network: NetworkSpeed) -> None:
    from dslide.planner.forecast import forecast, recommended

    counts = work.node_counts(nodes)
    plans = {count: work.memory(count, cores) for count in counts}
    chosen = plans[nodes]
    fits = "fits" if chosen.bytes_total <= memory else "does not fit"
    print("\n".join(chosen.lines()))
    print(f"{format_bytes(chosen.bytes_total)} {fits} into {format_bytes(memory)}", flush=True)

    calibration = work.calibrate(nodes, cores)
    found = {count: forecast(work.config, work.trial.labels, plans[count], calibration, network) for count in counts}
    print("\n".join(_forecast_lines(found[nodes], work.config, work.trial.rows, network)))
    print("\n".join(["", *_table(found.values(), memory), ""]))
    best, why = recommended(found, memory)
    if best is None:
        print(f"recommended: none of these, which lack memory; {counts[-1]} nodes would need "
              f"{format_bytes(plans[counts[-1]].bytes_total)} each")  # fmt: skip
    else:
        print(f"recommended: {best} node{'s' * (best > 1)}: {why}")
    print(_measured(calibration))


def _forecast_lines(found: Forecast, config: Config, rows: int, network: NetworkSpeed) -> list[str]:
    """The forecast for the requested nodes."""
    step, lines = found.step, []
    computing = f"{_ms(step.compute)} ms of computing, most of it in: {found.phase}"
    if found.nodes > 1:
        lines.append(
            f"each of {found.nodes} nodes sends at most {format_bytes(found.bytes_sent)} in a step, in {found.rounds} "
            f"rounds, over links of {format_rate(network.bits)}"
        )
        computing += f"; {_ms(step.messages)} ms of handling messages"
        computing += f"; {_ms(step.wire)} ms on the wire, {_ms(step.hidden)} of them meanwhile"
        computing += f"; {_ms(step.latency)} ms of latency"
    lines.append(f"a step takes about {_ms(step.total)} ms: {computing}")
    text = f"about {found.samples_per_second:,.0f} samples/s"
    if rows:
        every = found.seconds(config, -(-rows // config.batch_size) * config.epochs)
        text += f": {clock(every / config.epochs)} for an epoch, {clock(every)} for all {config.epochs}"
    return [*lines, text]


def _table(forecasts: Iterable[Forecast], memory: int) -> list[str]:
    """A line for each number of nodes."""
    times = [f"{what} ms" for what in ("compute", "messages", "wire", "step")]
    lines = [["nodes", "memory", "KB a step", *times, "samples/s", "bottleneck"]]
    lines += [
        [
            str(found.nodes), format_bytes(found.memory.bytes_total), f"{found.bytes_sent / 1e3:,.0f}",
            _ms(found.step.compute), _ms(found.step.messages), _ms(found.step.wire), _ms(found.step.total),
            f"{found.samples_per_second:,.0f}", found.bottleneck(memory),
        ]
        for found in forecasts
    ]  # fmt: skip
    return plain_table(lines, ">" * (len(lines[0]) - 1) + "<")


def _measured(calibration: Calibration) -> str:
    """Where the times are from."""
    ranks = ", ".join(map(str, sorted(calibration.measured)))
    text = f"times are from single ranks of {ranks} in turn, tried on this machine with large layers cut down"
    if not calibration.is_extrapolated:
        return text
    here = max(calibration.measured_cores)
    how = "more are taken to bring nothing" if here == 1 else f"{calibration.cores} are extrapolated by Amdahl's law"
    return f"{text}; it has {here} core{'s' * (here > 1)}, and {how}"


def _ms(seconds: float) -> str:
    """In milliseconds, three digits."""
    value = 1e3 * seconds
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
