"""Bytes and messages that collectives need, by algorithm, for a tensor of S bytes on N ranks.

Ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69(2), 2009. No all-reduce sends fewer bytes per rank.
"""

from __future__ import annotations

REDUCE_SCATTERS = ("ring", "gloo")


def ring_sent_bytes(tensor_bytes: float, world_size: int) -> float:
    """Bytes that each rank sends in a ring all-reduce: 2(N−1)/N·S. It receives as many."""
    return 2 * scatter_or_gather_sent_bytes(tensor_bytes, world_size)


def scatter_or_gather_sent_bytes(tensor_bytes: float, world_size: int) -> float:
    """Bytes that each rank sends in a ring reduce-scatter or a ring all-gather: (N−1)/N·S.

    ``tensor_bytes``: the whole tensor, which is reduce-scatter's input and all-gather's output.
    """
    _check(tensor_bytes, world_size)
    return (world_size - 1) * tensor_bytes / world_size


def reduce_scatter_sent_bytes(
    tensor_bytes: float, world_size: int, implementation: str = "ring"
) -> float:
    """Bytes that each rank sends in a reduce-scatter.

    implementation: "ring" as in NCCL; "gloo" implements it as an all-reduce, twice the bytes.
    """
    if implementation not in REDUCE_SCATTERS:
        known = ", ".join(REDUCE_SCATTERS)
        raise ValueError(f"reduce_scatter={implementation!r}: expected one of {known}")
    sent = ring_sent_bytes if implementation == "gloo" else scatter_or_gather_sent_bytes
    return sent(tensor_bytes, world_size)


def ring_messages(world_size: int) -> int:
    """Number of sequential messages in a ring all-reduce: 2(N−1)."""
    _check(0, world_size)
    return 2 * (world_size - 1)


def hub_sent_bytes(tensor_bytes: float, world_size: int) -> list[float]:
    """[N] bytes sent per rank if rank 0 reduces for all: (N−1)·S by rank 0, S by each other rank.

    Rank 0 receives as many bytes as it sends, so 2(N−1)·S pass through it.
    """
    _check(tensor_bytes, world_size)
    return [(world_size - 1) * tensor_bytes] + [tensor_bytes] * (world_size - 1)


def _check(tensor_bytes: float, world_size: int) -> None:
    if world_size < 1:
        raise ValueError(f"world_size={world_size}: needs at least one rank")
    if tensor_bytes < 0:
        raise ValueError(f"tensor_bytes={tensor_bytes}: must not be negative")
