"""The result of a launch: outputs, printed text, traffic, calls and memory, by rank."""

from shardlab.run.call import Call, MeasuredBlock, Span
from shardlab.run.links import Links
from shardlab.run.live_memory import Memory
from shardlab.run.result import Run, Traffic

__all__ = ["Call", "Links", "MeasuredBlock", "Memory", "Run", "Span", "Traffic"]
