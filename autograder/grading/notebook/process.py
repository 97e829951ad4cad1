"""The grader's side of one contained process that runs cells: requests and replies.

The other end of the socket starts as kernel.py, but from the first cell on, student code may have
changed it.  So no message is trusted: text is kept up to a limit, and an answer goes to the ranks
still pickled.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from autograder.evaluation.trial import InfrastructureError
from autograder.grading.notebook.outputs import Outputs
from autograder.guest.answer import MAX_ANSWER_BYTES
from autograder.sandbox import Limits
from autograder.sandbox.contained import ContainedCells, Ending
from shardlab.linux import thread
from shardlab.ranks import messages
from shardlab.ranks.client import memory_file

START_S = 60.0  # until a new process reports that it is ready
MAX_MESSAGES = 200_000  # from one cell: far more than any cell displays
MAX_SLOWDOWN = 10  # elapsed time of a cell on a busy machine, as a multiple of its limit
MAX_PROCESSORS = 2  # CPU time of a cell's container, as a multiple of its limit
CHUNK = 1 << 18
STREAMS = ("stdout", "stderr")


@dataclass(frozen=True)
class CellEnd:
    """How one cell ended."""

    status: str  # "ran", "raised", "limit" (of time or memory), "died" (its process) or "not run"
    name: str = ""  # of the error that the grader adds, if the cell did not end by itself
    sentence: str = ""  # for the student
    is_lost: bool = False  # the process has ended, and a new one must continue
    forged: bool = False


class _Forged(Exception):
    """A message that kernel.py does not send."""


@dataclass
class Sink:
    """Where the messages of one cell go."""

    position: int
    count: int  # In[count]
    outputs: Outputs
    answers: dict[str, bytes]
    exercises: Collection[str]


class _Clock:
    """The run time of a cell, without the time that its main thread waited for a processor."""

    def __init__(self, contained: ContainedCells) -> None:
        self.contained = contained
        self.started_s = time.monotonic()
        self.waited_before_ns = self.waited_ns = thread.waited_ns(contained.pid) or 0
        self.cpu_before_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def run_s(self) -> float:
        # waited_ns() is None if the process has ended.
        self.waited_ns = max(self.waited_ns, thread.waited_ns(self.contained.pid) or 0)
        return self.elapsed_s - (self.waited_ns - self.waited_before_ns) / 1e9

    def has_reached(self, seconds: float) -> bool:
        """Raises InfrastructureError if the machine has been far too busy for too long."""
        if self.run_s() >= seconds:
            return True
        if self.elapsed_s < seconds:
            return False
        # The cell itself may keep the processors busy, with dozens of processes.
        cpu_s = self.contained.cpu_s()
        if self.cpu_before_s is None:
            self.cpu_before_s = cpu_s
        if cpu_s - self.cpu_before_s >= MAX_PROCESSORS * seconds:
            return True
        if self.elapsed_s >= max(MAX_SLOWDOWN * seconds, START_S):
            raise InfrastructureError(
                f"a cell could run for only {self.run_s():.1f} s of {self.elapsed_s:.0f} s: the "
                "machine is too busy to grade"
            )
        return False


class Process:
    """One contained process, with the read positions of its output and its messages."""

    def __init__(self, contained: ContainedCells, limits: Limits) -> None:
        self.contained = contained
        self.grace_s = limits.interrupt_grace_s
        self.used_s = 0.0  # of the cell that has just run
        self.cell = 0
        self.raised = False
        self.read_to = [0, 0]
        self.inbox = messages.Inbox(max_body_bytes=MAX_ANSWER_BYTES)
        self.received = 0  # messages, of this cell
        self.sock = contained.sock
        self.sock.setblocking(False)
        self.is_closed = False
        self.poll = select.poll()
        self.files = [memory_file(name) for name in STREAMS]
        for fd in self.files:
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)  # several processes may write
        self.pidfd: int | None = None
        with contextlib.suppress(ProcessLookupError):
            # The socket alone is not enough: a fork of the process may keep it open.
            self.pidfd = os.pidfd_open(contained.pid)
            self.poll.register(self.pidfd, select.POLLIN)
        start = messages.pack({"do": "start", "output_bytes": limits.output_bytes})
        with contextlib.suppress(OSError):
            socket.send_fds(self.sock, [start], self.files)
        if self._until_done(b"", _Clock(contained), START_S, None) != "done":
            raise InfrastructureError(
                f"the notebook's process did not start: {self._ending().sentence}"
            )

    def close(self) -> None:
        for fd in [*self.files, *([] if self.pidfd is None else [self.pidfd])]:
            os.close(fd)

    def run(self, source: str, seconds: float, sink: Sink) -> CellEnd:
        self.cell += 1
        self.received = 0
        clock = _Clock(self.contained)
        request = messages.pack({"do": "run", "cell": self.cell}, source.encode(errors="replace"))
        try:
            end = self._run(request, clock, seconds, sink)
        except _Forged:
            self.contained.kill()
            sentence = "The kernel sent the grader a forged message and was killed."
            end = CellEnd("died", "DeadKernel", sentence, is_lost=True, forged=True)
        self._read_files(sink)
        for fd in self.files:
            os.ftruncate(fd, 0)
        self.read_to = [0, 0]
        self.used_s = clock.run_s()
        return end

    def _run(self, request: bytes, clock: _Clock, seconds: float, sink: Sink) -> CellEnd:
        how = self._until_done(request, clock, seconds, sink)
        if how == "done":
            return CellEnd("raised" if self.raised else "ran")
        if how == "late":
            self.contained.interrupt()
            how = self._until_done(b"", _Clock(self.contained), self.grace_s, sink)
            if how == "done":
                sentence = f"This cell was stopped after {seconds:.0f} s."
                return CellEnd("limit", "CellTimeout", sentence)
            self.contained.kill()
            sentence = (
                f"This cell was still running after {seconds:.0f} s and did not stop when "
                "interrupted: its kernel was killed."
            )
            return CellEnd("limit", "CellTimeout", sentence, is_lost=True)
        ending = self._ending()
        sentence = f"The kernel died in this cell: {ending.sentence}."
        return CellEnd("limit" if ending.by_limit else "died", "DeadKernel", sentence, is_lost=True)

    def _until_done(self, request: bytes, clock: _Clock, seconds: float, sink: Sink | None) -> str:
        """ "done", "late" or "dead"; raises _Forged and InfrastructureError."""
        if self._take_messages(sink):  # that arrived since the previous cell ended
            return "done"
        while not clock.has_reached(seconds):
            if self.is_closed:
                return "dead"
            self.poll.register(self.sock, select.POLLIN | (select.POLLOUT if request else 0))
            left_s = max(seconds - clock.run_s(), 0.01)
            ready = dict(self.poll.poll(1000 * min(left_s, 1)))
            events = ready.get(self.sock.fileno(), 0)
            if events & select.POLLOUT:
                request = request[self._send(request) :]
            if events & ~select.POLLOUT and self._receive(sink):
                return "done"
            if self.pidfd in ready or self.pidfd is None:
                while not self.is_closed and self._has_more():
                    if self._receive(sink):
                        return "done"
                return "dead"
        return "late"

    def _send(self, request: bytes) -> int:
        try:
            return self.sock.send(request)
        except OSError as error:
            self.is_closed = not isinstance(error, BlockingIOError)
            return 0

    def _receive(self, sink: Sink | None) -> bool:
        """Whether the cell is done."""
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
        self.inbox.feed(data)
        return self._take_messages(sink)

    def _has_more(self) -> bool:
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _take_messages(self, sink: Sink | None) -> bool:
        try:
            while (message := self.inbox.next()) is not None:
                self.received += 1
                if self.received > MAX_MESSAGES:
                    raise _Forged
                if self._take(*message, sink):
                    return True
        except ValueError as error:  # not a message, or one over the limits
            raise _Forged from error
        return False

    def _take(self, header: dict[str, Any], body: bytes, sink: Sink | None) -> bool:
        if sink is None:
            if header != {"is": "ready"}:
                raise _Forged
            return True
        match header:
            case {"at": [int(stdout), int(stderr)]}:
                self._read_files(sink, (stdout, stderr))
            case {"at": at} if at is not None:
                raise _Forged
        match header:
            case {"is": "done", "cell": self.cell, "raised": bool(raised)}:
                self.raised = raised
                return True
            case {"is": "display" | "update" | "result" | "error" as kind}:
                sink.outputs.show(sink.position, kind, body, sink.count)
            case {"is": "too much"}:
                sink.outputs.truncate(sink.position)
            case {"is": "clear", "wait": bool(wait)}:
                sink.outputs.clear(sink.position, wait)
            case {"is": "mark"}:
                pass
            case {"is": "answer", "name": str(name)}:
                if name in sink.exercises:
                    sink.answers[name] = body
            case _:
                raise _Forged
        return False

    def _read_files(self, sink: Sink, until: tuple[int, int] | None = None) -> None:
        """Read what the cell printed up to ``until``, within its limit."""
        for index, name in enumerate(STREAMS):
            size = os.fstat(self.files[index]).st_size
            begin = min(self.read_to[index], size)
            end = size if until is None else max(begin, min(until[index], size))
            most = sink.outputs.room(sink.position) + 1 if end > begin else 0
            text = os.pread(self.files[index], min(end - begin, most), begin)
            sink.outputs.write(sink.position, name, text)
            self.read_to[index] = end

    def _ending(self) -> Ending:
        """How a process ended that is dead or has closed its connection."""
        if self.pidfd is not None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if not poll.poll(2000):
                self.contained.kill()
                return Ending("it closed its connection to the grader")
        return self.contained.why_ended()
