"""Containers in which student code runs, with limits, and which leave no processes behind.

with open_sandbox(limits_of("03_ring_all_reduce")) as sandbox:  # one per worker process
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
    """A sandbox, or with ``unsandboxed`` its replacement without isolation.

    ``kind``: of rank server ("deepspeed" for labs whose cells use it).  ``doors``: sockets of fork
    servers that other processes share; without one the sandbox starts its own.  Raises Unavailable.
    """
    # Imported only here: the fork server imports this package too and does not need these.
    from autograder.sandbox.host import Sandbox
    from autograder.sandbox.plain_kernel import Unsandboxed

    return Unsandboxed(limits) if unsandboxed else Sandbox(limits, kind, doors or {})
