"""Where student code runs: contained, counted, and gone with its container.

with open_sandbox(limits_of("03_ring_all_reduce")) as sandbox:  # one for each worker process
    RankSet(..., host=sandbox.host)  # ranks
    with sandbox.cells() as cells: ...  # a notebook's cells
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autograder.sandbox.limits import Limits, limits_of

if TYPE_CHECKING:
    from autograder.sandbox.host import Doors, Sandbox
    from autograder.sandbox.plain_kernel import Unsandboxed

__all__ = ["Limits", "limits_of", "open_sandbox"]


def open_sandbox(
    limits: Limits, unsandboxed: bool = False, kind: str = "torch", doors: Doors | None = None
) -> Sandbox | Unsandboxed:
    """A sandbox, or its stand-in without walls where that was asked for by name.

    ``kind``: of rank server ("deepspeed" for labs whose cells use it).  ``doors``: of fork servers
    that other processes use as well; without one a sandbox has its own.  Raises Unavailable.
    """
    # Only here: the fork server imports this package too, and needs nothing of what starts it.
    from autograder.sandbox.host import Sandbox
    from autograder.sandbox.plain_kernel import Unsandboxed

    return Unsandboxed(limits) if unsandboxed else Sandbox(limits, kind, doors or {})
