"""Pipeline schedules as data, and a simulator for their cost.

    timeline = simulate(one_f_one_b(p=4, m=8))
    timeline.bubble_over_ideal, timeline.peak_in_flight

The same list runs on real ranks: see shardlab.pipeline.
"""

from shardlab.simulate.pipeline.generators import (
    gpipe,
    interleaved_one_f_one_b,
    naive,
    one_f_one_b,
)
from shardlab.simulate.pipeline.schedule import KINDS, Action, IllegalSchedule, Schedule
from shardlab.simulate.pipeline.simulator import Costs, PipelineTimeline, Slot, simulate
from shardlab.simulate.pipeline.zero_bubble import zb_h1, zb_v

__all__ = [
    "KINDS",
    "Action",
    "Costs",
    "IllegalSchedule",
    "PipelineTimeline",
    "Schedule",
    "Slot",
    "gpipe",
    "interleaved_one_f_one_b",
    "naive",
    "one_f_one_b",
    "simulate",
    "zb_h1",
    "zb_v",
]
