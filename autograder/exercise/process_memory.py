"""Memory budgets that are measured from outside: private pages of the ranks' processes.

`run.memory` is recorded in the rank, next to the student's code, which could forge it.  So an
exercise with a budget of live bytes has one large hidden case, in which the process itself must not
grow much more than it does for a correct answer, at moments that `drive` marks (guest/moments.py).
"""

from __future__ import annotations

from collections.abc import Callable

from autograder.exercise.budget import Budget, Limit
from autograder.guest.case import Case
from autograder.guest.moments import START
from shardlab.run import Run

# Python objects and partly used pages: correct answers stayed below 1 MiB.
OVERHEAD_BYTES = 4 << 20


def process_memory_budget(
    moment: str, tensors_bytes: Callable[[Case], float | None], before: str = START
) -> Budget:
    """``tensors_bytes``: bytes of a correct answer's tensors at that moment; None if they
    are too few to measure."""

    def rise(run: Run) -> list[int]:
        """Raises KeyError if a rank did not complete one of the two moments."""
        seen = [memory.process_bytes for memory in run.memory]
        return [blocks[moment].most - blocks[before].least for blocks in seen]

    def limit(case: Case) -> Limit | None:
        size = tensors_bytes(case)
        # No minimum: the process may have shrunk.
        return None if size is None else Limit(size + OVERHEAD_BYTES, -(2**62))

    return Budget(
        "process memory ≤ tensors + overhead",
        rise,
        limit,
        heading="process memory",
        from_outside=True,
    )
