"""dslide serve: predictions over HTTP."""

from __future__ import annotations

import argparse

from dslide.cli.options import add_option
from dslide.errors import ConfigError
from dslide.serve.options import ServeOptions, read_token
from dslide.util.units import parse_bytes, parse_seconds

DEFAULTS = ServeOptions("")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="folder of a training run, or of a model")
    add_option(
        parser, "--host", "address to listen at; others than this machine's own need a token", DEFAULTS.host, "HOST"
    )
    add_option(parser, "--port", "port to listen on; 0: any free one", DEFAULTS.port)
    add_option(parser, "--token-file", "file with a token that requests must contain", "none", "FILE")
    add_option(parser, "--workers", "number of processes, which share the weights", DEFAULTS.workers)
    add_option(parser, "--threads", "threads of each worker; 0: the cores divided by the workers", 0)
    parser.add_argument(
        "--approximate", action=argparse.BooleanOptionalAction, help="score only labels that are looked up (default: if"
        " the model has a label prior)",
    )  # fmt: skip
    add_option(parser, "--k", "number of labels for each row, if the request does not say", DEFAULTS.k)
    add_option(parser, "--most-k", "largest number of labels that a request can ask for", DEFAULTS.most_k)
    add_option(parser, "--most-rows", "largest number of rows in a request", DEFAULTS.most_rows)
    add_option(parser, "--most-bytes", "largest size of a request, like 4MB", "4MB", "SIZE")
    add_option(parser, "--batch-rows", "largest number of rows that are predicted together", DEFAULTS.batch_rows)
    add_option(parser, "--timeout", "time that a client may take to send a request, like 10s", "10s", "TIME")
    add_option(parser, "--reload", "interval of checks for a newer checkpoint, like 10s; 0s: never", "10s", "TIME")
    add_option(parser, "--uri-prefix", "prefix that turns the names of labels into URIs", "nothing", "TEXT")


def run(arguments: argparse.Namespace) -> None:
    try:
        from dslide.serve.workers import serve
    except ImportError as error:
        raise ConfigError(f"serve: the package {error.name} is not installed; pip install 'dslide[serve]'") from None

    given = {name: getattr(arguments, name) for name in ("port", "workers", "threads", "approximate", "k")}
    given |= {name: getattr(arguments, name) for name in ("most_k", "most_rows", "batch_rows")}
    for name in ("host", "uri_prefix"):
        if (value := getattr(arguments, name)) is not None:
            given[name] = value
    if arguments.most_bytes is not None:
        given["most_bytes"] = parse_bytes(arguments.most_bytes, "--most-bytes")
    for name in ("timeout", "reload"):
        if (value := getattr(arguments, name)) is not None:
            given[name] = parse_seconds(value, f"--{name}")
    if arguments.token_file is not None:
        given["token"] = read_token(arguments.token_file)
    serve(ServeOptions(arguments.model, **given))
