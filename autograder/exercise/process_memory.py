"""Budgets of memory that are seen from outside: private pages of the ranks' processes.

`run.memory` is recorded in the rank, next to the student's code.  So where an exercise has a
budget of live bytes, one hidden case is large, and there the process itself may not have grown by
much more than a right answer's does, at moments that the drive marks (guest/moments.py).
"""

from __future__ import annotations

from collections.abc import Callable

from autograder.exercise.budget import Budget, Limit
from autograder.guest.case import Case
from autograder.guest.moments import BEGUN
from shardlab.run import Run

# Python's own objects, and pages half in use: less than 1 MiB was seen in right answers.
ROOM_BYTES = 4 << 20


def no_more_than_tensors(
    moment: str, tensors_bytes: Callable[[Case], float | None], before: str = BEGUN
) -> Budget:
    """``tensors_bytes``: what a right answer's tensors may take at that moment; None: too little
    to see."""

    def rise(run: Run) -> list[int]:
        """Raises KeyError where a rank never came to the end of one of the two moments."""
        seen = [memory.seen_bytes for memory in run.memory]
        return [blocks[moment].most - blocks[before].least for blocks in seen]

    def limit(case: Case) -> Limit | None:
        size = tensors_bytes(case)
        return None if size is None else Limit(size + ROOM_BYTES, -(2**62))  # it may have shrunk

    return Budget(
        "its process holds what its tensors take",
        rise,
        limit,
        heading="seen from outside",
        from_outside=True,
    )
