"""Formulas for the bytes, memory and time that a run should need. They start no processes."""

from shardlab.estimate import activations, checkpoint, hybrid_sharding, memory, offload, traffic
from shardlab.estimate.alpha_beta import AlphaBeta
from shardlab.estimate.collectives import (
    hub_sent_bytes,
    ring_messages,
    ring_sent_bytes,
    scatter_or_gather_sent_bytes,
)

__all__ = [
    "AlphaBeta",
    "activations",
    "checkpoint",
    "hub_sent_bytes",
    "hybrid_sharding",
    "memory",
    "offload",
    "ring_messages",
    "ring_sent_bytes",
    "scatter_or_gather_sent_bytes",
    "traffic",
]
