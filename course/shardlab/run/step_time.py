"""The seconds of a step by what the rank was doing: `Run.step_time`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from shardlab.run.states import State


@dataclass(frozen=True)
class StepTime:
    """One rank's seconds by what it was doing. They add up to ``total_s``."""

    compute_s: float = 0.0
    overlapped_s: float = 0.0  # computing while a communication of all its ranks is in progress
    exposed_s: float = 0.0  # standing still for a communication that all its ranks have begun
    waiting_s: float = 0.0  # standing still in a call that another rank has not yet begun
    loader_s: float = 0.0  # inside `with measure("loader"):`, whatever happens there
    other_s: float = 0.0  # nothing is recorded; by records this is unknown, and 0

    @property
    def total_s(self) -> float:
        return sum(astuple(self))

    @classmethod
    def of(cls, states: Iterable[State]) -> StepTime:
        """The sum of one rank's states."""
        seconds: dict[str, float] = defaultdict(float)
        for state in states:
            seconds[f"{state.name}_s"] += state.end_s - state.start_s
        return cls(**seconds)
