"""Training as a Slurm job by the script of examples/slurm, on a Slurm cluster of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.slurm_cluster import SlurmCluster, missing_programs

from dslide.data import synthesize

pytestmark = [
    pytest.mark.waiting,
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"),
]
SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sh"
LIMIT = 90  # seconds for a job to get to its next state
ENDLESS = ("--epochs", "1000000", "--checkpoint-seconds", "0.5", "--watchdog", "3")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster(4) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "toy"
    synthesize(folder, rows=400, features=300, labels=200, test_rows=50, seed=0)
    return folder


class Job:
    """A job that trains into `run`, whose output is beside it."""

    def __init__(self, cluster: SlurmCluster, nodes: int, data: Path, run: Path, *options: str) -> None:
        self._cluster, self._log, self._output = cluster, run / "log.jsonl", run.with_suffix(".out")
        size = ("--cpus-per-task=1", "--mem=0", f"--nodes={nodes}", f"--output={self._output}")
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        arguments = (str(SCRIPT), str(data / "train.txt"), str(run), "--quiet", "--hidden", "8", *options)
        self.number = cluster.run("sbatch", "--parsable", *size, *arguments, PATH=path)

    def wait_for_state(self, *states: str) -> dict[str, str]:
        """What Slurm says of the job once it is in one of these states."""
        self._wait(lambda: self._cluster.job(self.number)["JobState"] in states, f"job is {' or '.join(states)}")
        return self._cluster.job(self.number)

    def begin_again(self) -> None:
        """Slurm lets a job wait two minutes before it starts it again; some seconds it needs, lest the nodes take the
        new start for the old one, which they were told to end."""
        self.wait_for_state("PENDING")
        self._cluster.run("scontrol", "update", f"jobid={self.number}", "starttime=now+3seconds")

    def wait_for_checkpoint(self, starts: int, ranks: int) -> None:
        """Until the run was started so many times, at last on so many ranks, and saved a checkpoint since."""

        def saved() -> bool:
            all_starts = [at for at, record in enumerate(self.records()) if record["record"] == "start"]
            if len(all_starts) < starts:
                return False
            last, *later = self.records()[all_starts[-1] :]
            return last["ranks"] == ranks and any(record["record"] == "checkpoint" for record in later)

        self._wait(saved, f"start {starts} on {ranks} ranks saved a checkpoint")

    def records(self) -> list[dict[str, Any]]:
        """The log of the run, but for a line that is being written."""
        text = self._log.read_text() if self._log.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _wait(self, condition: Any, what: str) -> None:
        try:
            self._cluster.wait(condition, LIMIT, what)
        except AssertionError as error:
            printed = self._output.read_text() if self._output.exists() else ""
            pytest.fail(f"{error}\nthe job printed:\n{printed}")


def test_four_nodes_train_to_the_end(cluster: SlurmCluster, data: Path, tmp_path: Path) -> None:
    job = Job(cluster, 4, data, tmp_path / "run", "--epochs", "2", "--test", str(data / "test.txt"))
    assert job.wait_for_state("COMPLETED", "FAILED")["ExitCode"] == "0:0"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["ranks"], summary["epochs"]) == (4, 2)
    assert summary["p_at_1"] > 0.1


def test_a_run_survives_signals_requeue_and_a_lost_node(cluster: SlurmCluster, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = Job(cluster, 2, data, run, *ENDLESS)
    job.wait_for_checkpoint(starts=1, ranks=2)

    cluster.run("scancel", "--signal=INT", job.number)  # the user stops it
    assert job.wait_for_state("FAILED", "COMPLETED")["ExitCode"] == "130:0"
    assert "the network is saved" in run.with_suffix(".out").read_text()

    job = Job(cluster, 2, data, run, *ENDLESS)  # and goes on with it
    job.wait_for_checkpoint(starts=2, ranks=2)
    cluster.run("scancel", "--signal=TERM", job.number)  # as Slurm does before the time limit
    job.begin_again()
    job.wait_for_checkpoint(starts=3, ranks=2)

    cluster.lose_node("n2")
    job.begin_again()
    job.wait_for_checkpoint(starts=4, ranks=2)
    assert cluster.job(job.number)["NodeList"] in ("n[1,3]", "n[1,4]", "n[3-4]")
    cluster.run("scancel", "--signal=INT", job.number)
    job.wait_for_state("FAILED")

    steps = [record["of_step"] for record in job.records() if record["record"] == "checkpoint"]
    assert steps == sorted(steps)  # each start went on where the last one had been
