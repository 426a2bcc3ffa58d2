"""The exchanges of a training step and nothing else, as a job on a lab."""

from __future__ import annotations

import os
import statistics
import time

from bench.cluster.labs import network_config
from dslide import Config, _core
from dslide.comm import Communicator, job
from dslide.model.collectives import SUMMARY
from dslide.model.defaults import resolve
from dslide.model.micro_batches import micro_batches


def rounds(config: Config, labels: int, ranks: int) -> list[list[int]]:
    """Sizes of the messages to each rank in each round of a step, for a network with one hidden layer."""
    config = resolve(config, labels)
    parts = [end - begin for begin, end in micro_batches(config.batch_size, config.micro_batches)]
    values = [_core.wire_size(part, -(-config.hidden[0] // ranks), config.wire) for part in parts]
    return [
        values,
        [4 * part * config.hits_per_row for part in parts],
        [8 * part for part in parts],
        [*values, SUMMARY.size],
    ]


def exchange(comm: Communicator, sizes: list[list[int]], content: memoryview) -> None:
    """The messages of a step; each round begins when the one before has arrived."""
    for messages in sizes:
        flights = [comm.post("exchange", [content[:size]] * comm.size) for size in messages]
        for flight in flights:
            flight.wait()


def time_step(lab: str, labels: int, seconds: float) -> dict[str, float]:
    """Median seconds of a step's exchanges, repeated for so many seconds by rank 0's clock, and this rank's processor
    seconds in each, polling for messages included. Called on every rank."""
    comm = job()
    sizes = rounds(network_config(), labels, comm.size)
    content, times = memoryview(os.urandom(max(map(max, sizes)))), []
    start, over, busy = time.perf_counter(), False, time.process_time()
    while not over:
        begin = time.perf_counter()
        exchange(comm, sizes, content)
        times.append(time.perf_counter() - begin)
        if len(times) % 10 == 0:
            over = comm.gather_objects("over", time.perf_counter() - start > seconds)[0]
    busy = (time.process_time() - busy) / len(times)
    comm.barrier("end")
    return {"seconds": statistics.median(times), "busy": busy}
