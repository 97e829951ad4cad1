"""Where student code runs: contained, counted, and gone with its container.

with open_sandbox(limits_of("03_ring_all_reduce")) as sandbox:  # one for each worker process
    launch(..., host=sandbox.host)  # ranks
    with sandbox.cells() as cells: ...  # a notebook's cells
"""

from autograder.sandbox.bubblewrap import Unavailable
from autograder.sandbox.limits import Limits, limits_of
from autograder.sandbox.unsandboxed import Unsandboxed
from autograder.sandbox.walls import NO_DOORS, Doors, Sandbox, Survivors, Zygote

__all__ = [
    "NO_DOORS",
    "Doors",
    "Limits",
    "Sandbox",
    "Survivors",
    "Unavailable",
    "Unsandboxed",
    "Zygote",
    "limits_of",
    "open_sandbox",
]


def open_sandbox(
    limits: Limits, unsandboxed: bool = False, kind: str = "torch", doors: Doors = NO_DOORS
) -> Sandbox | Unsandboxed:
    """A sandbox, or its stand-in without walls where that was asked for by name.

    ``kind``: of rank server ("deepspeed" for labs whose cells use it).  ``doors``: of zygotes that
    other processes use as well; without one a sandbox has its own.  Raises Unavailable.
    """
    return Unsandboxed(limits) if unsandboxed else Sandbox(limits, kind, doors)
