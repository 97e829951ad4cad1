"""Schedules that split the backward: input gradients first, weight gradients later.

Other devices wait only for the first half, so the second can fill time that would be idle.  ZB-H1
and ZB-V are from Qi et al., "Zero bubble pipeline parallelism", arXiv 2401.10241, sections 2 and 6.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.simulate.pipeline.generators import alternate, check_sizes
from shardlab.simulate.pipeline.schedule import Action, Schedule


def zb_h1(p: int, m: int) -> Schedule:
    """1F1B with the backward split; device r runs each "W" r micro-batches later.

    Each device then holds p micro-batches, like the first device of 1F1B.  With equal costs the
    bubble is a third of 1F1B's: (p−1)·(T_F + T_I − T_W) if m is at least p.
    """
    check_sizes(p, m)
    return [list(_with_deferred_weights(p, m, device)) for device in range(p)]


def _with_deferred_weights(p: int, m: int, device: int) -> Iterator[Action]:
    inputs = [Action("I", device, micro_batch) for micro_batch in range(m)]
    forwards = [Action("F", device, micro_batch) for micro_batch in range(m)]
    for action in alternate(forwards, inputs, warm_up=p - 1 - device):
        yield action
        if action.kind == "I" and action.micro_batch >= device:
            yield Action("W", device, action.micro_batch - device)
    for micro_batch in range(max(m - device, 0), m):
        yield Action("W", device, micro_batch)


def zb_v(p: int, m: int) -> Schedule:
    """Two chunks on each device, with the model laid out as a V: device r has stages r and 2p−1−r.

    Stages go down the devices with the first chunks and back up with the second, so device 0 has
    both the first and the last stage.  With equal costs and enough micro-batches no device idles
    between its first and its last action, with 1F1B's memory: 2p chunks of half the size.
    """
    check_sizes(p, m)
    enough = max(m, 2 * p - 1)  # the fewest that fill the V; those beyond m are dropped below
    return [
        [action for action in _down_and_up(p, enough, device) if action.micro_batch < m]
        for device in range(p)
    ]


def _down_and_up(p: int, m: int, device: int) -> Iterator[Action]:
    """ZB-V on one device, phase by phase."""
    stage_of = {"down": device, "up": 2 * p - 1 - device}
    done = {(kind, way): 0 for kind in "FIW" for way in stage_of}

    def take(way: str, kinds: str) -> Iterator[Action]:
        for kind in kinds:
            yield Action(kind, stage_of[way], done[kind, way])
            done[kind, way] += 1

    for _ in range(2 * (p - device) - 1):  # until the first micro-batch returns
        yield from take("down", "F")
    for _ in range(device):
        yield from take("up", "F")
        yield from take("down", "F")
    for _ in range(p - device):  # until its gradient returns, too
        yield from take("up", "FIW")
    while done["F", "up"] < m:
        yield from take("down", "FIW" if done["F", "down"] < m else "IW")
        yield from take("up", "FIW")
    for _ in range(device):  # first what other devices wait for
        yield from take("down", "I")
        yield from take("up", "I")
    for _ in range(p - device):
        yield from take("down", "IW")
    for way in ("up", "down"):
        while done["W", way] < m:
            yield from take(way, "W")
