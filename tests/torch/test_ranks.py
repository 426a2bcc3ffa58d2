"""`dslide.torch.OutputLayer` split over ranks: of a process group of PyTorch with gloo, and of MPI."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import torch_ranks
from support.mpi_run import run_mpi
from support.torch_ranks import VARIANTS, over_mpi, train

PROGRAM = Path(torch_ranks.__file__)


def run_ranks(scenario: str, folder: Path, answers: int = 2, timeout: float = 60) -> list[Any]:
    """What each of two ranks prints, or only the first one, if the other never does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "MASTER"))}
    environment |= {"PYTHONPATH": str(PROGRAM.parents[1]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), scenario, str(rank), "2", str(folder / "group")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        found = []
        for process in processes[:answers]:
            out, errors = process.communicate(timeout=timeout)
            assert out, errors
            found.append(json.loads(out.splitlines()[-1]))
        return found
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


def joined(parts: list[Any]) -> torch.Tensor:
    """Every other label is of the other rank."""
    whole = torch.empty(sum(map(len, parts)), len(parts[0][0]))
    for rank, part in enumerate(parts):
        whole[rank :: len(parts)] = torch.tensor(part)
    return whole


def every(lists: Iterable[list[Any]]) -> list[Any]:
    return list(itertools.chain(*lists))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    torch.set_num_threads(1)
    return run_ranks("together", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_ranks_with_a_data_parallel_encoder_equal_one_process(ranks: list[Any], number: int) -> None:
    """Whatever rows each has: losses, the encoder's weights, the layer's, predictions. (Numbers cross as float32.)"""
    one, parts = train(0, 1, **VARIANTS[number]), [rank["training"][number] for rank in ranks]
    for part in parts:
        assert part["losses"] == pytest.approx(one["losses"], rel=1e-5)
        assert part["exact"] == pytest.approx(one["exact"], rel=1e-5)
        assert torch.allclose(torch.tensor(part["encoder"]), torch.tensor(one["encoder"]), atol=1e-5)
    assert torch.allclose(joined([part["weight"] for part in parts]), torch.tensor(one["weight"]), atol=1e-4)
    for what in ("best", "found"):
        assert every(part[what] for part in parts) == one[what]
    logs = torch.tensor(every(part["log_prob"] for part in parts))
    assert torch.allclose(logs, torch.tensor(one["log_prob"]), atol=1e-4)


def test_16_bit_numbers_between_ranks_change_little(ranks: list[Any]) -> None:
    one, losses = train(0, 1, **VARIANTS[0]), ranks[0]["training"][-1]["losses"]
    assert losses == pytest.approx(one["losses"], rel=1e-2)
    assert losses != one["losses"]


def test_communicators_of_process_groups_keep_the_contract(ranks: list[Any]) -> None:
    assert [rank["contract"] for rank in ranks] == [{}, {}]


def test_mistakes_are_known_to_all_ranks(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["mistakes"] == [
            "DataError: rank 1: h: row 0 has a number that is not finite",
            "DataError: rank 1: labels: row 0 has label 400, expected 0 to 399",
            "DataError: the batch is empty, expected at least one row with a label",
            "ConfigError: ranks don't agree on the learning rate: rank 0 has 0.1, rank 1 has 0.2",
            "ConfigError: ranks don't agree on labels: rank 0 has 400, rank 1 has 401",
            "ConfigError: ranks don't agree on seed: rank 0 has 0, rank 1 has 1",
            "ConfigError: 1 labels can't be split over 2 ranks; use fewer ranks",
            "ModelError: the state is of a layer with rank = X, but this one has OWN",
            "CommError: the process group of this output layer has ended; make the layer again in a new one",
            "CommError: there is no process group: call torch.distributed.init_process_group first",
        ]


@pytest.mark.waiting
def test_ranks_that_are_missing_are_named(tmp_path: Path) -> None:
    begin = time.monotonic()
    ((absent, stopped),) = run_ranks("lost", tmp_path, answers=1)
    assert re.fullmatch(r"CommError: not all 2 ranks have made the layer within 1 s: .*[Rr]anks? 1\b.*", absent)
    assert stopped == 'CommError: exchange "rows to learn from" of step 1: rank 1 silent for 1 s; given up'
    assert time.monotonic() - begin < 45


def test_ranks_of_mpi_equal_one_process() -> None:
    run = run_mpi(2, PROGRAM, "over_mpi", 0, 0, "mpi")
    assert run.code == 0, run
    ranks, one = json.loads(run.stdout.splitlines()[-1]), over_mpi(0, 1)
    assert [rank["loss"] for rank in ranks] == pytest.approx([one["loss"]] * 2, rel=1e-5)
    gradient = torch.tensor(every(rank["gradient"] for rank in ranks))
    assert torch.allclose(gradient, torch.tensor(one["gradient"]), atol=1e-7)
    assert torch.allclose(joined([rank["weight"] for rank in ranks]), torch.tensor(one["weight"]), atol=1e-6)
