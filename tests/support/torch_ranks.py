"""What ranks of PyTorch do in tests: `python torch_ranks.py SCENARIO RANK SIZE FILE` joins a process group through the
file, or MPI if the file is "mpi", runs the function of this name and prints its result as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from typing import Any

import torch
import torch.distributed as dist
from support.communicator_contract import CONTRACT, LIMIT
from torch.nn.parallel import DistributedDataParallel

from dslide.errors import UserError
from dslide.torch import OutputLayer, communicator

WIDTH, LABELS, ROWS, STEPS = 33, 400, 24, 5
CUTS = [0, 9, ROWS]  # ranks have different numbers of rows
VARIANTS: list[dict[str, Any]] = [
    {"output": "full", "optimizer": "sgd"},
    {"output": "full", "loss": "sigmoid", "optimizer": "adam"},
    {"output": "cells", "random_negatives": 100, "rebuild_every": 2},
    {"output": "lsh", "random_negatives": 100, "rebuild_every": 2, "loss": "sigmoid"},
    {"output": "random", "random_negatives": 50, "active_sets": "row"},
]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step)
    labels = torch.randint(0, LABELS, (ROWS, 2), generator=random)
    labels[::4, 1] = -1
    return torch.randn(ROWS, 10, generator=random), labels


def train(rank: int, size: int, **options: Any) -> dict[str, Any]:
    """A small training with a data-parallel encoder; what this rank has of the results."""
    torch.manual_seed(0)
    encoder = torch.nn.Linear(10, WIDTH)
    model = DistributedDataParallel(encoder) if size > 1 else encoder
    layer = OutputLayer(WIDTH, LABELS, seed=1, epsilon=1e-3, threads=1, **{"wire": "float32"} | options)
    optimizer, losses = torch.optim.SGD(encoder.parameters(), lr=0.5), []
    own = slice(CUTS[rank], CUTS[rank + 1]) if size > 1 else slice(None)
    for step in range(STEPS):
        x, labels = batch(step)
        optimizer.zero_grad()
        loss = layer(model(x[own]), labels[own])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    layer.eval()
    x, labels = batch(STEPS)
    with torch.no_grad():
        h = encoder(x[own])
        return {
            "losses": losses, "encoder": encoder.weight.tolist(), "weight": layer.weight.tolist(),
            "exact": layer(h, labels[own]).item(), "log_prob": layer.log_prob(h, labels[own]).tolist(),
            "best": layer.topk(h, 3).indices.tolist(), "found": layer.topk(h, 3, approximate=True).indices.tolist(),
        }  # fmt: skip


def training(rank: int, size: int) -> list[dict[str, Any]]:
    return [train(rank, size, **variant) for variant in (*VARIANTS, VARIANTS[0] | {"wire": "bf16"})]


def contract(rank: int, size: int) -> dict[str, str]:
    """The errors of promises, each on a communicator of a group of its own."""
    errors = {}
    for name, promise in CONTRACT.items():
        comm = communicator(dist.new_group(), LIMIT)
        try:
            promise(comm)
        except Exception as error:
            errors[name] = traceback.format_exc()
            comm.fail(str(error), 1)
        finally:
            comm.close()
    return errors


def message_of(call: Any) -> str:
    try:
        call()
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def mistakes(rank: int, size: int) -> list[str]:
    """What all ranks are told; between mistakes the layer works."""
    layer = OutputLayer(WIDTH, LABELS, threads=1)
    h, labels = torch.ones(3, WIDTH), torch.arange(3)
    bad = h * (torch.nan if rank == 1 else 1)
    found = [message_of(lambda: layer(bad, labels))]
    found.append(message_of(lambda: layer(h, labels + LABELS * rank)))
    found.append(message_of(lambda: layer(h[:0], labels[:0])))
    layer(h[: 3 * rank], labels[: 3 * rank])  # a rank may have no rows
    layer.learning_rate = 0.1 * (1 + rank)
    found.append(message_of(lambda: layer(h, labels)))
    found.append(message_of(lambda: OutputLayer(WIDTH, LABELS + rank)))
    found.append(message_of(lambda: OutputLayer(WIDTH, LABELS, seed=rank)))
    found.append(message_of(lambda: OutputLayer(WIDTH, 1)))
    state = layer.state_dict()
    state["_extra_state"]["rank"] = 1 - rank
    found.append(message_of(lambda: layer.load_state_dict(state)).replace(str(rank), "OWN").replace(str(1 - rank), "X"))
    dist.destroy_process_group()
    found.append(message_of(lambda: layer(h, labels)))
    found.append(message_of(lambda: communicator()))
    return found


def together(rank: int, size: int) -> dict[str, Any]:
    """All of the above, since PyTorch takes long to start."""
    return {"training": training(rank, size), "contract": contract(rank, size), "mistakes": mistakes(rank, size)}


def lost(rank: int, size: int) -> list[str]:
    """Rank 1 joins no communicator of a second group, and stands still in the second step of a layer."""
    other = dist.new_group()
    found = [message_of(lambda: communicator(other, 1.0)) if rank == 0 else ""]
    if rank == 1:
        time.sleep(1.5)
    layer = OutputLayer(WIDTH, LABELS, threads=1, watchdog=1.0)
    h, labels = torch.ones(3, WIDTH), torch.arange(3)
    layer(h, labels)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return [*found, message_of(lambda: layer(h, labels))]


def over_mpi(rank: int, size: int) -> dict[str, Any]:
    """A layer behind given vectors: their gradient, and the layer's weights."""
    layer = OutputLayer(WIDTH, LABELS, seed=1, output="full", optimizer="sgd", wire="float32", threads=1)
    h = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    h = (h[CUTS[rank] : CUTS[rank + 1]] if size > 1 else h).requires_grad_()
    labels = batch(0)[1]
    loss = layer(h, labels[CUTS[rank] : CUTS[rank + 1]] if size > 1 else labels)
    loss.backward()
    return {"loss": loss.item(), "gradient": (h.grad / size).tolist(), "weight": layer.weight.tolist()}


def main() -> None:
    scenario, rank, size, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    if file == "mpi":
        from dslide.comm import job

        comm = job()
        found = globals()[scenario](comm.rank, comm.size)
        if everyone := comm.gather_objects("results", found):
            print(json.dumps(everyone) + "\n" if comm.rank == 0 else "", end="")
        return
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    print(json.dumps(globals()[scenario](rank, size)), flush=True)
    os._exit(0)  # PyTorch would wait for ranks that are gone


if __name__ == "__main__":
    main()
