"""`launch` inside a job: the job's processes are the ranks.

Every process of the job runs the same script, so every one calls `launch`, with the same arguments,
and gets the same Run, with the outputs of all ranks.  The first launch makes the process group if
the script has not: NCCL with a GPU for each rank on every node, else gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardlab.job.environment import Job
from shardlab.ranks.rank_set import check_run
from shardlab.run import Run

_ranks: dict[str, Any] = {}  # by device: this process's JobRanks


def launch_in_job(
    job: Job,
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    inputs: Sequence[Any] | None,
    timeout_s: float,
    device: str,
    seed: int | None,
    memory: bool,
) -> Run:
    """Raises ValueError if the job has another size."""
    if world_size != job.world_size:
        raise ValueError(
            f"launch(…, world_size={world_size}) inside a job of {job.world_size} processes "
            f"({job.starter}): start it with {world_size}, or pass world_size={job.world_size}"
        )
    check_run(fn, world_size, inputs, seed, "any")
    return ranks_of(job, device).run(
        fn, *args, inputs=inputs, seed=seed, memory=memory, timeout_s=timeout_s
    )


def ranks_of(job: Job, device: str) -> Any:
    """This process's part of the job's ranks, made at the first use.

    Raises ValueError if an earlier launch has used another device: there is one process group.
    """
    from shardlab.job.ranks import JobRanks  # torch takes seconds to import

    if not _ranks:
        _ranks[device] = JobRanks(job, device)
    ((known, ranks),) = _ranks.items()
    if device not in (known, "auto", ranks.device):
        raise ValueError(
            f"device={device!r}, but this job's process group was made for {ranks.device!r}: "
            "pass the same device to every launch"
        )
    return ranks
