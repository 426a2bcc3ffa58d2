"""What ranks of PyTorch's DistributedDataParallel have in common."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ALONE_SECONDS = 3.0  # in which steps without exchange are timed, at least one


def gathered(value: float) -> list[float]:
    """The value of each rank, on all of them."""
    every = torch.zeros(dist.get_world_size(), dtype=torch.float64)
    dist.all_gather_into_tensor(every, torch.tensor([value], dtype=torch.float64))
    return every.tolist()


def exchange_share(parallel: DistributedDataParallel, step: Callable[[], int], seconds: float) -> float:
    """The share by which a step of so many seconds takes longer than one without exchange of gradients. Such steps come
    last: the ranks' weights differ after them."""
    begin, steps = time.perf_counter(), 0
    with parallel.no_sync():
        while steps == 0 or time.perf_counter() - begin < ALONE_SECONDS:
            step()
            steps += 1
    return max(0.0, 1 - (time.perf_counter() - begin) / steps / seconds)
