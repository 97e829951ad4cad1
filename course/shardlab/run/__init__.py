"""The result of a launch: outputs, printed text, traffic, calls and memory, by rank."""

from shardlab.run.call import Call, MeasuredBlock, Span
from shardlab.run.critical_path import critical_path
from shardlab.run.links import Links
from shardlab.run.live_memory import Memory
from shardlab.run.result import Run, Traffic
from shardlab.run.states import State
from shardlab.run.step_time import StepTime

__all__ = [
    "Call",
    "Links",
    "MeasuredBlock",
    "Memory",
    "Run",
    "Span",
    "State",
    "StepTime",
    "Traffic",
    "critical_path",
]
