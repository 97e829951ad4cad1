"""Which of a plan's layouts are on the page: of tens of thousands, those that readers look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from shardlab.plan.calibrate import Measured
from shardlab.plan.layouts import RECOMPUTE, Layout, Layouts
from shardlab.plan.plans import RESERVE, Plans

MOST_LAYOUTS = 600
MOST_MEMORY, MOST_TIME = 4.0, 8.0  # of a device's memory, and of the fastest layout's time
ANY = "any"
# The controls: name, and the field of a layout that each one filters by.
FILTERS = {"tensor": "tensor", "pipeline": "pipeline", "recompute": "recompute", "ZeRO": "stage"}


def frontier(memory: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Indices of the layouts that no other beats in memory and time, from the least memory on."""
    order = np.lexsort((seconds, memory))
    if not len(order):
        return order
    best = np.minimum.accumulate(seconds[order])
    return order[np.concatenate([[True], seconds[order][1:] < best[:-1]])]


def limit_bytes(plans: Plans) -> float:
    """What a layout may need at most, to fit (Plans.fits)."""
    return (1 - RESERVE) * plans.cluster.capacity_bytes


def measured_layouts(plans: Plans, published: Sequence[Measured]) -> dict[int, Measured]:
    """{index of a layout: its run}. Raises ValueError for a run of something else."""
    found = {}
    for run in published:
        for name in ("model", "cluster", "batch"):
            if getattr(run, name) != getattr(plans, name):
                raise ValueError(
                    f"{run.name}: its {name} is not the plan's, so their times cannot be compared"
                )
        found[_index_of(plans.layouts, run)] = run
    return found


def _index_of(layouts: Layouts, run: Measured) -> int:
    wanted = vars(Layouts.of([run.layout]))
    same = np.ones(len(layouts), bool)
    for each in fields(Layout):
        same &= vars(layouts)[each.name] == wanted[each.name]
    if not same.any():
        raise ValueError(f"{run.name}: its layout is not one of the plan's: {run.layout}")
    return int(same.argmax())


def fastest(plans: Plans) -> int:
    """The fastest that fits; if none does, the one with the least memory."""
    seconds = plans.step.seconds
    if not plans.fits.any():
        return int(np.lexsort((seconds, plans.total_bytes))[0])
    order = np.lexsort((plans.total_bytes, seconds))
    return int(order[plans.fits[order]][0])


def thinned(plans: Plans, measured: Mapping[int, Measured]) -> list[int]:
    """Indices of at most MOST_LAYOUTS layouts, from the least memory on.

    The frontier, all published ones, and the frontier of each filter alone; then for each mesh the
    fastest and the one with the least memory, the fastest for each combination of filters, and more
    of each mesh.  None beyond MOST_MEMORY and MOST_TIME, unless published.
    """
    seconds, memory = plans.step.seconds, plans.total_bytes
    first = fastest(plans)
    near = memory <= MOST_MEMORY * plans.cluster.capacity_bytes
    near &= seconds <= MOST_TIME * seconds[first]
    near[[first, *measured]] = True
    inside = np.flatnonzero(near)
    priority = np.full(len(plans), 9)

    def prefer(chosen: Sequence[int] | np.ndarray, level: int) -> None:
        priority[chosen] = np.minimum(priority[chosen], level)

    columns = [vars(plans.layouts)[name][inside] for name in FILTERS.values()]
    prefer([first, *measured, *inside[frontier(memory[inside], seconds[inside])]], 0)
    for column in columns:
        for value in np.unique(column):
            some = inside[column == value]
            prefer(some[frontier(memory[some], seconds[some])], 1)
    layouts = plans.layouts
    mesh = [each[inside] for each in (layouts.tensor, layouts.pipeline, layouts.context)]
    # Of those that fit the fastest come first, then those that do not.
    by_time = np.lexsort((seconds[inside], ~plans.fits[inside]))
    by_memory = np.lexsort((seconds[inside], memory[inside]))
    picks = [(mesh, by_time, 1), (mesh, by_memory, 1), (columns, by_time, 1)]
    picks += [(mesh, by_time, count) for count in (2, 4, 8)]
    for level, (groups, way, count) in enumerate(picks):
        prefer(inside[_firsts(groups, way, count)], 2 + level)
    order = inside[np.lexsort((seconds[inside], priority[inside]))]
    kept = order[priority[order] < 9][:MOST_LAYOUTS]
    return [int(at) for at in kept[np.lexsort((seconds[kept], memory[kept]))]]


def _firsts(columns: Sequence[np.ndarray], order: np.ndarray, count: int) -> np.ndarray:
    """The first ``count`` in this order of each combination of the columns' values."""
    _, group = np.unique(np.stack(columns), axis=1, return_inverse=True)
    group = group.ravel()[order]
    stable = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[stable], group[stable])
    return order[stable[np.arange(len(order)) - starts < count]]


def only(plans: Plans, kept: Sequence[int]) -> Plans:
    """These layouts alone: the filters and the bars' scales are those of what is on the page."""
    at, step = np.array(kept), plans.step
    few = replace(
        step,
        parts={name: part[at] for name, part in step.parts.items()},
        hardware_flops=step.hardware_flops[at],
    )
    memory = {name: part[at] for name, part in plans.memory_bytes.items()}
    return replace(plans, layouts=plans.layouts.where(at), step=few, memory_bytes=memory)


def choices(plans: Plans) -> dict[str, list[str]]:
    """The values of each filter that some layouts have, as text."""
    return {
        name: [ANY, *(filter_value(field, value) for value in np.unique(column))]
        for name, field in FILTERS.items()
        for column in [vars(plans.layouts)[field]]
    }


def filter_value(field: str, value: int) -> str:
    return RECOMPUTE[value] if field == "recompute" else str(value)
