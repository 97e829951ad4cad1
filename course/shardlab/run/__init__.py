"""The result of a launch: outputs, printed text, traffic, calls and memory, by rank."""

from shardlab.run.live_memory import Memory
from shardlab.run.result import Call, MeasuredBlock, Run, Traffic

__all__ = ["Call", "MeasuredBlock", "Memory", "Run", "Traffic"]
