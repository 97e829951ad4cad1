"""Ranks that share a disk and may be killed: processes forked by the case's only rank.

Sandboxed ranks share no files, and a killed rank ends the run.  If an exercise needs shared files
or kills, its drive forks a process for each rank, all using one folder, and may kill one (SIGKILL).
The processes take turns, lower ranks first: each runs until it enters a collective or ends.  So no
result depends on timing, and a rank that does not wait is always ahead of the others.

In these processes torch.distributed's functions are replaced by ones that communicate with the
parent through a pipe, since gloo's threads do not survive a fork.
"""

from __future__ import annotations

import builtins
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from autograder.guest.on_rank import COMMUNICATION_FUNCTIONS

ENDS = RETURNED, RAISED, KILLED = "returned", "raised", "killed"
# Built-in exceptions that cannot be created from a message alone.
NO_TEXT = {"UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup"}
NEVER_ENTERED = "waits in a collective that another rank never enters"


class Outcome(NamedTuple):
    """How a rank ended, or the collective in which it waits."""

    how: str
    value: Any = None  # its return value, (kind, message) of its error, or its collective's input


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---- in a child ---------------------------------------------------------------------------------


@dataclass
class Group:
    """A rank's process group: a collective returns every rank's input to all ranks."""

    rank: int
    world_size: int
    parent: Connection

    def exchange(self, op: str, given: Any = None) -> list[Any]:
        """What each rank gave, by rank."""
        self.parent.send_bytes(pickle.dumps((op, given)))
        return list(pickle.loads(self.parent.recv_bytes()))

    def barrier(self, *_: Any, **__: Any) -> None:
        self.exchange("barrier")

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, **_: Any) -> None:
        ops = dist.ReduceOp
        by_op: Any = {ops.SUM: torch.sum, ops.AVG: torch.mean}
        by_op |= {ops.MAX: torch.amax, ops.MIN: torch.amin}
        given = torch.stack(self.exchange("all_reduce", tensor.detach().clone()))
        tensor.detach().copy_(by_op[op](given, dim=0))

    def broadcast(self, tensor: torch.Tensor, src: int = 0, **_: Any) -> None:
        tensor.detach().copy_(self.exchange("broadcast", tensor.detach().clone())[src])

    def broadcast_object_list(self, objects: list[Any], src: int = 0, **_: Any) -> None:
        objects[:] = self.exchange("broadcast_object_list", objects)[src]

    def all_gather_object(self, objects: list[Any], given: Any, **_: Any) -> None:
        objects[:] = self.exchange("all_gather_object", given)

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.exchange("mean", tensor)).mean(dim=0)

    def replace_torch_distributed(self) -> None:
        """For the rest of this process."""

        def absent(name: str) -> Callable[..., NoReturn]:
            def call(*_: Any, **__: Any) -> NoReturn:
                raise RuntimeError(f"{name} is not available in this check: use dist.barrier()")

            return call

        for name in COMMUNICATION_FUNCTIONS:
            setattr(dist, name, getattr(self, name, absent(name)))
        dist.monitored_barrier = self.barrier
        dist.get_rank = lambda *_, **__: self.rank
        dist.get_world_size = lambda *_, **__: self.world_size


def run_child(work: Callable[[Group], Any], group: Group) -> NoReturn:
    try:
        group.parent.recv_bytes()
        group.replace_torch_distributed()
        try:
            last = RETURNED, work(group)
        except BaseException as error:
            last = RAISED, (type(error).__name__, message_of(error))
        sys.settrace(None)
        group.parent.send_bytes(pickle.dumps(last))
    finally:
        os._exit(0)


def message_of(error: BaseException) -> str:
    """With the innermost line of the notebook cell that led to it."""
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename[:1] == "<" or "ipykernel" in code.co_filename:
            where = f" (in {code.co_name}, line {line - code.co_firstlineno + 1} of it)"
    return f"{error}{where}"


# ---- in the parent ------------------------------------------------------------------------------


def run_ranks(work: Callable[[Group], Any], world_size: int) -> list[Outcome]:
    """Runs ``work`` on ``world_size`` processes that take turns; how each ended, by rank.

    After a kill the others continue until they wait for the killed rank, and are then ended too.
    """
    sys.stdout.flush()
    children: list[tuple[int, Connection]] = []
    last = [Outcome("start")] * world_size
    try:
        for rank in range(world_size):
            connection, in_child = Pipe()
            if (pid := os.fork()) == 0:
                connection.close()
                run_child(work, Group(rank, world_size, in_child))
            in_child.close()
            children.append((pid, connection))
        while len({each.how for each in last}) == 1 and last[0].how not in ENDS:
            by_rank = [each.value for each in last]
            last = [resume(connection, by_rank) for _, connection in children]
    finally:
        for pid, connection in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            connection.close()
    return last


def resume(connection: Connection, by_rank: list[Any]) -> Outcome:
    """Sends a child a collective's result; returns the next one that it enters, or its end."""
    try:
        connection.send_bytes(pickle.dumps(by_rank))
        return Outcome(*pickle.loads(connection.recv_bytes()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return Outcome(KILLED)


def was_killed(outcomes: Sequence[Outcome]) -> bool:
    return any(each.how == KILLED for each in outcomes)


def raise_first_error(outcomes: Sequence[Outcome]) -> None:
    """Raises a rank's error, or one for a rank that waits although no rank was killed."""
    for rank, outcome in enumerate(outcomes):
        if outcome.how == RAISED:
            name, message = outcome.value
            kind = getattr(builtins, name, None)
            if not isinstance(kind, type) or not issubclass(kind, Exception) or name in NO_TEXT:
                kind, message = RuntimeError, f"{name}: {message}"
            raise kind(f"on rank {rank} of {len(outcomes)}: {message}")
    for rank, outcome in enumerate(outcomes):
        if outcome.how not in ENDS and not was_killed(outcomes):
            raise RuntimeError(f"rank {rank} of {len(outcomes)} {NEVER_ENTERED}")
