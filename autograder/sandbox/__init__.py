"""Containers in which student code runs, with limits, and from which no process survives.

with open_sandbox(limits_of("03_ring_all_reduce")) as sandbox:  # one per worker process
    RankSet(..., host=sandbox.host)  # ranks
    with sandbox.cells() as cells: ...  # a notebook's cells
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autograder.sandbox.limits import Limits, limits_of

if TYPE_CHECKING:
    from autograder.sandbox.host import RequestSockets, Sandbox
    from autograder.sandbox.plain_kernel import Unsandboxed

__all__ = ["Limits", "limits_of", "open_sandbox"]


def open_sandbox(
    limits: Limits,
    unsandboxed: bool = False,
    kind: str = "torch",
    fork_servers: RequestSockets | None = None,
) -> Sandbox | Unsandboxed:
    """A sandbox, or with ``unsandboxed`` its replacement without isolation.

    ``kind``: of rank server ("deepspeed" for labs whose cells use it).  ``fork_servers``: request
    sockets of fork servers shared with other processes; without one the sandbox starts its own.

    Raises Unavailable.
    """
    # Imported only here: the fork server imports this package too and does not need these.
    from autograder.sandbox.host import Sandbox
    from autograder.sandbox.plain_kernel import Unsandboxed

    return Unsandboxed(limits) if unsandboxed else Sandbox(limits, kind, fork_servers or {})
