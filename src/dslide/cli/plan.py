"""dslide plan: the memory a network needs, what its nodes send each other and how long training will take, before
anything is allocated."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dslide.cli.options import (
    add_config_options,
    add_json_option,
    add_option,
    add_reading_options,
    given,
    reading_options,
)
from dslide.config import LARGEST, Config
from dslide.errors import ConfigError
from dslide.util.memory import available_bytes
from dslide.util.tables import plain_table
from dslide.util.units import clock, format_bytes, format_ms, format_rate, parse_bytes, parse_rate, parse_seconds

if TYPE_CHECKING:
    from dslide.planner.calibration import Calibration
    from dslide.planner.forecast import Forecast, Workload
    from dslide.planner.step_time import NetworkSpeed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", nargs="?", help="data to train on; without it, give the sizes below")
    dense = "without DATA: how many of --features are dense"
    add_option(parser, "--dense-features", dense, 0)
    for name, default in (("rows", 0), ("features-per-row", 75), ("labels-per-row", 5)):
        add_option(parser, f"--{name}", f"without DATA: {name.replace('-', ' ')} of the data", default)
    group = parser.add_argument_group("the machines")
    add_option(group, "--nodes", "machines that share the network, one rank on each", 1)
    add_option(group, "--cores", "cores of each machine", "as many as here")
    add_option(group, "--memory", "available memory of each machine, like 8GB", "what is free here", "SIZE")
    bandwidth = "bandwidth of each machine's link, like 100mbit or unlimited (default: 1gbit)"
    group.add_argument("--bandwidth", default="1gbit", metavar="RATE", help=bandwidth)
    latency = "latency of a small message between machines, like 50us (default: 0.1ms)"
    group.add_argument("--latency", default="0.1ms", metavar="TIME", help=latency)
    add_json_option(parser, "write one object of JSON")
    add_reading_options(parser, tokens=True)
    add_config_options(parser)


def run(arguments: argparse.Namespace) -> None:
    config = Config(**given(arguments, Config))
    available = available_bytes() if arguments.memory is None else parse_bytes(arguments.memory, "--memory")
    for name in ("features", "labels", "rows", "features_per_row", "labels_per_row", "cores"):
        value, low = getattr(arguments, name), int(name != "rows")
        if value is not None and not low <= value <= LARGEST:
            raise ConfigError(f"--{name.replace('_', '-')}: expected {low} to {LARGEST}, not {value}")

    from dslide.planner.step_time import NetworkSpeed
    from dslide.util.threads import available_cores

    network = NetworkSpeed(
        parse_rate(arguments.bandwidth, "--bandwidth"), parse_seconds(arguments.latency, "--latency")
    )
    work = _workload(arguments, config)
    if not 1 <= arguments.nodes <= work.most_nodes:
        raise ConfigError(f"--nodes: expected 1 to {work.most_nodes} for this network, not {arguments.nodes}")
    cores = config.threads or (available_cores() if arguments.cores is None else arguments.cores)
    (_print_json if arguments.json else _print_plan)(work, arguments.nodes, cores, available, network)


def _workload(arguments: argparse.Namespace, config: Config) -> Workload:
    from dslide.planner.forecast import Workload
    from dslide.training.reading import Reading, read_training_data

    if arguments.data is not None:
        return Workload.of_data(config, read_training_data(arguments.data, Reading.of(reading_options(arguments))))
    if arguments.features is None or arguments.labels is None:
        raise ConfigError("without DATA, --features and --labels are needed")
    per_row = arguments.features_per_row, arguments.labels_per_row
    dense = arguments.dense_features
    if not 0 <= dense <= arguments.features:
        raise ConfigError(f"--dense-features: expected 0 to {arguments.features}, not {dense}")
    return Workload.of_size(config, arguments.features, arguments.labels, *per_row, arguments.rows, dense)


def _print_plan(work: Workload, nodes: int, cores: int, memory: int, network: NetworkSpeed) -> None:
    from dslide.planner.forecast import forecast, recommended, recommended_wire

    counts = work.node_counts(nodes)
    plans = {count: work.memory(count, cores) for count in counts}
    chosen = plans[nodes]
    fits = "fits" if chosen.bytes_total <= memory else "does not fit"
    print("\n".join(chosen.lines()))
    print(f"{format_bytes(chosen.bytes_total)} {fits} into {format_bytes(memory)}", flush=True)

    calibration = work.calibrate(nodes, cores)
    found = {
        count: forecast(work.config(count), work.trial.labels, plans[count], calibration, network) for count in counts
    }
    print("\n".join(_forecast_lines(found[nodes], work.config(nodes), work.trial.rows, network)))
    print("\n".join(["", *_table(found.values(), memory), ""]))
    best, why = recommended(found, memory)
    if best is None:
        print(f"recommended: none of these, which lack memory; {counts[-1]} nodes would need "
              f"{format_bytes(plans[counts[-1]].bytes_total)} each")  # fmt: skip
    else:
        print(f"recommended: {best} node{'s' * (best > 1)}: {why}")
        wire, gain = recommended_wire(work.config(best), work.trial.labels, plans[best], calibration, network)
        if gain > 1:
            print(f"with --wire {wire} these would be {gain:.2f} times as fast, by what is sent")
    print(_measured(calibration))


def _print_json(work: Workload, nodes: int, cores: int, memory: int, network: NetworkSpeed) -> None:
    from dslide.planner.forecast import forecast, recommended, recommended_wire

    counts = work.node_counts(nodes)
    plans = {count: work.memory(count, cores) for count in counts}
    calibration = work.calibrate(nodes, cores)
    found = {
        count: forecast(work.config(count), work.trial.labels, plans[count], calibration, network) for count in counts
    }
    best, why = recommended(found, memory)
    rows = [
        {
            "nodes": count, "memory_bytes": plans[count].bytes_total, "memory_parts": plans[count].parts,
            "fits": plans[count].bytes_total <= memory, "batch_size": each.rows, "bytes_sent_per_step": each.bytes_sent,
            "step_seconds": each.step.total, "compute_seconds": each.step.compute,
            "samples_per_second": each.samples_per_second, "bottleneck": each.bottleneck(memory),
        }
        for count, each in found.items()
    ]  # fmt: skip
    at = best or nodes
    wire, _ = recommended_wire(work.config(at), work.trial.labels, plans[at], calibration, network)
    chosen = {
        "parameters": plans[nodes].parameters, "available_bytes": memory, "recommended_nodes": best, "why": why,
        "recommended_wire": wire,
    }  # fmt: skip
    print(json.dumps({**chosen, "forecasts": rows}))


def _forecast_lines(found: Forecast, config: Config, rows: int, network: NetworkSpeed) -> list[str]:
    """The forecast for the requested nodes."""
    step, lines, ms = found.step, [], format_ms
    computing = f"{ms(step.compute)} ms of computing, most of it in: {found.phase}"
    if found.nodes > 1:
        lines.append(
            f"each of {found.nodes} nodes sends at most {format_bytes(found.bytes_sent)} in a step, in {found.rounds} "
            f"rounds, over links of {format_rate(network.bits)}"
        )
        computing += f"; {ms(step.messages)} ms of handling messages"
        computing += f"; {ms(step.wire)} ms on the wire, {ms(step.hidden)} of them meanwhile"
        computing += f"; {ms(step.latency)} ms of latency"
    lines.append(f"a step of {found.rows:,} rows takes about {ms(step.total)} ms: {computing}")
    text = f"about {found.samples_per_second:,.0f} samples/s"
    if rows:
        every = found.seconds(config, -(-rows // config.batch_size) * config.epochs)
        text += f": {clock(every / config.epochs)} for an epoch, {clock(every)} for all {config.epochs}"
    return [*lines, text]


def _table(forecasts: Iterable[Forecast], memory: int) -> list[str]:
    """A line for each number of nodes."""
    times = [f"{what} ms" for what in ("compute", "messages", "wire", "step")]
    lines = [["nodes", "memory", "batch", "KB a step", *times, "samples/s", "bottleneck"]]
    for found in forecasts:
        step = found.step
        lines.append([
            str(found.nodes), format_bytes(found.memory.bytes_total), f"{found.rows:,}",
            f"{found.bytes_sent / 1e3:,.0f}", *map(format_ms, (step.compute, step.messages, step.wire, step.total)),
            f"{found.samples_per_second:,.0f}", found.bottleneck(memory),
        ])  # fmt: skip
    return plain_table(lines, ">>>>>>>>><")


def _measured(calibration: Calibration) -> str:
    """Where the times are from."""
    ranks = ", ".join(map(str, sorted(calibration.measured)))
    text = f"times are from single ranks of {ranks} in turn, tried on this machine with large layers cut down"
    if not calibration.is_extrapolated:
        return text
    here = max(calibration.measured_cores)
    how = "more are taken to bring nothing" if here == 1 else f"{calibration.cores} are extrapolated by Amdahl's law"
    return f"{text}; it has {here} core{'s' * (here > 1)}, and {how}"
