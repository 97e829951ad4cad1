"""`launch(fn, world_size=4)`: run a function on real ranks and see what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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

    `RankSet` (ranks/rank_set.py) runs several functions on the same ranks, with options for
    graders.

    Raises RankError, DeadlockError or RunTimeout (all LaunchError; ``.run`` is the partial run),
    and ValueError or TypeError for invalid arguments.
    """
    with RankSet(
        world_size, timeout_s=timeout_s, device=device, quiet=quiet, progress=True, engine=engine
    ) as ranks:
        return ranks.run(fn, *args, inputs=inputs, seed=seed, memory=memory)
