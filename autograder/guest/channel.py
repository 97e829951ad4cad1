"""Inside a container: the connection from a student's cells to the grader (protocol: kernel.py)."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import signal
import socket
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from shardlab.ranks import messages

ALL_SIGNALS = signal.valid_signals()
MAX_MARKS = 2000  # of one cell: after that, the order between stdout and stderr is lost
MAX_SHOWN = 50_000  # output messages of one cell


class Channel:
    """Sends messages to the grader, each one whole even when a signal arrives."""

    def __init__(self, sock: socket.socket, fds: list[int], output_bytes: int) -> None:
        self.sock = sock
        # High numbers, which a cell's own files do not reach; it may redirect 1 and 2, not these.
        self.files = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in fds]
        for fd in fds:
            os.close(fd)
        self.output_bytes = output_bytes
        self.owner = os.getpid()
        self.lock = threading.RLock()
        self.sending = False
        self.was_interrupted = False
        self.last_writer: Stream | None = None
        self.begin()

    def begin(self) -> None:
        """Start a new cell."""
        self.marks = 0
        self.shown = 0
        self.errors = 0
        self.written = 0  # characters through Python since the cell began or its output was cleared

    def redirect_standard_streams(self) -> None:
        for fd, ours in zip((1, 2), self.files, strict=True):
            os.dup2(ours, fd)
        with open(os.devnull) as empty:
            os.dup2(empty.fileno(), 0)
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stdout = sys.__stdout__ = Stream(self, 1)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = Stream(self, 2)  # type: ignore[misc]

    def file_sizes(self) -> list[int]:
        return [os.fstat(fd).st_size for fd in self.files]

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        if os.getpid() != self.owner:
            return  # a fork: messages of two processes would mix
        data = messages.pack(header, body)
        with self.lock, self._signals_blocked():
            self.sock.sendall(data)

    @contextlib.contextmanager
    def _signals_blocked(self) -> Iterator[None]:
        # Signal handlers run in the main thread, so only its messages need this.
        self.sending = threading.current_thread() is threading.main_thread()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
        try:
            yield
        finally:
            self.sending = False
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self.was_interrupted:
            self.was_interrupted = False
            raise KeyboardInterrupt

    def on_interrupt(self, *_: object) -> None:
        """SIGINT handler: deferred while sending, because half a message would look forged."""
        if self.sending:
            self.was_interrupted = True
        else:
            raise KeyboardInterrupt

    def output(self, kind: str, content: dict[str, Any]) -> None:
        self.shown += 1
        if self.shown > MAX_SHOWN and kind != "error":
            return
        body = as_json(content)
        if len(body) > self.output_bytes:
            kind, body = "too much", b""
        self.send({"is": kind, "at": self.file_sizes()}, body)

    def error(self, error: BaseException, traceback: list[str]) -> None:
        self.errors += 1
        name = type(error).__name__
        try:
            message = str(error)
        except BaseException:
            message = "(its message could not be produced)"
        lines = traceback or [f"{name}: {message}"]
        content = {"ename": name, "evalue": message, "traceback": [str(line) for line in lines]}
        if len(as_json(content)) > self.output_bytes:
            content = {"ename": name, "evalue": message[:1000], "traceback": [message[:1000]]}
        self.output("error", content)

    def clear(self, wait: bool) -> None:
        self.written = 0
        self.shown += 1
        if self.shown <= MAX_SHOWN:
            self.send({"is": "clear", "wait": bool(wait), "at": self.file_sizes()})

    def mark(self, writer: Stream) -> None:
        """Called before ``writer`` writes: marks what the other stream has written as earlier."""
        if self.last_writer is not None and self.marks < MAX_MARKS:
            self.marks += 1
            self.send({"is": "mark", "at": self.file_sizes()})
        self.last_writer = writer


class Stream(io.TextIOWrapper):
    """sys.stdout and sys.stderr: unbuffered, and truncated to what the grader keeps."""

    def __init__(self, channel: Channel, fd: int) -> None:
        file = io.FileIO(fd, "w", closefd=False)
        super().__init__(file, encoding="utf-8", errors="backslashreplace", write_through=True)
        self.channel = channel

    def write(self, text: str) -> int:
        channel = self.channel
        if os.getpid() != channel.owner or not isinstance(text, str):
            return super().write(text)
        if channel.last_writer is not self:
            channel.mark(self)
        if channel.written <= channel.output_bytes:  # one more shows the grader that it was cut
            channel.written += len(text)
            super().write(text[: channel.output_bytes + 1])
        return len(text)


def as_json(content: dict[str, Any]) -> bytes:
    """JSON of any ``_repr_mimebundle_``; only its text/plain if that is not valid JSON."""
    try:
        return json.dumps(content, allow_nan=False, default=_plain).encode()
    except (ValueError, TypeError, RecursionError):
        data = content.get("data", {})
        text = {"text/plain": str(data.get("text/plain", "(this output is not valid JSON)"))}
        return json.dumps({"data": text, "metadata": {}}).encode()


def _plain(value: object) -> str:
    if isinstance(value, bytes):  # an image
        return b64encode(value).decode()
    return str(value)
