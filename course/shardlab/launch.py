"""`launch(fn, world_size=4)`: run a function on real ranks and see what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardlab import node_runs
from shardlab.errors import NodesUnavailable
from shardlab.job.environment import current as current_job
from shardlab.job.launch import launch_in_job
from shardlab.ranks.rank_set import RankSet
from shardlab.run import Run


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    inputs: Sequence[Any] | None = None,
    timeout_s: float = 30,
    device: str = "auto",
    seed: int | None = 0,
    quiet: bool = False,
    memory: bool = False,
    engine: str = "auto",
    nodes: int = 1,
    link_bits_per_s: float | None = None,
    unplug_after_s: float | tuple[float, int] | None = None,
    recorded: str = "",
) -> Run:
    """Run ``fn(*args)`` on ``world_size`` processes with torch.distributed initialized.

    rank0 fn(...)  rank1 fn(...)  ...   ->   run.outputs == [what rank 0 returned, rank 1, ...]

    ``inputs``: one value per rank; rank r runs ``fn(inputs[r], *args)``.
    ``timeout_s``: time limit of the run; a hang is detected much earlier.
    ``device``: "cpu" (gloo), "cuda" (NCCL, one GPU per rank), "auto": cuda with enough GPUs.
    ``seed``: with the same seed, rank r draws the same random numbers in every run, and each rank
    draws different ones; None picks a new seed.
    ``quiet``: do not show what ranks print; ``run.stdout`` still has everything.
    ``memory``: track every tensor's storage for ``run.memory``; this slows each operator.
    ``engine``: "deepspeed" forks ranks from a server that has imported and configured DeepSpeed
    (ranks/engines.py); "auto" does so if ``fn`` or its arguments name ``deepspeed``, else "torch".

    ``nodes``: divide the ranks equally among this many nodes, each with its own host name and
    network interface.  Ranks of one node talk over its loopback, others over a real link from each
    node to a switch.  ``run.traffic.between_nodes`` has the bytes, ``run.traffic.links`` what each
    link carried over time.  CPU ranks only.
    ``link_bits_per_s``: of each of these links, in each direction; default: what this machine can.
    ``unplug_after_s``: this many seconds after the ranks have started ``fn``, unplug the last node;
    with ``(seconds, node)``, that node.
    ``recorded``: the name of a run of the course (node_runs.py): shown, and marked as recorded, if
    this machine cannot make nodes.

    Inside a job of that size, which torchrun or Slurm has started, it runs on the job's processes:
    see job/launch.py.  Another size raises ValueError.  Its nodes and links are then the job's.

    `RankSet` (ranks/rank_set.py) runs several functions on the same ranks, with options for
    graders.

    Raises NodesUnavailable, RankError, DeadlockError or RunTimeout (all LaunchError; ``.run`` is
    the partial run), and ValueError or TypeError for invalid arguments.
    """
    if (job := current_job()) is not None:
        return launch_in_job(
            job, fn, *args, world_size=world_size, inputs=inputs, timeout_s=timeout_s,
            device=device, seed=seed, memory=memory,
        )  # fmt: skip
    ranks = RankSet(
        world_size,
        timeout_s=timeout_s,
        device=device,
        quiet=quiet,
        progress=True,
        engine=engine,
        nodes=nodes,
        link_bits_per_s=link_bits_per_s,
        unplug_after_s=unplug_after_s,
    )
    try:
        with ranks:
            run = ranks.run(fn, *args, inputs=inputs, seed=seed, memory=memory)
    except NodesUnavailable as error:
        if not recorded:
            raise
        print(f"{error.headline}.\nA recorded run is shown instead.")
        return node_runs.load(recorded)
    if recorded and node_runs.is_recording():
        node_runs.save(recorded, run)
    return run
