"""Which ranks are on which node: names and rules between the rows of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from shardlab.widgets.scene import Mark, Text, line, text_width

NAMES_WIDTH = 50.0  # to the left of the ranks' names
NAME_HEIGHT = 13.0
NUMBERS_HEIGHT = 21.0  # above columns
OPACITY = 0.7  # of a rule


def several(nodes: Sequence[int]) -> list[int]:
    """The node of each rank; none if all are on one."""
    return [*nodes] if len(set(nodes)) > 1 else []


def rank_name(nodes: Sequence[int], rank: int) -> str:
    return f"rank {rank} on node {nodes[rank]}" if nodes else f"rank {rank}"


def row_borders(
    nodes: Sequence[int], *, left: float, right: float, top: float, row: float
) -> list[Mark]:
    """For rows of ranks from ``top`` on: rules from ``left`` to ``right``, names at the edge."""
    marks: list[Mark] = []
    for node, first, stop in _spans(nodes):
        y = top + first * row
        if first:
            marks.append(line(left, y, right, y, stroke="text", opacity=OPACITY))
        if (stop - first) * row >= NAME_HEIGHT:
            middle = y + (stop - first) * row / 2
            marks.append(Text(x=8, y=middle + 4, text=f"node {node}", size=11, fill="muted"))
    return marks


def column_borders(
    nodes: Sequence[int], *, left: float, top: float, bottom: float, column: float
) -> list[Mark]:
    """For columns of ranks from ``left`` on: rules from ``top`` to ``bottom``, names above the
    ranks' numbers."""
    marks: list[Mark] = []
    for node, first, stop in _spans(nodes):
        x, name = left + first * column, f"node {node}"
        if first:
            marks.append(line(x, top, x, bottom, stroke="text", opacity=OPACITY))
        if (stop - first) * column >= text_width(name, 11):
            middle = x + (stop - first) * column / 2
            y = top - NUMBERS_HEIGHT
            marks.append(Text(x=middle, y=y, text=name, size=11, anchor="middle", fill="muted"))
    return marks


def _spans(nodes: Sequence[int]) -> list[tuple[int, int, int]]:
    """(node, its first rank, the rank after its last); a node's ranks are neighbors."""
    spans = []
    for node, ranks in groupby(range(len(nodes)), key=nodes.__getitem__):
        members = [*ranks]
        spans.append((node, members[0], members[-1] + 1))
    return spans
