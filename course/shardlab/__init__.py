"""Shardlab: real ranks at the speed of a function call, measured and explained."""

from shardlab.errors import DeadlockError, LaunchError, RankError, RunTimeout
from shardlab.run import Block, Call, Run, Traffic

__all__ = [
    "Block",
    "Call",
    "DeadlockError",
    "LaunchError",
    "RankError",
    "Run",
    "RunTimeout",
    "Traffic",
]
