"""Memory budgets that are measured from outside, wherever the ranks' processes keep their data.

`run.memory` is recorded in the rank, next to the student's code, which could forge it.  So an
exercise with a budget of live bytes has one large hidden case, in which the process itself must not
grow much more than it does for a correct answer, at moments that `drive` marks (guest/moments.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autograder.exercise.budget import Budget, Limit
from autograder.guest.case import Case
from autograder.guest.moments import LOADED, START
from shardlab.run import Run
from shardlab.run.live_memory import ByteRange

# Python objects and partly used pages: correct answers stayed below 1 MiB.
OVERHEAD_BYTES = 4 << 20
PROCESS_MEMORY = "process memory"  # the heading of these budgets


def process_memory_budget(
    moment: str, tensors_bytes: Callable[[Case], float | None], before: str = START
) -> Budget:
    """``tensors_bytes``: bytes of a correct answer's tensors at that moment; None if they
    are too few to measure."""

    def rise(run: Run) -> list[int]:
        """Raises KeyError if a rank did not complete one of the two moments."""
        seen = [memory.process_bytes for memory in run.memory]
        return [blocks[moment].most - base_bytes(blocks) for blocks in seen]

    def base_bytes(blocks: Mapping[str, ByteRange]) -> int:
        """An answer could use much memory while it is unpickled, and free it later."""
        return min(blocks[before].least, blocks[LOADED].least + OVERHEAD_BYTES)

    def limit(case: Case) -> Limit | None:
        size = tensors_bytes(case)
        # No minimum: the process may have shrunk.
        return None if size is None else Limit(size + OVERHEAD_BYTES, -(2**62))

    return Budget(
        "process memory ≤ tensors + overhead",
        rise,
        limit,
        heading=PROCESS_MEMORY,
        from_outside=True,
        contradicts="uses more memory than its recorded tensors: data outside of tensors (lists, "
        "arrays, other threads) counts, too",
    )
