"""The manifests of examples/kubernetes: what operators need of them; that they fit the image and the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dslide.cli import train
from dslide.cli.parser import Parser
from dslide.launch.mpiexec import Host, read_hosts

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "Containerfile").read_text()
USER, PORT, HOME = 1000, 2222, "/home/dslide"
# As the MPI operator and Trainer write /etc/mpi/hostfile for `mpiImplementation: OpenMPI`.
HOST_FILE = "dslide-worker-0.dslide.default.svc slots=1\ndslide-worker-1.dslide.default.svc slots=2\n"


def manifest(file: str, kind: str) -> Any:
    (found,) = (
        part for part in yaml.safe_load_all((ROOT / "examples/kubernetes" / file).read_text()) if part["kind"] == kind
    )
    return found


def mpi_job_pods() -> tuple[Any, Any]:
    replicas = manifest("mpijob.yaml", "MPIJob")["spec"]["mpiReplicaSpecs"]
    assert set(replicas) == {"Launcher", "Worker"}
    return replicas["Launcher"]["template"]["spec"], replicas["Worker"]["template"]["spec"]


def runtime_pods() -> tuple[Any, Any]:
    jobs = manifest("trainjob.yaml", "TrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"]
    pods = {job["name"]: job["template"]["spec"]["template"]["spec"] for job in jobs}
    return pods["launcher"], pods["node"]


def claims(value: Any) -> Iterator[str]:
    """The names of the claims that a manifest mounts."""
    if isinstance(value, dict):
        if "claimName" in value:
            yield value["claimName"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from claims(part)


@pytest.mark.parametrize("pods", [mpi_job_pods, runtime_pods])
def test_pods_fit_the_image(pods: Any) -> None:
    for pod in pods():
        assert pod["securityContext"] == {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
        (container,) = pod["containers"]
        assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    launcher, worker = (pod["containers"][0] for pod in pods())
    assert launcher["image"] == worker["image"]
    assert worker["command"] == ["sshd-worker"]
    assert worker["ports"][0]["containerPort"] == worker["readinessProbe"]["tcpSocket"]["port"] == PORT
    assert {mount["mountPath"] for mount in worker["volumeMounts"]} >= {"/dev/shm"}
    assert f"useradd --uid {USER} --create-home" in IMAGE
    assert IMAGE.count(f"'Port {PORT}'") == 2  # of ssh and of sshd
    assert f"'HostKey {HOME}/.ssh/id_rsa'" in IMAGE
    assert "/usr/local/bin/sshd-worker" in IMAGE


def test_operators_find_what_they_need() -> None:
    job = manifest("mpijob.yaml", "MPIJob")
    assert job["apiVersion"] == "kubeflow.org/v2beta1"
    assert (job["spec"]["mpiImplementation"], job["spec"]["sshAuthMountPath"]) == ("OpenMPI", f"{HOME}/.ssh")
    assert job["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"

    runtime, train = manifest("trainjob.yaml", "TrainingRuntime"), manifest("trainjob.yaml", "TrainJob")
    assert runtime["apiVersion"] == train["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    reference = train["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    mpi = runtime["spec"]["mlPolicy"]["mpi"]
    assert (mpi["mpiImplementation"], mpi["sshAuthMountPath"]) == ("OpenMPI", f"{HOME}/.ssh")
    assert mpi["runLauncherAsNode"] is False  # the launcher trains nothing, and has no sshd
    launcher = runtime["spec"]["template"]["spec"]["replicatedJobs"][1]
    labels = launcher["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}  # gets the command of the TrainJob
    assert [pod["containers"][0]["name"] for pod in runtime_pods()] == ["node", "node"]


def test_claims_are_those_of_the_data() -> None:
    name = manifest("data.yaml", "PersistentVolumeClaim")["metadata"]["name"]
    named = [*claims(manifest("mpijob.yaml", "MPIJob")), *claims(manifest("trainjob.yaml", "TrainingRuntime"))]
    assert named == [name] * 4


@pytest.mark.parametrize(
    "container",
    [mpi_job_pods()[0]["containers"][0], manifest("trainjob.yaml", "TrainJob")["spec"]["trainer"]],
    ids=["mpijob", "trainjob"],
)
def test_the_launcher_is_a_command_of_dslide(container: dict[str, list[str]]) -> None:
    program, command, *arguments = container["command"] + container["args"]
    assert (program, command) == ("dslide", "train")
    parser = Parser(prog="dslide train")
    train.add_arguments(parser)
    parsed = parser.parse_args(arguments)
    assert (parsed.data, parsed.out, parsed.hosts) == ("/data/train.txt", "/data/run", "/etc/mpi/hostfile")
    assert parsed.elastic


def test_host_files_of_operators_are_read(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text(HOST_FILE)
    names = re.findall(r"^\S+", HOST_FILE, re.MULTILINE)
    assert read_hosts(tmp_path / "hostfile") == [Host(names[0], 1), Host(names[1], 2)]
