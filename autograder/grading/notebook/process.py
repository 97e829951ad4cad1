"""One contained process that runs cells, seen from outside: what it is sent, and what it answers.

The other end of the socket is kernel.py, at first; from the first cell on it is whatever the
student's code has made of it.  So nothing that arrives is believed: it is text to be kept up to a
limit, or an answer that is carried to the ranks unopened.
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
from shardlab.ranks import messages, thread
from shardlab.ranks.client import memory_file

START_S = 60.0  # until a fresh process has said that it is ready
MAX_MESSAGES = 200_000  # of one cell: far above what any cell displays
PATIENCE = 10  # times a limit: of elapsed time, when the machine gives us too little
PROCESSORS = 2  # times a limit: of processor time, however busy the container keeps the machine
CHUNK = 1 << 18
STREAMS = ("stdout", "stderr")


@dataclass(frozen=True)
class End:
    """How one cell ended."""

    how: str  # "ran", "raised", "limit" (time or memory), "died" (its process ended) or "not run"
    name: str = ""  # of the error that we write into the cell, where it did not end by itself
    sentence: str = ""  # for the student
    is_lost: bool = False  # the process; a new one has to go on
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
    """Seconds that the machine gave a cell: those its main thread stood in a queue do not count."""

    def __init__(self, contained: ContainedCells) -> None:
        self.contained = contained
        self.begun_s = time.monotonic()
        self.waited_before_ns = self.waited_ns = thread.waited_ns(contained.pid) or 0
        self.cpu_before_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begun_s

    def given_s(self) -> float:
        # None of one that has ended.
        self.waited_ns = max(self.waited_ns, thread.waited_ns(self.contained.pid) or 0)
        return self.elapsed_s - (self.waited_ns - self.waited_before_ns) / 1e9

    def is_over(self, seconds: float) -> bool:
        """Raises InfrastructureError where the machine gave far too little for far too long."""
        if self.given_s() >= seconds:
            return True
        if self.elapsed_s < seconds:
            return False
        # The queue may be of the cell's own making: dozens of busy processes.
        cpu_s = self.contained.cpu_s()
        if self.cpu_before_s is None:
            self.cpu_before_s = cpu_s
        if cpu_s - self.cpu_before_s >= PROCESSORS * seconds:
            return True
        if self.elapsed_s >= max(PATIENCE * seconds, START_S):
            raise InfrastructureError(
                f"the machine gave a cell {self.given_s():.1f} s of {self.elapsed_s:.0f} s: it is "
                "too busy to grade"
            )
        return False


class Process:
    """One contained process, and how far its files and its messages have been read."""

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
        self.death: int | None = None
        with contextlib.suppress(ProcessLookupError):
            # The socket alone does not tell: a fork of the process may hold it open.
            self.death = os.pidfd_open(contained.pid)
            self.poll.register(self.death, select.POLLIN)
        start = messages.pack({"do": "start", "output_bytes": limits.output_bytes})
        with contextlib.suppress(OSError):
            socket.send_fds(self.sock, [start], self.files)
        if self._until_done(b"", _Clock(contained), START_S, None) != "done":
            raise InfrastructureError(f"the cells' process did not start: {self._why().sentence}")

    def close(self) -> None:
        for fd in [*self.files, *([] if self.death is None else [self.death])]:
            os.close(fd)

    def run(self, source: str, seconds: float, sink: Sink) -> End:
        self.cell += 1
        self.received = 0
        clock = _Clock(self.contained)
        request = messages.pack({"do": "run", "cell": self.cell}, source.encode(errors="replace"))
        try:
            end = self._run(request, clock, seconds, sink)
        except _Forged:
            self.contained.kill()
            sentence = "The kernel sent the grader what no kernel sends, and was ended."
            end = End("died", "DeadKernel", sentence, is_lost=True, forged=True)
        self._read_files(sink)
        for fd in self.files:
            os.ftruncate(fd, 0)
        self.read_to = [0, 0]
        self.used_s = clock.given_s()
        return end

    def _run(self, request: bytes, clock: _Clock, seconds: float, sink: Sink) -> End:
        how = self._until_done(request, clock, seconds, sink)
        if how == "done":
            return End("raised" if self.raised else "ran")
        if how == "late":
            self.contained.interrupt()
            how = self._until_done(b"", _Clock(self.contained), self.grace_s, sink)
            if how == "done":
                sentence = f"This cell was stopped after {seconds:.0f} s."
                return End("limit", "CellTimeout", sentence)
            self.contained.kill()
            sentence = (
                f"This cell was still running after {seconds:.0f} s and did not stop when asked "
                "to: its kernel was ended."
            )
            return End("limit", "CellTimeout", sentence, is_lost=True)
        ending = self._why()
        sentence = f"The kernel died in this cell: {ending.sentence}."
        return End("limit" if ending.by_limit else "died", "DeadKernel", sentence, is_lost=True)

    def _until_done(self, request: bytes, clock: _Clock, seconds: float, sink: Sink | None) -> str:
        """ "done", "late" or "dead"; raises _Forged and InfrastructureError."""
        if self._take_messages(sink):  # that came behind those of the cell before
            return "done"
        while not clock.is_over(seconds):
            if self.is_closed:
                return "dead"
            self.poll.register(self.sock, select.POLLIN | (select.POLLOUT if request else 0))
            left_s = max(seconds - clock.given_s(), 0.01)
            ready = dict(self.poll.poll(1000 * min(left_s, 1)))
            events = ready.get(self.sock.fileno(), 0)
            if events & select.POLLOUT:
                request = request[self._send(request) :]
            if events & ~select.POLLOUT and self._receive(sink):
                return "done"
            if self.death in ready or self.death is None:
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
        except ValueError as error:  # no message, or one above all limits
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
                sink.outputs.overflow(sink.position)
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
        """What was written, and came before: as much of it as is kept."""
        for index, name in enumerate(STREAMS):
            size = os.fstat(self.files[index]).st_size
            begin = min(self.read_to[index], size)
            end = size if until is None else max(begin, min(until[index], size))
            most = sink.outputs.room(sink.position) + 1 if end > begin else 0
            text = os.pread(self.files[index], min(end - begin, most), begin)
            sink.outputs.write(sink.position, name, text)
            self.read_to[index] = end

    def _why(self) -> Ending:
        """Of a process that is dead, or that speaks with us no more."""
        if self.death is not None:
            poll = select.poll()
            poll.register(self.death, select.POLLIN)
            if not poll.poll(2000):
                self.contained.kill()
                return Ending("it closed its connection to the grader")
        return self.contained.why_ended()
