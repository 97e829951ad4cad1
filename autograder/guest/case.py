"""One situation that an answer is tried in: the only part of an exercise that travels to ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Plain = Any  # tensors, numpy arrays, numbers, str, bytes, None; lists, tuples, dicts of these


@dataclass(frozen=True)
class Case:
    """One situation that the answer has to master. ``params`` is plain data.

    Students see a case's name and inputs unless it is hidden; a hidden case is for grading only.
    """

    name: str
    world_size: int
    params: Mapping[str, Any] = field(default_factory=dict)
    hidden: bool = False
    weight: float = 1.0
    shaken: bool = False  # ranks pause before calls and waits, at moments drawn for the case
