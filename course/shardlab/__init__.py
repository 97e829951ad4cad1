"""Shardlab: run a function on real ranks, measure its traffic and memory, explain its failures.

The rooms in order; each imports only from those above it:
    display        how numbers, lines of code and colors are shown to readers
    linux          what Linux knows about a process
    data           real text that ships with Python
    models         models to train, split, measure and count by hand
    recorded_runs  runs recorded once, which labs ask about
    run, errors    the result of a launch, and what it raises
    trace          what happened on a rank: wire bytes, calls, memory
    nodes          network namespaces joined by links, for ranks on several nodes
    ranks, launch  real ranks: start, stream, stop, explain
    job            ranks that torchrun or Slurm has started
    placement      device or host: where training keeps its state
    estimate       pure formulas: memory, traffic, activations, time
    plan           layouts of a model on a cluster: memory and time, held to published runs
    simulate       schedules and clusters too big to run
    pipeline       runs a pipeline's schedule on real ranks
    shards         which rank holds which elements of which tensor
    widgets        interactive pictures of a run or of a formula
    notebook_code, machine_report, export, preflight    for the commands of `python -m shardlab`
"""

from shardlab.display.claims import holds
from shardlab.display.html_table import show_table
from shardlab.errors import DeadlockError, LaunchError, RankError, RunTimeout
from shardlab.launch import launch
from shardlab.ranks.client import start_in_background, warm_up
from shardlab.run import Call, MeasuredBlock, Run, Span, Traffic
from shardlab.trace.measure import measure
from shardlab.trace.profile import profile

__all__ = [
    "Call",
    "DeadlockError",
    "LaunchError",
    "MeasuredBlock",
    "RankError",
    "Run",
    "RunTimeout",
    "Span",
    "Traffic",
    "holds",
    "launch",
    "measure",
    "profile",
    "show_table",
    "warm_up",
]

start_in_background()
