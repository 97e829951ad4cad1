"""Shardlab: run a function on real ranks, measure its traffic and memory, explain its failures."""

from shardlab.display.claims import holds
from shardlab.display.html_table import show_table
from shardlab.errors import DeadlockError, LaunchError, RankError, RunTimeout
from shardlab.launch import launch
from shardlab.ranks.client import start_in_background, warm_up
from shardlab.run import Call, MeasuredBlock, Run, Traffic
from shardlab.trace.measure import measure

__all__ = [
    "Call",
    "DeadlockError",
    "LaunchError",
    "MeasuredBlock",
    "RankError",
    "Run",
    "RunTimeout",
    "Traffic",
    "holds",
    "launch",
    "measure",
    "show_table",
    "warm_up",
]

start_in_background()
