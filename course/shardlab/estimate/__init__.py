"""Pure formulas that start no processes: what a run should send and how long it should take."""

from shardlab.estimate import activations, checkpoint, memory, offload, traffic
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
    "memory",
    "offload",
    "ring_messages",
    "ring_sent_bytes",
    "scatter_or_gather_sent_bytes",
    "traffic",
]
