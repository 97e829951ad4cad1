"""A start of a job in a process of its own, forked by a rank: nothing but files remains of it.

gloo's threads do not survive a fork, so in the child a process group of our own replaces gloo's.
Each of its collectives is a request to the parent, the rank, which makes the call and sends the
result back: it is recorded and counted as any other.  Only the child runs student code, and the
parent never unpickles what it sends.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from autograder.exercise import Plain
from autograder.exercises.lab11_save_resume.forked_ranks import (
    RAISED,
    RETURNED,
    Outcome,
    message_of,
    prctl,
)
from autograder.exercises.lab11_save_resume.rank_errors import raise_first_error
from shardlab.linux import thread
from shardlab.ranks import codec, messages
from shardlab.trace import measure as trace

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4


def in_a_fork(work: Callable[[], Plain]) -> Plain:
    """What ``work`` returns in a forked process, which then ends, with all that it has started.

    Raises its error, in the form of rank_errors.raise_first_error.
    """
    sys.stdout.flush()
    ours, theirs = socket.socketpair()
    others, (rank, ranks) = thread.children(os.getpid()), (dist.get_rank(), dist.get_world_size())
    if (pid := os.fork()) == 0:
        run_child(work, theirs, rank, ranks)
    theirs.close()
    try:
        outcome = serve(ours)
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        end_orphans(others)
    outcomes = [outcome if each == rank else Outcome(RETURNED) for each in range(ranks)]
    raise_first_error(outcomes)
    return outcome.value


def end_orphans(others: set[int]) -> None:
    """What the child started is now this process's child: see protected_parent."""
    while pids := thread.children(os.getpid()) - others:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# ---- in the rank --------------------------------------------------------------------------------


def serve(child: socket.socket) -> Outcome:
    """Make the collectives that the child asks for, until it has returned or raised."""
    while True:
        try:
            header, body = messages.receive(child)
        except (OSError, EOFError):
            return Outcome(RAISED, ("RuntimeError", "its process has ended before it returned"))
        op = header.get("op")
        if op == RETURNED:
            return Outcome(RETURNED, codec.decode_plain(body))
        if op == RAISED:
            kind, text = header["error"]
            return Outcome(RAISED, (str(kind), str(text)))
        tensors: Any = codec.decode_plain(body)
        messages.send(child, {}, codec.encode_plain(collective(str(op), tensors, header)))


def collective(op: str, tensors: list[Tensor], header: dict[str, Any]) -> list[Tensor]:
    if op == "barrier":
        dist.barrier()
        return []
    if op == "all_reduce":
        dist.all_reduce(tensors[0], op=getattr(dist.ReduceOp, str(header["reduction"])))
        return tensors
    if op == "broadcast":
        dist.broadcast(tensors[0], src=int(header["root"]))
        return tensors
    gathered = [torch.empty_like(tensors[0]) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensors[0])
    return gathered


# ---- in the child -------------------------------------------------------------------------------


def run_child(work: Callable[[], Plain], parent: socket.socket, rank: int, ranks: int) -> NoReturn:
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(PR_SET_DUMPABLE, 1)
        kept = parent.fileno()
        os.closerange(3, kept)  # most importantly, the connection to the checker
        os.closerange(kept + 1, 1 << 16)
        gc.freeze()  # nothing that the parent made is freed here
        if trace.recorder is not None:
            trace.recorder.enabled = False  # the parent's calls are recorded
        try:
            join(parent, rank, ranks)
            header, body = {"op": RETURNED}, codec.encode_plain(work())
        except BaseException as error:
            header = {"op": RAISED, "error": [type(error).__name__, message_of(error)]}  # type: ignore[dict-item]
            body = b""
        messages.send(parent, header, body)
    finally:
        os._exit(0)


def join(parent: socket.socket, rank: int, ranks: int) -> None:
    """Replace the process groups of this process by one whose collectives the parent makes."""
    c10d: Any = dist.distributed_c10d
    maps = ("_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_tags_to_pg")
    inherited = [c10d._world.default_pg]
    for each in (getattr(c10d, name) for name in (*maps, "_pg_to_tag")):
        inherited.append(dict(each))
        each.clear()
    c10d.inherited = inherited  # to destroy them would wait for gloo's threads
    c10d._world.default_pg, c10d._world.group_count = None, 0
    c10d._unregister_all_process_groups()
    group = relay_of(parent)
    dist.Backend.register_backend("relay", lambda *_: group(rank, ranks), devices=["cpu"])
    dist.init_process_group("relay", store=dist.HashStore(), rank=rank, world_size=ranks)


def relay_of(parent: socket.socket) -> Any:
    """The class of a process group; made here, because it cannot be pickled."""

    def ask(op: str, tensors: Sequence[Tensor] = (), **facts: Plain) -> list[Tensor]:
        plain = [each.detach().contiguous() for each in tensors]
        messages.send(parent, {"op": op, **facts}, codec.encode_plain(plain))
        found: Any = codec.decode_plain(messages.receive(parent)[1])
        return list(found)

    c10d: Any = torch._C._distributed_c10d
    process_group: Any = dist.ProcessGroup  # its methods have overloads that nobody here calls

    def done(result: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(result)
        return c10d._create_work_from_future(future)

    class Relay(process_group):
        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            given = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
            reduction = getattr(getattr(given, "op", given), "name", "SUM")
            for each in tensors:
                each.detach().copy_(ask("all_reduce", [each], reduction=reduction)[0])
            return done(tensors)

        allreduce_coalesced = allreduce

        def broadcast(self, tensors: Any, opts: Any = None) -> Any:
            root = 0 if opts is None else int(opts.rootRank)
            for each in tensors:
                each.detach().copy_(ask("broadcast", [each], root=root)[0])
            return done(tensors)

        def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
            for of_ranks, own in zip(outputs, inputs, strict=True):
                for each, found in zip(of_ranks, ask("all_gather", [own]), strict=True):
                    each.detach().copy_(found.view_as(each))
            return done(outputs)

        def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
            return self.allgather([[*output.chunk(self.size())]], [given])

        _allgather_base = all_gather_single

        def barrier(self, opts: Any = None) -> Any:
            return done(ask("barrier"))

        def getBackendName(self) -> str:
            return "relay"  # of "gloo", DDP would look up the device

    return Relay
