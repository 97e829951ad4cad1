"""A forked rank's process group: it communicates with the parent through a socket.

It replaces gloo, whose threads do not survive a fork.  See `forked_ranks`.
"""

from __future__ import annotations

import pickle
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from autograder.exercise import Plain
from autograder.guest.on_rank import COMMUNICATION_FUNCTIONS
from shardlab.ranks import codec, messages

CHANGED = "changed"  # not a collective: a process without held calls reports a change
LONGEST_TURN_S = 8.0  # far longer than any correct answer runs from one collective to the next

Message = dict[str, Any]


@dataclass
class Group:
    """A rank's process group: a collective returns every rank's input to all ranks."""

    rank: int
    world_size: int
    parent: socket.socket
    started: list[Started] = field(default_factory=list)  # with async_op=True, not done yet

    def exchange(self, op: str, given: Any = None, **facts: Plain) -> list[Any]:
        """The input of each rank, by rank."""
        if op != CHANGED:
            self.finish_started()
        return self._exchange(op, given, **facts)

    def _exchange(self, op: str, given: Any = None, **facts: Plain) -> list[Any]:
        messages.send(self.parent, {"op": op, **facts}, pickle.dumps(given))
        return [pickle.loads(each) for each in self._receive()]

    def request(self, op: str, **facts: Plain) -> Plain:
        """The parent's answer to this rank alone."""
        messages.send(self.parent, {"op": op, **facts})
        return codec.decode_plain(self._receive()[0])

    def _receive(self) -> list[bytes]:
        limit_turn(0)
        received = messages.receive(self.parent)[1]
        limit_turn(LONGEST_TURN_S)
        return list(pickle.loads(received))

    def finish_started(self, last: Started | None = None) -> None:
        """Finish collectives started with async_op=True, up to ``last``, in the same order on all
        ranks."""
        while self.started and (last is None or last in self.started):
            self.started.pop(0).finish()

    def start(self, op: str, async_op: bool, finish: Callable[[], Any]) -> Started | None:
        if async_op:
            self.started.append(Started(self, op, finish))
            return self.started[-1]
        self.finish_started()
        finish()
        return None

    def barrier(self, group: Any = None, async_op: bool = False, **_: Any) -> Started | None:
        return self.start("barrier", async_op, lambda: self._exchange("barrier"))

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Started | None:
        ops = dist.ReduceOp
        by_op: Any = {ops.SUM: torch.sum, ops.AVG: torch.mean}
        by_op |= {ops.MAX: torch.amax, ops.MIN: torch.amin}
        own = tensor.detach().clone()

        def finish() -> None:
            given = torch.stack(self._exchange("all_reduce", own))
            tensor.detach().copy_(by_op[op](given, dim=0))

        return self.start("all_reduce", async_op, finish)

    def broadcast(
        self,
        tensor: torch.Tensor,
        src: int = 0,
        group: Any = None,
        async_op: bool = False,
        **_: Any,
    ) -> Started | None:
        own = tensor.detach().clone()

        def finish() -> None:
            tensor.detach().copy_(self._exchange("broadcast", own)[src])

        return self.start("broadcast", async_op, finish)

    def all_gather(
        self,
        tensors: list[torch.Tensor],
        tensor: torch.Tensor,
        group: Any = None,
        async_op: bool = False,
    ) -> Started | None:
        own = tensor.detach().clone()

        def finish() -> None:
            for each, given in zip(tensors, self._exchange("all_gather", own), strict=True):
                each.detach().copy_(given)

        return self.start("all_gather", async_op, finish)

    def gather_object(
        self, given: Any, objects: list[Any] | None = None, dst: int = 0, **_: Any
    ) -> None:
        gathered = self.exchange("gather_object", given)
        if self.rank == dst and objects is not None:
            objects[:] = gathered

    def broadcast_object_list(self, objects: list[Any], src: int = 0, **_: Any) -> None:
        objects[:] = self.exchange("broadcast_object_list", objects)[src]

    def all_gather_object(self, objects: list[Any], given: Any, **_: Any) -> None:
        objects[:] = self.exchange("all_gather_object", given)

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.exchange("mean", tensor)).mean(dim=0)

    def replace_torch_distributed(self) -> None:
        """Replace torch.distributed's functions for the rest of this process."""

        def absent(name: str) -> Callable[..., NoReturn]:
            def call(*_: Any, **__: Any) -> NoReturn:
                raise RuntimeError(f"{name} is not available in this check, but {present} are")

            return call

        module: Any = dist
        present = ", ".join(name for name in dir(self) if name in COMMUNICATION_FUNCTIONS)
        for name in COMMUNICATION_FUNCTIONS:
            setattr(module, name, getattr(self, name, absent(name)))
        module.monitored_barrier = lambda *_, **__: self.barrier()
        module.get_rank = lambda *_, **__: self.rank
        module.get_world_size = lambda *_, **__: self.world_size


@dataclass(eq=False)
class Started:
    """A collective that was started with async_op=True.

    Until the rank waits for it, or enters another collective, it continues alone, like a rank with
    slow messages.
    """

    group: Group
    op: str
    finish: Callable[[], Any]

    def wait(self, *_: Any, **__: Any) -> bool:
        self.group.finish_started(self)
        return True

    is_completed = wait


def limit_turn(seconds: float) -> None:
    """Raise TimeoutError in this process's main thread after this time; 0: never."""

    def end(*_: object) -> NoReturn:
        what = f"has not entered a collective for {seconds:g} s, while the other ranks wait"
        raise TimeoutError(f"{what}: wait in a collective, not for a file to appear")

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
