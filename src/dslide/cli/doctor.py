"""dslide doctor: what this machine offers, for bug reports and before long runs. With several ranks: what each of them
has, how fast the links between them are, and how fast a network will train on them."""

from __future__ import annotations

import argparse
import json

from dslide.cli.options import add_config_options, add_json_option, add_option, given
from dslide.cli.ranks import add_rank_options
from dslide.comm import job
from dslide.config import Config
from dslide.errors import ConfigError

EXAMPLE = {"features": 135_909, "labels": 670_091}  # of Amazon-670K
PER_ROW = {"features_per_row": 75, "labels_per_row": 5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the network to time on several ranks")
    for name, default in (EXAMPLE | PER_ROW).items():
        shown = f"{default}, as Amazon-670K" if name in EXAMPLE else str(default)
        add_option(group, f"--{name.replace('_', '-')}", f"{name.replace('_', ' ')} of the data", shown)
    add_json_option(parser, "write one object of JSON; of one machine only")
    add_config_options(parser)
    add_rank_options(parser)


def run(arguments: argparse.Namespace) -> None:
    options = given(arguments, Config)
    config = Config(**options)
    shape = {name: vars(arguments)[name] for name in EXAMPLE | PER_ROW if vars(arguments)[name] is not None}
    if ("features" in shape) != ("labels" in shape):
        raise ConfigError("--features and --labels: give both, or none for those of Amazon-670K")
    for name, value in shape.items():
        if value < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: expected at least 1, not {value}")
    comm = job(config.watchdog)
    if comm.size > 1 and arguments.json:
        raise ConfigError("json: several ranks are described in words only")
    if comm.size > 1:
        from dslide.cli.doctor_ranks import examine

        examine(comm, config, EXAMPLE | PER_ROW | shape, is_example="labels" not in shape)
        return
    for name in options | shape:
        raise ConfigError(f"{name}: of use with several ranks; on one machine `dslide plan` times a network")

    from dslide.planner.diagnosis import machine_facts

    facts = machine_facts()
    if arguments.json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name:<18}{value}")
