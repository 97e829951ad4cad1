"""Which job a process belongs to, from its environment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardlab.job.environment import current, tasks_per_node
from shardlab.trace import measure

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "7",
}
SRUN = {
    "SLURM_JOB_ID": "40123",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "MASTER_ADDR": "node-1",
}


def test_a_worker_of_torchrun() -> None:
    job = current(TORCHRUN)
    assert job is not None
    assert (job.starter, job.rank, job.world_size) == ("torchrun", 5, 8)
    assert job.variables() == {k: v for k, v in TORCHRUN.items() if k != "TORCHELASTIC_RUN_ID"}


def test_a_process_of_deepspeeds_launcher() -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    others = {"LOCAL_SIZE": "4", "CROSS_RANK": "1", "CROSS_SIZE": "2"}
    job = current({name: TORCHRUN[name] for name in names} | others)
    assert job is not None
    assert (job.starter, job.rank, job.local_world_size) == ("the job", 5, 4)


def test_a_task_of_srun_gets_a_port_that_all_tasks_of_its_job_compute() -> None:
    job = current(SRUN)
    assert job is not None
    assert (job.starter, job.rank, job.world_size) == ("Slurm", 3, 5)
    assert (job.local_rank, job.local_world_size) == (1, 2)
    assert (job.master_addr, job.master_port) == ("node-1", 20_123)


def test_without_scontrol_an_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="set MASTER_ADDR"):
        current({k: v for k, v in SRUN.items() if k != "MASTER_ADDR"})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "4"},  # what a rank of `launch` passes to its children
        TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"},
        {k: v for k, v in SRUN.items() if k != "SLURM_STEP_ID"},  # the batch script
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # a notebook on a cluster
    ],
)
def test_no_job(environ: dict[str, str]) -> None:
    assert current(environ) is None


def test_a_rank_of_launch_is_in_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder: Any = SimpleNamespace(in_job=False)
    monkeypatch.setattr(measure, "recorder", recorder)
    assert current(TORCHRUN) is None
    recorder.in_job = True
    assert current(TORCHRUN) is not None


def test_tasks_per_node_as_slurm_writes_them() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("4") == [4]
