"""Ranks that share a disk and may be killed: processes that a case's one rank forks.

Ranks of a sandbox share no files, and a killed rank ends its run.  Where an exercise needs both,
its drive forks a process for each rank, all with one folder, and may have one of them killed
(SIGKILL).  The processes take turns, lower ranks first: each runs until it enters a collective or
ends.  So no result depends on timing, and a rank that does not wait is always ahead of the others.

In these processes torch.distributed's functions are replaced by ones that talk to the parent
through a pipe, since gloo's threads do not survive a fork.
"""

from __future__ import annotations

import builtins
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from autograder.guest.on_rank import COMMUNICATES

RETURNED, RAISED, KILLED, WAITING = "returned", "raised", "killed", "waiting"
NEVER_ENTERED = "waits in a collective that another rank never enters"


@dataclass(frozen=True)
class Outcome:
    """How a rank ended."""

    how: str  # RETURNED, RAISED, KILLED; WAITING: in a collective that another never entered
    value: Any = None  # what it returned, or (kind, message) of what it raised


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---- in a child ---------------------------------------------------------------------------------


@dataclass
class Group:
    """A rank's process group: what each gives to a collective comes back to all of them."""

    rank: int
    world_size: int
    parent: Connection

    def exchange(self, op: str, given: Any = None) -> list[Any]:
        """By rank."""
        self.parent.send_bytes(pickle.dumps((op, given)))
        return list(pickle.loads(self.parent.recv_bytes()))

    def barrier(self, *_: Any, **__: Any) -> None:
        self.exchange("barrier")

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, **_: Any) -> None:
        given = torch.stack(self.exchange("all_reduce", tensor.detach().clone()))
        by_op = {dist.ReduceOp.SUM: given.sum(dim=0), dist.ReduceOp.MAX: given.amax(dim=0)}
        by_op |= {dist.ReduceOp.AVG: given.mean(dim=0), dist.ReduceOp.MIN: given.amin(dim=0)}
        with torch.no_grad():
            tensor.copy_(by_op[op])

    def broadcast(self, tensor: torch.Tensor, src: int = 0, **_: Any) -> None:
        with torch.no_grad():
            tensor.copy_(self.exchange("broadcast", tensor.detach().clone())[src])

    def broadcast_object_list(self, objects: list[Any], src: int = 0, **_: Any) -> None:
        objects[:] = self.exchange("broadcast_object_list", objects)[src]

    def all_gather_object(self, objects: list[Any], given: Any, **_: Any) -> None:
        objects[:] = self.exchange("all_gather_object", given)

    def replace_torch_distributed(self) -> None:
        """For the rest of this process."""

        def absent(name: str) -> Callable[..., NoReturn]:
            def call(*_: Any, **__: Any) -> NoReturn:
                raise RuntimeError(f"this check's ranks have no {name}: barrier is enough")

            return call

        for name in COMMUNICATES:
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
        finally:
            sys.settrace(None)
        group.parent.send_bytes(pickle.dumps(last))
    finally:
        os._exit(0)


def message_of(error: BaseException) -> str:
    """With the last line of a notebook's cell that led to it."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename[:1] == "<" or "ipykernel" in code.co_filename:
            where = f" (in {code.co_name}, line {trace.tb_lineno - code.co_firstlineno + 1} of it)"
        trace = trace.tb_next
    return f"{error}{where}"


# ---- in the parent ------------------------------------------------------------------------------


class Child:
    def __init__(self, work: Callable[[Group], Any], rank: int, world_size: int) -> None:
        self.connection, in_child = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.connection.close()
            run_child(work, Group(rank, world_size, in_child))
        in_child.close()
        self.entered: tuple[str, Any] | None = ("start", None)  # a collective, and what it gave
        self.outcome: Outcome | None = None

    def resume(self, by_rank: Sequence[Any]) -> None:
        """With a collective's result, until it enters the next one or ends."""
        self.entered = None
        try:
            self.connection.send_bytes(pickle.dumps(by_rank))
            name, value = pickle.loads(self.connection.recv_bytes())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.outcome = Outcome(KILLED)
            return
        if name in (RETURNED, RAISED):
            self.outcome = Outcome(name, value)
        else:
            self.entered = name, value

    def end(self) -> Outcome:
        try:
            os.kill(self.pid, signal.SIGKILL)
        finally:
            os.waitpid(self.pid, 0)
            self.connection.close()
        return self.outcome or Outcome(WAITING)


def run_ranks(work: Callable[[Group], Any], world_size: int) -> list[Outcome]:
    """``work`` on each of so many processes, in turns; how each ended, by rank.

    After a kill the others go on until they wait for the killed rank, and are then ended too.
    """
    sys.stdout.flush()
    children: list[Child] = []
    try:
        for rank in range(world_size):
            children.append(Child(work, rank, world_size))
        for child in children:
            child.resume([])
        while entered := [child.entered for child in children if child.entered]:
            if len(entered) < world_size or len({name for name, _ in entered}) > 1:
                break
            for child in children:
                child.resume([given for _, given in entered])
    finally:
        outcomes = [child.end() for child in children]
    return outcomes


def raise_first_error(outcomes: Sequence[Outcome], may_wait: bool = False) -> None:
    """An error of a rank, as if it were this process's own. ``may_wait``: of a killed rank."""
    for rank, outcome in enumerate(outcomes):
        if outcome.how == RAISED:
            name, message = outcome.value
            raise error_like(name, f"on rank {rank} of {len(outcomes)}: ", message)
    for rank, outcome in enumerate(outcomes):
        if outcome.how == WAITING and not may_wait:
            raise RuntimeError(f"rank {rank} of {len(outcomes)} {NEVER_ENTERED}")


def error_like(name: str, where: str, message: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(where + message)
        except TypeError:  # one that takes more than a text
            pass
    return RuntimeError(f"{where}{name}: {message}")
