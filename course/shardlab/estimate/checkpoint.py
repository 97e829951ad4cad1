"""How large a checkpoint is, how long it takes to write, and how often to write one.

The interval is Young's: J. W. Young, "A first order approximation to the optimum checkpoint
interval", Communications of the ACM 17 (1974).  It holds where a checkpoint takes much less time
than passes between two failures.
"""

from __future__ import annotations

import math

from shardlab.estimate.memory import check_world

MASTER_AND_STATES_BYTES = 12  # of one parameter in 16-bit training: fp32 master, Adam's two states
STATES_BYTES = 8  # in fp32 training the parameter is its own master


def checkpoint_bytes(parameters: float, element_bytes: int = 2) -> float:
    """Parameters and Adam's states, each once: 14Ψ bytes in 16-bit training, 12Ψ in fp32.

    Gradients are not saved: a step begins without them.
    """
    states = STATES_BYTES if element_bytes == 4 else MASTER_AND_STATES_BYTES
    return (element_bytes + states) * parameters


def held_bytes(total_bytes: float, world_size: int, sharded: bool) -> list[float]:
    """By rank, what it holds of a state that lies in N slices while that state is saved.

    Sharded, its slice.  Through rank 0, that rank holds the whole besides.  Raises ValueError for a
    world_size below 1.
    """
    check_world(total_bytes, world_size)
    held = [total_bytes / world_size] * world_size
    if not sharded:
        held[0] += total_bytes
    return held


def gathered_bytes(total_bytes: float, world_size: int) -> float:
    """What all ranks together send to rank 0, for it to save: every slice but its own."""
    check_world(total_bytes, world_size)
    return total_bytes * (world_size - 1) / world_size


def save_s(
    total_bytes: float,
    world_size: int,
    *,
    rank_bytes_per_s: float,
    storage_bytes_per_s: float = math.inf,
    sharded: bool = True,
) -> float:
    """Seconds to write a checkpoint: each writer at its own speed, all at the storage's at most."""
    check_world(total_bytes, world_size)
    writers = world_size if sharded else 1
    return total_bytes / min(writers * rank_bytes_per_s, storage_bytes_per_s)


def lost_share(interval_s: float, save_s: float, failure_s: float, restart_s: float = 0.0) -> float:
    """Of all time, to first order: what is spent on saving, and on doing steps over.

    ``failure_s``: the mean time between two failures.  Each costs half an interval on average, and
    ``restart_s``.  Raises ValueError for an interval of 0.
    """
    if not interval_s > 0:
        raise ValueError(f"interval_s={interval_s}: save after some time")
    return save_s / interval_s + (interval_s / 2 + restart_s) / failure_s


def best_interval_s(save_s: float, failure_s: float) -> float:
    """√(2δM), Young's: then as much time is lost to saving as to steps that are done over."""
    return math.sqrt(2 * save_s * failure_s)
