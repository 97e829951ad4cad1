"""Ranks that share a disk and may be killed: children that a case's one rank forks.

Ranks of a sandbox share no files, and one that is killed ends its run.  Where an exercise needs
both, its drive plays the machine: it forks a process for each rank, all in one folder, and can have
one killed by SIGKILL at any moment.  The processes take turns, lower ranks first: one runs until it
comes to a collective or to its end, then the next.  So what is found hangs on no moment's luck, and
a rank that does not wait for the others is always ahead of them.

What the children find of torch.distributed are stand-ins that speak through pipes, for gloo's
threads do not survive a fork.
"""

from __future__ import annotations

import builtins
import mmap
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from autograder.guest.on_rank import COMMUNICATES

RETURNED, RAISED, KILLED, WAITS = "returned", "raised", "killed", "waits"


@dataclass(frozen=True)
class Ended:
    """How a rank came to its end: what it returned, or (kind, message) of what it raised."""

    how: str  # RETURNED, RAISED, KILLED; WAITS: in a collective that others never came to
    value: Any = None


class Moments:
    """Counts, across processes, the moments at which a rank may be killed; kills at the n-th."""

    def __init__(self, kill_at: int = 0) -> None:
        self.shared = mmap.mmap(-1, 8)
        self.kill_at = kill_at

    @property
    def count(self) -> int:
        return int.from_bytes(self.shared[:8], "little")

    def one_more(self) -> None:
        self.shared[:8] = (self.count + 1).to_bytes(8, "little")
        if self.count == self.kill_at:
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---- in a child ---------------------------------------------------------------------------------


@dataclass
class Colleagues:
    """A rank's line to the others: what each gives to a collective comes back to all of them."""

    rank: int
    world_size: int
    told: Connection
    heard: Connection

    def meet(self, name: str, given: Any = None) -> list[Any]:
        self.told.send_bytes(pickle.dumps((name, given)))
        return list(pickle.loads(self.heard.recv_bytes()))

    def barrier(self, *_: Any, **__: Any) -> None:
        self.meet("barrier")

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, **_: Any) -> None:
        given = torch.stack(self.meet("all_reduce", tensor.detach().clone()))
        by_op = {dist.ReduceOp.SUM: given.sum(dim=0), dist.ReduceOp.MAX: given.amax(dim=0)}
        by_op |= {dist.ReduceOp.AVG: given.mean(dim=0), dist.ReduceOp.MIN: given.amin(dim=0)}
        with torch.no_grad():
            tensor.copy_(by_op[op])

    def broadcast(self, tensor: torch.Tensor, src: int = 0, **_: Any) -> None:
        with torch.no_grad():
            tensor.copy_(self.meet("broadcast", tensor.detach().clone())[src])

    def broadcast_object_list(self, objects: list[Any], src: int = 0, **_: Any) -> None:
        objects[:] = self.meet("broadcast_object_list", objects)[src]

    def all_gather_object(self, objects: list[Any], given: Any, **_: Any) -> None:
        objects[:] = self.meet("all_gather_object", given)

    def be_torch_distributed(self) -> None:
        """For good: a child has nothing to put back."""

        def absent(name: str) -> Callable[..., NoReturn]:
            def call(*_: Any, **__: Any) -> NoReturn:
                raise RuntimeError(f"this check's ranks have no {name}: barrier is enough")

            return call

        for name in COMMUNICATES:
            setattr(dist, name, getattr(self, name, absent(name)))
        dist.monitored_barrier = self.barrier
        dist.get_rank = lambda *_, **__: self.rank
        dist.get_world_size = lambda *_, **__: self.world_size


def sizes(folder: str) -> list[tuple[str, int]]:
    """What a look at a disk shows: files with their bytes, folders with -1.

    Quick, for it is done at every line.
    """
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found.append((entry.path, -1))
                    found += sizes(entry.path)
                else:
                    found.append((entry.path, entry.stat(follow_symlinks=False).st_size))
    except FileNotFoundError:  # gone meanwhile
        return found
    return found


LIBRARIES = tuple({os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(torch.__file__))})
IN_STEPS = {"shutil", "tempfile"}  # of Python's library, what changes a disk in more than one step
OF_PATHS = {"open", "write_text", "write_bytes"}


def _may_write(frame: FrameType) -> bool:
    """Whether its lines are worth a look: those of an answer are, few of a library's."""
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__", "")
    if not frame.f_code.co_filename.startswith((*LIBRARIES, "<frozen")):
        return True
    return module in IN_STEPS or (module.startswith("pathlib") and name in OF_PATHS)


def count_changes(folder: Path, moments: Moments) -> None:
    """In all that is called from now on, notes line by line when something changed on disk."""
    where = str(folder)
    seen = sizes(where)

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal seen
        if event == "call" and not _may_write(frame):
            return None
        now = sizes(where)  # which is not traced: no function is, while a trace function runs
        if now != seen:
            seen = now
            moments.one_more()
        return look

    sys.settrace(look)


# ---- in the rank that plays the machine ---------------------------------------------------------


class Child:
    def __init__(self, work: Callable[[Colleagues], Any], rank: int, world_size: int) -> None:
        self.rank = rank
        self.told, tells = Pipe(duplex=False)
        hears, self.tells = Pipe(duplex=False)
        self.pid = os.fork()
        if self.pid == 0:
            self.told.close()
            self.tells.close()
            _live(work, Colleagues(rank, world_size, tells, hears))
        tells.close()
        hears.close()
        self.waits_in: tuple[str, Any] | None = ("start", None)
        self.ended: Ended | None = None

    def go_on(self, heard: Sequence[Any]) -> None:
        """Until it comes to a collective or to its end."""
        self.waits_in = None
        try:
            self.tells.send_bytes(pickle.dumps(heard))
            name, value = pickle.loads(self.told.recv_bytes())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.ended = Ended(KILLED)
            return
        if name in (RETURNED, RAISED):
            self.ended = Ended(name, value)
        else:
            self.waits_in = name, value

    def bury(self) -> None:
        if self.ended is None:
            self.ended = Ended(WAITS)
        try:
            os.kill(self.pid, signal.SIGKILL)
        finally:
            os.waitpid(self.pid, 0)
            self.told.close()
            self.tells.close()


def _live(work: Callable[[Colleagues], Any], colleagues: Colleagues) -> NoReturn:
    try:
        colleagues.heard.recv_bytes()
        colleagues.be_torch_distributed()
        try:
            said = RETURNED, work(colleagues)
        except BaseException as error:
            said = RAISED, (type(error).__name__, _in_words(error))
        finally:
            sys.settrace(None)
        colleagues.told.send_bytes(pickle.dumps(said))
    finally:
        os._exit(0)


def _in_words(error: BaseException) -> str:
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename[:1] == "<" or "ipykernel" in code.co_filename:
            where = f" (in {code.co_name}, line {trace.tb_lineno - code.co_firstlineno + 1} of it)"
        trace = trace.tb_next
    return f"{error}{where}"


def run_ranks(work: Callable[[Colleagues], Any], world_size: int) -> list[Ended]:
    """``work`` on each of so many processes, in turns; by rank, how each ended.

    Once one is killed the others go on until they wait for it, and are then ended too.
    """
    sys.stdout.flush()
    children: list[Child] = []
    try:
        for rank in range(world_size):
            children.append(Child(work, rank, world_size))
        for child in children:
            child.go_on([])
        while all(child.waits_in for child in children):
            meeting = [child.waits_in for child in children if child.waits_in]
            if len({name for name, _ in meeting}) > 1:
                break
            for child in children:
                child.go_on([given for _, given in meeting])
    finally:
        for child in children:
            child.bury()
    return [child.ended for child in children if child.ended]


def raise_what_went_wrong(ends: Sequence[Ended]) -> None:
    """An error of a rank, as if it were this process's own."""
    for rank, ended in enumerate(ends):
        if ended.how == RAISED:
            name, message = ended.value
            kind = getattr(builtins, name, None)
            if name == "NotImplementedError":
                raise NotImplementedError(message)
            if isinstance(kind, type) and issubclass(kind, Exception):
                try:
                    error = kind(f"on rank {rank} of {len(ends)}: {message}")
                except TypeError:  # one that takes more than a text
                    error = RuntimeError(f"on rank {rank} of {len(ends)}: {name}: {message}")
                raise error
            raise RuntimeError(f"on rank {rank} of {len(ends)}: {name}: {message}")
    for rank, ended in enumerate(ends):
        if ended.how == WAITS:
            raise RuntimeError(f"rank {rank} of {len(ends)} {WAITS_FOR_EVER}")


WAITS_FOR_EVER = "waits in a collective that another rank never comes to"
