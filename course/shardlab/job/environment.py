"""Whether this process belongs to a job, and which rank it is: read from the environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from shardlab.trace import measure

# Where srun sets no port: the same on all nodes, and another one for each job (as Lightning does).
FIRST_PORT, PORTS = 20_000, 20_000


@dataclass(frozen=True)
class Job:
    """``starter``: for messages, such as "torchrun"."""

    starter: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int

    def variables(self) -> dict[str, str]:
        """What torchrun sets, and ``env://`` reads."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }


def current(environ: Mapping[str, str] = os.environ) -> Job | None:
    """This process's job; None outside of one, on a rank of `launch`, and in a job of one process.

    A job of one process is how many clusters start a notebook: its launches start their own ranks.
    """
    if measure.recorder is not None and not measure.recorder.in_job:
        return None
    job = _of_torchrun(environ) or _of_slurm(environ)
    return job if job is not None and job.world_size > 1 else None


def _of_torchrun(environ: Mapping[str, str]) -> Job | None:
    """The variables that torchrun sets, PyTorchJob, DeepSpeed, and mpirun's users by hand.

    DeepSpeed's launcher calls the number of a node's processes LOCAL_SIZE.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        return None
    rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    return Job(
        "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "the job",
        rank,
        world_size,
        int(environ.get("LOCAL_RANK", rank)),
        int(environ.get("LOCAL_WORLD_SIZE") or environ.get("LOCAL_SIZE") or world_size),
        environ["MASTER_ADDR"],
        int(environ["MASTER_PORT"]),
    )


def _of_slurm(environ: Mapping[str, str]) -> Job | None:
    """A task of `srun`.  The batch script itself is none: it has no step."""
    if not {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"} <= environ.keys():
        return None
    if (world_size := int(environ["SLURM_STEP_NUM_TASKS"])) < 2:
        return None
    on_nodes = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", str(world_size)))
    port = FIRST_PORT + int(environ.get("SLURM_JOB_ID", 0)) % PORTS
    return Job(
        "Slurm",
        int(environ["SLURM_PROCID"]),
        world_size,
        int(environ.get("SLURM_LOCALID", 0)),
        on_nodes[int(environ.get("SLURM_NODEID", 0))],
        environ.get("MASTER_ADDR") or _first_node(environ),
        int(environ.get("MASTER_PORT") or port),
    )


def tasks_per_node(text: str) -> list[int]:
    """Slurm's ``2(x3),1`` -> [2, 2, 2, 1]"""
    found = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        found += [int(count)] * int(times.rstrip(")") or 1)
    return found


def _first_node(environ: Mapping[str, str]) -> str:
    """Raises RuntimeError if scontrol cannot say it."""
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return listed[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        raise RuntimeError(
            f"scontrol does not list the nodes of this job ({nodes!r}): set MASTER_ADDR to the "
            "name of its first node before srun"
        ) from None
