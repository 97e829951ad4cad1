"""Bytes that a rank sends under hybrid sharding (HSDP): shards in a group, replicas across groups.

Ranks form a mesh of R groups (rows) with S ranks each.  The ranks of a row share one set of shards;
those of a column hold the same shard.  In PyTorch: ``fully_shard`` on a mesh (replicate, shard).

Zhang et al., "MiCS: near-linear scaling for training gigantic model on public cloud",
arXiv 2205.00119, 2022, section 3.
"""

from __future__ import annotations

from typing import NamedTuple

from shardlab.estimate.collectives import (
    reduce_scatter_sent_bytes,
    ring_sent_bytes,
    scatter_or_gather_sent_bytes,
)

SYNCS = ("micro_batch", "step")


class HybridBytes(NamedTuple):
    """Bytes that each rank sends in one optimizer step."""

    within: float  # to ranks of its group
    across: float  # to ranks of other groups

    def seconds(self, within_bytes_per_s: float, across_bytes_per_s: float) -> float:
        """Time on two kinds of links, one after the other, without latency.

        Raises ValueError for a speed that is not above 0.
        """
        if min(within_bytes_per_s, across_bytes_per_s) <= 0:
            raise ValueError("both speeds must be above 0 bytes per second")
        return self.within / within_bytes_per_s + self.across / across_bytes_per_s


def sent_bytes(
    parameters: float,
    groups: int,
    shards: int,
    *,
    parameter_bytes: float = 4,
    gradient_bytes: float = 4,
    gathers: float = 2,
    micro_batches: int = 1,
    sync: str = "micro_batch",
    reduce_scatter: str = "ring",
) -> HybridBytes:
    """Bytes that each rank sends in one optimizer step.

        within  gathers · (S−1)/S·Ψ of parameters + (S−1)/S·Ψ of gradients, for each micro-batch
        across  2(R−1)/R · Ψ/S of gradients: an all-reduce of the rank's own shard

    groups, shards: R and S.  R = 1 is FSDP on S ranks, S = 1 is DDP on R ranks.
    parameter_bytes, gradient_bytes: bytes of one element as it is sent.
    gathers: all-gathers of a parameter in one micro-batch.  2 if it is freed after forward, 1 if
        not; in between for the mean of a model in which some are kept.
    sync: whether gradients are all-reduced across groups after every "micro_batch", or once per
        "step" (``set_requires_all_reduce``).
    reduce_scatter: "ring" as in NCCL; "gloo" implements it as an all-reduce, twice the bytes.

    Raises ValueError for invalid arguments.
    """
    if min(groups, shards, micro_batches) < 1:
        raise ValueError("groups, shards and micro_batches must be 1 or more")
    if min(parameters, parameter_bytes, gradient_bytes, gathers) <= 0:
        raise ValueError("parameters, bytes of an element and gathers must be above 0")
    if sync not in SYNCS:
        raise ValueError(f"sync={sync!r}: expected one of {', '.join(SYNCS)}")
    all_gradients = parameters * gradient_bytes
    gathered = gathers * scatter_or_gather_sent_bytes(parameters * parameter_bytes, shards)
    reduced = reduce_scatter_sent_bytes(all_gradients, shards, reduce_scatter)
    all_reduces = micro_batches if sync == "micro_batch" else 1
    return HybridBytes(
        within=micro_batches * (gathered + reduced),
        across=all_reduces * ring_sent_bytes(all_gradients / shards, groups),
    )
