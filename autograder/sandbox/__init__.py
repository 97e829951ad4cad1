"""Where student code runs: contained, counted, and gone with its container.

with open_sandbox(limits_of("03_ring_all_reduce")) as sandbox:  # one for each worker process
    launch(..., host=sandbox.host)  # ranks
    with sandbox.cells() as cells: ...  # a notebook's cells
"""

from autograder.sandbox.bubblewrap import Unavailable
from autograder.sandbox.limits import Limits, limits_of
from autograder.sandbox.unsandboxed import Unsandboxed
from autograder.sandbox.walls import Sandbox, Survivors

__all__ = [
    "Limits",
    "Sandbox",
    "Survivors",
    "Unavailable",
    "Unsandboxed",
    "limits_of",
    "open_sandbox",
]


def open_sandbox(
    limits: Limits, unsandboxed: bool = False, kind: str = "torch"
) -> Sandbox | Unsandboxed:
    """A sandbox, or its stand-in without walls where that was asked for by name.

    ``kind``: of rank server ("deepspeed" for labs whose cells use it).  Raises Unavailable.
    """
    return Unsandboxed(limits) if unsandboxed else Sandbox(limits, kind)
