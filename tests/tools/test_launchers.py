"""The templates of docs/many-nodes that start an exported function with another launcher."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardlab.__main__ import main as shardlab
from tests.running_lab import ROOT
from tests.torchrun import QUIET
from tests.two_nodes import ends, remote_shell, two_nodes
from tools import launchers

TEMPLATES = ROOT / "docs/many-nodes"
PROGRAMS = Path(sys.executable).parent

# Without Munge and cgroups; the nodes claim the 8 cores that the template asks for.
SLURM = """
ClusterName=two
SlurmctldHost=node-a
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
NodeName=node-a,node-b CPUs=8
PartitionName=all Nodes=ALL Default=YES
"""
IN_SLURM = """
import torch
import torch.distributed as dist
from shardlab import launch

def total():
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor)
    return tensor.item()

run = launch(total, world_size=4, device="cpu")
print(f"outputs: {run.outputs}\\n", end="")
"""
PASSED_ON = r"""
print(f"passed on: {[name for name in ('MINE', 'IN_FILE') if name in os.environ]}\n", end="")
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root"),
    pytest.mark.long,
    pytest.mark.ranks,
]


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips where one is missing, except in CI."""
    why = launchers.missing(*programs)
    return pytest.mark.skipif(bool(why) and "SHARDLAB_NEEDS_BROWSER" not in os.environ, reason=why)


needs_slurm = needs("sbatch", "slurmctld", "slurmd")


def export(folder: Path) -> None:
    """script.py"""
    path = folder / "script.py"
    assert shardlab(["export", "03", "all_reduce", "--launch", "1", "--to", str(path)]) == 0


def results(printed: str) -> list[tuple[str, str]]:
    """(node, rank) of each rank that returned the right sum, in the order of ranks."""
    found = re.findall(r"^(node-\w): rank (\d) returned 6.0$", printed, re.MULTILINE)
    return sorted(found, key=lambda each: each[1])


@needs("pdsh")
def test_deepspeeds_launcher_with_a_hostfile(tmp_path: Path) -> None:
    export(tmp_path)
    with (tmp_path / "script.py").open("a") as script:
        script.write(PASSED_ON)
    hosts = (TEMPLATES / "hostfile").read_text().replace("slots=4", "slots=2")
    (tmp_path / "hostfile").write_text(hosts)
    variables = {**QUIET, "GLOO_SOCKET_IFNAME": "eth0", "IN_FILE": "1"}
    lines = [f"{name}={value}\n" for name, value in variables.items()]
    (tmp_path / ".deepspeed_env").write_text("".join(lines))
    command = [str(PROGRAMS / "deepspeed"), "--hostfile", "hostfile", "script.py"]
    with two_nodes(tmp_path) as start:
        path = f"{remote_shell(tmp_path)}:{os.environ['PATH']}"
        (printed,) = ends(start("a", command, PATH=path, MINE="1"))
    assert results(printed) == [
        *(("node-a", rank) for rank in "01"),
        *(("node-b", rank) for rank in "23"),
    ], printed
    assert printed.count("passed on: ['IN_FILE']") == 4


@contextmanager
def slurm(folder: Path) -> Iterator[Callable[..., str]]:
    """A function that runs a command of Slurm, whose fixed ports only these two nodes see."""
    configuration = folder / "slurm.conf"
    configuration.write_text(SLURM.format(folder=folder))
    variables = {**QUIET, "GLOO_SOCKET_IFNAME": "eth0", "SLURM_CONF": str(configuration)}
    variables["PATH"] = f"{PROGRAMS}:{os.environ['PATH']}:{launchers.SBIN}"
    with two_nodes(folder) as start:

        def run(*command: str) -> str:
            process = start("a", command, **variables)
            (printed,) = ends(process)
            assert process.returncode == 0, printed
            return printed

        daemons = [start("a", ["slurmctld", "-D"], **variables)]
        daemons += [start(n, ["slurmd", "-D", "-N", f"node-{n}"], **variables) for n in "ab"]
        try:
            wait(lambda: run("sinfo", "--noheader", "--Node", "--format=%T") == "idle\nidle\n")
            try:
                yield run
            finally:
                run("scancel", "--full", "--signal=KILL", "--user=root")
                wait(lambda: not run("squeue", "--noheader"))
        finally:
            for daemon in daemons:
                daemon.terminate()
            ends(*daemons)


def wait(until: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + 60
    while not until():
        assert time.monotonic() < limit_s


@needs_slurm
def test_slurm_runs_the_sbatch_file(tmp_path: Path) -> None:
    export(tmp_path)
    batch = (TEMPLATES / "slurm.sbatch").read_text().replace("PER_NODE=4", "PER_NODE=2")
    (tmp_path / "slurm.sbatch").write_text(batch)
    with slurm(tmp_path) as run:
        run("sbatch", "--wait", "--output=printed", "slurm.sbatch", "script.py")
    printed = (tmp_path / "printed").read_text()
    assert printed.count("nothing found that would stop torchrun") == 2
    returned = re.findall(r"^rank (\d) returned 6.0$", printed, re.MULTILINE)
    assert sorted(returned) == [*"0123"], printed


@needs_slurm
def test_a_launch_uses_the_tasks_of_srun(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(IN_SLURM)
    with slurm(tmp_path) as run:
        printed = run("srun", "--nodes=2", "--ntasks-per-node=2", "python", "script.py")
    assert printed.count("outputs: [6.0, 6.0, 6.0, 6.0]") == 4, printed
