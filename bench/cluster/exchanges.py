"""The exchanges of a training step and nothing else, as a job on a lab: `python -m bench.cluster.exchanges SECONDS
FILE` is one rank of it, and rank 0 writes the seconds that a step's exchanges take to the file."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

from dslide import Config, _core
from dslide.comm import Communicator, job
from dslide.exchange import SUMMARY
from dslide.parts import exchanged_parts
from dslide.sampler import sampling_sizes

from ..workload import BATCH, LABELS, NETWORK


def rounds(config: Config, labels: int, ranks: int) -> list[list[int]]:
    """Sizes of the messages to each rank in each round of a step, for a network with one hidden layer."""
    parts = [end - begin for begin, end in exchanged_parts(config, config.batch_size, ranks)]
    values = [_core.wire_size(part, -(-config.hidden[0] // ranks), config.wire) for part in parts]
    hits, _ = sampling_sizes(config, labels)
    return [values, [4 * part * hits for part in parts], [8 * part for part in parts], [*values, SUMMARY.size]]


def exchange(comm: Communicator, sizes: list[list[int]], content: memoryview) -> None:
    """What a step sends and gets: each round when the one before has come."""
    for messages in sizes:
        flights = [comm.post("exchange", [content[:size]] * comm.size) for size in messages]
        for flight in flights:
            flight.wait()


def per_step(comm: Communicator, seconds: float) -> dict[str, float]:
    """Seconds of a step's exchanges, the median of as many as fit into so many seconds on rank 0's clock, and this
    rank's processor seconds in each, waiting included where that looks for messages."""
    sizes = rounds(Config(**NETWORK, batch_size=BATCH), LABELS, comm.size)
    content, times = memoryview(os.urandom(max(map(max, sizes)))), []
    start, over, busy = time.perf_counter(), False, time.process_time()
    while not over:
        begin = time.perf_counter()
        exchange(comm, sizes, content)
        times.append(time.perf_counter() - begin)
        if len(times) % 10 == 0:
            over = comm.gather_objects("over", time.perf_counter() - start > seconds)[0]
    return {"seconds": statistics.median(times), "busy": (time.process_time() - busy) / len(times)}


if __name__ == "__main__":
    ranks = job()
    found = per_step(ranks, float(sys.argv[1]))
    if ranks.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))
    ranks.barrier("end")
