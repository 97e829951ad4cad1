"""Device or host: where training keeps its state, and what moves between the two."""

from shardlab.placement.deepspeed_settings import of_deepspeed
from shardlab.placement.pools import DEVICE, HOST, Move, PoolError, Pools

__all__ = ["DEVICE", "HOST", "Move", "PoolError", "Pools", "of_deepspeed"]
