"""Ranks that share a disk and can be killed: processes forked by the case's only rank.

Sandboxed ranks share no files, and a killed rank ends the run.  If an exercise needs shared files
or kills, its drive forks a process for each rank, all with the same folder, and may kill one
(SIGKILL).
The processes take turns in a given order: each runs until it enters a collective or ends.  So no
result depends on timing, and in one of two opposite orders, a rank that does not wait is ahead of
the one that it should wait for.

Only the forked processes run student code.  The parent never unpickles what they send, and they
cannot write its memory, so it can decide what happened.

In the forked processes, torch.distributed's functions are replaced by those of `process_group`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from autograder.exercise import Plain
from autograder.exercises.lab11_save_resume import process_group
from autograder.exercises.lab11_save_resume.disk_changes import trace_changes
from autograder.exercises.lab11_save_resume.process_group import (
    CHANGED,
    Group,
    Message,
    limit_turn,
)
from autograder.guest import held_calls, private_folders
from shardlab.linux import thread
from shardlab.ranks import codec, messages

ENDS = RETURNED, RAISED, KILLED = "returned", "raised", "killed"
WITH_LISTENER, WITHOUT_LISTENER = b"l", b"-"
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 3, 4, 36


class Outcome(NamedTuple):
    """How a rank ended, or which collective it waits in."""

    status: str
    value: Any = None  # its return value, (kind, message) of its error, or its collective's input


def prctl(option: int, value: int = 0) -> int:
    result: int = ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    return result


# ---- in a child ---------------------------------------------------------------------------------


def run_child(work: Callable[[Group], Any], group: Group, watched: str | None) -> NoReturn:
    try:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(_PR_SET_DUMPABLE, 1)
        kept = group.parent.fileno()
        os.closerange(3, kept)  # most importantly, the connection to the checker
        os.closerange(kept + 1, 1 << 16)
        if watched is not None:
            report_changes(group, watched)
        messages.receive(group.parent)
        group.replace_torch_distributed()
        try:
            limit_turn(process_group.LONGEST_TURN_S)
            header: Message = {"op": RETURNED}
            body = codec.encode_plain(work(group))
            if group.started:
                what = "was started with async_op=True and never waited for"
                raise RuntimeError(f"{group.started[0].op} {what}")
        except BaseException as error:
            header = {"op": RAISED, "error": [type(error).__name__, message_of(error)]}
            body = b""
        limit_turn(0)
        sys.settrace(None)
        messages.send(group.parent, header, body)
    finally:
        os._exit(0)


def report_changes(group: Group, folder: str) -> None:
    """Send the parent the listener for this process's held calls."""
    try:
        listener = held_calls.hold()
    except OSError:
        if private_folders.PATHS:  # graded: only a student's own check may see less
            raise
        group.parent.sendall(WITHOUT_LISTENER)
        trace_changes(folder, lambda: group.exchange(CHANGED))
    else:
        socket.send_fds(group.parent, [WITH_LISTENER], [listener])
        os.close(listener)


def message_of(error: BaseException) -> str:
    """The error's message, with the innermost line of the notebook cell that led to it, which
    rank_errors.with_cell describes in the student's kernel."""
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename[:1] == "<" or "ipykernel" in code.co_filename:
            where = f"  [{code.co_filename}, line {line}]"
    return f"{error}{where}"


# ---- in the parent ------------------------------------------------------------------------------


class Observer:
    """What the parent does while ranks run; nothing by default."""

    watched: str | None = None  # a folder: ``should_kill`` is then called before every change in it

    def should_kill(self, rank: int, message: Message | None) -> bool:
        """Whether to kill the rank, asked before a change on disk and when it sends a message."""
        return False

    def should_pause(self, rank: int) -> bool:
        """Whether a change on disk has to wait until the other ranks cannot continue."""
        return False

    def answer(self, rank: int, message: Message) -> Plain:
        """The answer to a rank's request; None if the message is a collective."""
        return None


@dataclass
class Child:
    pid: int
    sock: socket.socket
    listener: int | None = None
    last: Outcome = field(default_factory=lambda: Outcome("start"))

    def __post_init__(self) -> None:
        self.pidfd = os.pidfd_open(self.pid)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.sock.close()
        os.close(self.pidfd)
        if self.listener is not None:
            os.close(self.listener)


@contextlib.contextmanager
def protected_parent() -> Iterator[None]:
    """Forked ranks cannot access this process's memory, and when they are killed, their own
    children become its children."""
    was_dumpable = prctl(_PR_GET_DUMPABLE, 0)
    ctypes.CDLL(None).malloc_trim(0)  # returns freed memory, such as messages with a case's data
    prctl(_PR_SET_DUMPABLE, 0 if private_folders.PATHS else was_dumpable)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)
        prctl(_PR_SET_DUMPABLE, was_dumpable)


def run_ranks(
    work: Callable[[Group], Any],
    world_size: int,
    observer: Observer | None = None,
    order: Sequence[int] = (),
) -> list[Outcome]:
    """Run ``work`` in ``world_size`` processes that take turns; returns how each ended, by rank.

    ``order``: of their turns.  After a kill, the others continue until they wait for the killed
    rank, and are then ended, too.
    """
    sys.stdout.flush()
    ranks = Ranks(observer or Observer(), thread.children(os.getpid()))
    try:
        for rank in range(world_size):
            ranks.start(work, rank, world_size)
        while len({each.last.status for each in ranks.children}) == 1 and not ranks.ended:
            given = [each.last.value for each in ranks.children]
            for rank in order or range(world_size):
                ranks.resume(rank, given)
            ranks.end_pause()
    finally:
        for child in ranks.children:
            child.close()
        ranks.kill_orphans()
    return [each.last for each in ranks.children]


@dataclass
class Ranks:
    observer: Observer
    others: set[int]  # this process's children that are not ranks
    children: list[Child] = field(default_factory=list)
    paused: tuple[int, int] | None = None  # a rank, and its held call
    continued: int = 0  # the thread whose held call was the last to continue

    @property
    def ended(self) -> bool:
        return any(each.last.status in ENDS for each in self.children)

    def start(self, work: Callable[[Group], Any], rank: int, world_size: int) -> None:
        ours, theirs = socket.socketpair()
        if (pid := os.fork()) == 0:
            ours.close()
            run_child(work, Group(rank, world_size, theirs), self.observer.watched)
        theirs.close()
        child = Child(pid, ours)
        self.children.append(child)
        if self.observer.watched is not None:
            first, fds, _, _ = socket.recv_fds(ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if first == WITH_LISTENER:
                (child.listener,) = fds
            elif first != WITHOUT_LISTENER:
                raise RuntimeError("this machine cannot hold a rank's system calls")

    def resume(self, rank: int, given: Any) -> None:
        """Send a child a collective's result; wait until it enters the next one, or ends."""
        child = self.children[rank]
        if child.last.status in ENDS:
            return
        with contextlib.suppress(OSError):
            messages.send(child.sock, {}, pickle.dumps(given))
        self.wait_for(rank)

    def end_pause(self) -> None:
        if self.paused is not None:
            (rank, call), self.paused = self.paused, None
            held_calls.let_continue(self.children[rank].listener or -1, call)
            self.wait_for(rank)

    def wait_for(self, rank: int) -> None:
        child = self.children[rank]
        child.last = Outcome("runs")
        poll = select.poll()
        for each in self.children:
            if each.listener is not None:
                poll.register(each.listener, select.POLLIN)
        poll.register(child.sock, select.POLLIN)
        poll.register(child.pidfd, select.POLLIN)
        while child.last.status == "runs":
            ready = {fd: event for fd, event in poll.poll() if event & select.POLLIN}
            for number, each in enumerate(self.children):
                if each.listener in ready:
                    self.on_held_call(number)
            if child.last.status != "runs":
                return
            if child.sock.fileno() in ready:
                self.on_message(rank)
            elif child.pidfd in ready:
                child.last = Outcome(KILLED)

    def on_held_call(self, rank: int) -> None:
        child = self.children[rank]
        assert child.listener is not None
        if (held := held_calls.next_held(child.listener)) is None:
            return
        call, thread = held
        self.settle(thread)
        if self.observer.should_kill(rank, None):
            self.kill(rank)
        elif self.observer.should_pause(rank):
            self.paused = rank, call
            child.last = Outcome("is paused")
        else:
            held_calls.let_continue(child.listener, call)
            self.continued = thread

    def settle(self, thread: int) -> None:
        """Wait for another thread's last change: only a thread's own events are in order."""
        if self.continued not in (0, thread):
            held_calls.wait_until_done(self.continued)

    def on_message(self, rank: int) -> None:
        child = self.children[rank]
        try:
            header, body = messages.receive(child.sock)
            op = str(header.get("op"))
            value = codec.decode_plain(body) if op == RETURNED else body
            if op == RAISED:
                kind, text = header["error"]
                value = str(kind), str(text)
        except (OSError, EOFError):
            child.last = Outcome(KILLED)
            return
        except Exception as error:  # bytes that our code would not send
            child.last = Outcome(RAISED, (type(error).__name__, str(error)))
            return
        self.settle(child.pid)
        if self.observer.should_kill(rank, header):
            self.kill(rank)
        elif op == CHANGED:
            messages.send(child.sock, {}, pickle.dumps([]))
        elif (answer := self.observer.answer(rank, header)) is not None:
            messages.send(child.sock, {}, pickle.dumps([codec.encode_plain(answer)]))
        else:
            child.last = Outcome(op, value)

    def kill(self, rank: int) -> None:
        """Kill a rank and all processes that it started."""
        os.kill(self.children[rank].pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.children[rank].pid, os.WEXITED | os.WNOWAIT)
        self.kill_orphans()
        self.children[rank].last = Outcome(KILLED)

    def kill_orphans(self) -> None:
        """Kill processes that ranks started and that are now this process's children."""
        known = self.others | {child.pid for child in self.children}
        while pids := thread.children(os.getpid()) - known:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def was_killed(outcomes: Sequence[Outcome]) -> bool:
    return any(each.status == KILLED for each in outcomes)
