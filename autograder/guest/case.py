"""A test case: the only part of an exercise that is sent to the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Plain = Any  # tensors, numpy arrays, numbers, str, bytes, None; lists, tuples, dicts of these


@dataclass(frozen=True)
class Case:
    """One test case of an exercise. ``params`` is plain data.

    Students see the name and the inputs of a visible case; hidden cases are for grading only.
    ``nodes``, ``link_bits_per_s``: see `shardlab.launch`.
    """

    name: str
    world_size: int
    params: Mapping[str, Any] = field(default_factory=dict)
    hidden: bool = False
    weight: float = 1.0
    random_delays: bool = False  # runs twice, with delays before each rank's calls
    nodes: int = 1
    link_bits_per_s: float | None = None
