"""Messages, bytes and whole parameters of one step under FSDP, from the sizes of its units.

A unit is what one call of ``fully_shard`` gathers at once.  Each rank keeps 1/N of every unit.  A
step all-gathers a unit before its forward, frees it, gathers it again before its backward, frees
it and reduce-scatters its gradients.  The root, which holds what no other unit has, stays whole
from forward to backward.

PyTorch 2.13's ``fully_shard`` and its ``reshard_after_forward``; Zhao et al., "PyTorch FSDP",
arXiv 2304.11277: at its peak a rank holds its shards and the largest unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.estimate.collectives import (
    reduce_scatter_sent_bytes,
    scatter_or_gather_sent_bytes,
)


@dataclass(frozen=True)
class UnitStep:
    """One step of one rank.  Bytes without padding, and without copies that collectives need."""

    all_gathers: int
    reduce_scatters: int
    sent_bytes: float
    kept_bytes: float  # gathered parameters held between forward and backward
    peak_parameter_bytes: float  # the rank's shards, and gathered parameters at their peak

    @property
    def messages(self) -> int:
        return self.all_gathers + self.reduce_scatters


def unit_step(
    units: Sequence[float],
    world_size: int,
    *,
    root: float = 0,
    reshard_after_forward: bool | int = True,
    element_bytes: float = 4,
    reduce_scatter: str = "ring",
) -> UnitStep:
    """A training step with one micro-batch.

    units: elements of each unit, in the order of forward.
    root: elements of the outermost unit; 0: there are none outside of ``units``.
    reshard_after_forward: True frees a unit after its forward, False keeps it whole until its
      backward, and a number m keeps 1/m of it, so that m ranks are enough to gather it again.
    reduce_scatter: "ring" as in NCCL; "gloo" implements it as an all-reduce, twice the bytes.

    Raises ValueError for invalid arguments.
    """
    if min([root, *units]) < 0 or element_bytes <= 0:
        raise ValueError("elements must not be negative, and element_bytes must be above 0")
    gather_again = _ranks_that_gather_again(reshard_after_forward, world_size)
    stays_whole = reshard_after_forward is False
    kept_share = 1 / gather_again if stays_whole or gather_again < world_size else 0.0
    roots = [root] if root else []
    all_bytes = element_bytes * (root + sum(units))
    unit_bytes = element_bytes * sum(units)

    sent = scatter_or_gather_sent_bytes(all_bytes, world_size)
    sent += scatter_or_gather_sent_bytes(unit_bytes, gather_again)
    sent += reduce_scatter_sent_bytes(all_bytes, world_size, reduce_scatter)
    whole = [kept_share * sum(units[:i]) + unit for i, unit in enumerate(units)]
    return UnitStep(
        all_gathers=len(roots) + len(units) * (1 if stays_whole else 2),
        reduce_scatters=len(roots) + len(units),
        sent_bytes=sent,
        kept_bytes=element_bytes * root + kept_share * unit_bytes,
        peak_parameter_bytes=all_bytes / world_size
        + element_bytes * (root + max(whole, default=0)),
    )


def _ranks_that_gather_again(reshard_after_forward: bool | int, world_size: int) -> int:
    """Ranks in the all-gather before backward; 1: the unit is still whole."""
    if reshard_after_forward is True:
        return world_size
    if reshard_after_forward is False:
        return 1
    if reshard_after_forward < 2 or world_size % reshard_after_forward:
        raise ValueError(
            f"reshard_after_forward={reshard_after_forward}: must be True, False, or a number "
            f"from 2 that divides world_size={world_size}"
        )
    return reshard_after_forward
