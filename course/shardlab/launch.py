"""`launch(fn, world_size=4)`: run a function on real ranks and see what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardlab.rank_set import RankSet
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
    """Run ``fn(*args)`` on ``world_size`` processes with torch.distributed initialised.

    rank0 fn(...)  rank1 fn(...)  ...   ->   run.outputs == [what rank 0 returned, rank 1, ...]

    ``inputs``: a value for each rank; then ``fn(inputs[rank], *args)`` runs.
    ``timeout_s``: the run is ended after it; a hang is found long before.
    ``device``: "cpu" (gloo), "cuda" (NCCL, one GPU per rank), "auto": cuda where there are enough.
    ``seed``: rank r of every run with the same seed draws the same numbers, and others than rank
    r + 1; None draws afresh.
    ``quiet``: show nothing while it runs; ``run.stdout`` holds it all the same.
    ``memory``: follow every tensor's storage, for ``run.memory``; it slows each operator.
    ``engine``: "deepspeed" ranks have DeepSpeed loaded and settled (ranks/engines.py); "auto" is
    that where ``fn`` or its arguments name ``deepspeed``, else "torch".

    `RankSet` (rank_set.py) keeps its ranks for several functions, and has what only a grader needs.

    Raises RankError, DeadlockError or RunTimeout (all LaunchError, with ``.run``, the partial run),
    and ValueError or TypeError for arguments that cannot work.
    """
    with RankSet(
        world_size, timeout_s=timeout_s, device=device, quiet=quiet, engine=engine
    ) as ranks:
        return ranks.run(fn, *args, inputs=inputs, seed=seed, memory=memory)
