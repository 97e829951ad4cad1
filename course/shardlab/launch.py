"""`launch(fn, world_size=4)`: run a function on real ranks and see what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardlab.rank_set import OUTPUT_BYTES, RankSet
from shardlab.ranks.client import Host
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
    results: str = "any",
    memory: bool = False,
    engine: str = "auto",
    host: Host | None = None,
    may_connect: bool = True,
    patience: float = 1.0,
    output_bytes: int = OUTPUT_BYTES,
) -> Run:
    """Run ``fn(*args)`` on ``world_size`` processes with torch.distributed initialised.

    rank0 fn(...)  rank1 fn(...)  ...   ->   run.outputs == [what rank 0 returned, rank 1, ...]

    ``inputs``: a value for each rank; then ``fn(inputs[rank], *args)`` runs.
    ``timeout_s``: the run is ended after it; a hang is found long before.
    ``device``: "cpu" (gloo), "cuda" (NCCL, one GPU per rank), "auto": cuda where there are enough.
    ``seed``: rank r of every run with the same seed draws the same numbers, and others than rank
    r + 1; None draws afresh.
    ``quiet``: show nothing while it runs; ``run.stdout`` holds it all the same.
    ``results``: "any" Python object, or "plain" data that is read without unpickling.
    ``memory``: follow every tensor's storage, for ``run.memory``; it slows each operator.
    ``engine``: "deepspeed" ranks have DeepSpeed loaded and settled (ranks/engines.py); "auto" is
    that where ``fn`` or its arguments name ``deepspeed``, else "torch".
    ``host``: who forks the ranks, a sandbox say; by default a rank server of this process.
    ``may_connect``: False keeps a sandbox's ranks to the connections that they have at the start.
    ``patience``: above 1, what ranks wait for a busy machine's processors does not count, and only
    after so many times ``timeout_s`` it is MachineTooBusy; and whom an error blames does not hang
    on which rank was first by a moment.
    ``output_bytes``: the most that all ranks together may return.

    Raises RankError, DeadlockError or RunTimeout (all LaunchError, with ``.run``, the partial run),
    and ValueError or TypeError for arguments that cannot work.
    """
    with RankSet(
        world_size,
        timeout_s=timeout_s,
        device=device,
        quiet=quiet,
        engine=engine,
        host=host,
        may_connect=may_connect,
        patience=patience,
    ) as ranks:
        return ranks.run(
            fn,
            *args,
            inputs=inputs,
            seed=seed,
            results=results,
            memory=memory,
            output_bytes=output_bytes,
        )
