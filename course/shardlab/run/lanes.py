"""Lanes for what overlaps in time on one rank."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

from shardlab.run.call import Call, MeasuredBlock, Span
from shardlab.run.states import State

Did = TypeVar("Did", bound=Call | MeasuredBlock | Span | State)


def free_lanes(did: Iterable[Did]) -> tuple[dict[Did, int], int]:
    """Assign each to the first lane that is free when it starts; also the number of lanes."""
    lane_of: dict[Did, int] = {}
    free_at: list[float] = []
    for each in sorted(did, key=lambda each: each.start_s):
        lane = next((i for i, at in enumerate(free_at) if at <= each.start_s), len(free_at))
        free_at[lane : lane + 1] = [math.inf if each.end_s is None else each.end_s]
        lane_of[each] = lane
    return lane_of, len(free_at)
