"""How large a checkpoint is, how long it takes to write, and how often to write one.

The interval is Young's: J. W. Young, "A first order approximation to the optimum checkpoint
interval", Communications of the ACM 17 (1974).  It is valid if writing a checkpoint takes much less
time than the mean time between failures.
"""

from __future__ import annotations

import math

from shardlab.estimate.memory import check_world

BYTES_PER_PARAMETER = 14  # bf16 parameter, fp32 master, two Adam states


def checkpoint_bytes(parameters: float) -> float:
    """Parameters and Adam's states in 16-bit training: 14Ψ bytes.

    Gradients are not saved, since a step starts without them.
    """
    return BYTES_PER_PARAMETER * parameters


def held_bytes(total_bytes: float, world_size: int, sharded: bool) -> list[float]:
    """Bytes by rank while a state sharded over N ranks is being saved.

    ``sharded``: each rank saves its own shard and holds nothing else.  Otherwise rank 0 saves
    everything and also holds the whole state.  Raises ValueError for a world_size below 1.
    """
    check_world(total_bytes, world_size)
    held = [total_bytes / world_size] * world_size
    if not sharded:
        held[0] += total_bytes
    return held


def gathered_bytes(total_bytes: float, world_size: int) -> float:
    """Bytes that the other ranks send to rank 0 so that it can save: every shard but its own."""
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
    """Seconds to write a checkpoint: ranks write in parallel, up to the storage's total speed."""
    check_world(total_bytes, world_size)
    writers = world_size if sharded else 1
    return total_bytes / min(writers * rank_bytes_per_s, storage_bytes_per_s)


def overhead_fraction(interval_s: float, save_s: float, mtbf_s: float) -> float:
    """The fraction of time spent on saving and on repeating lost steps, to first order.

    ``mtbf_s``: the mean time between failures.  Each failure costs half an interval on average.

    Raises ValueError for an interval of 0.
    """
    if not interval_s > 0:
        raise ValueError(f"interval_s={interval_s}: must be above 0")
    return save_s / interval_s + interval_s / (2 * mtbf_s)


def best_interval_s(save_s: float, mtbf_s: float) -> float:
    """Young's √(2δM), at which saving and repeating lost steps cost the same time."""
    return math.sqrt(2 * save_s * mtbf_s)
