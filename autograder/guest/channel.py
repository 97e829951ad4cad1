"""Inside a container: how a student's cells speak with the outside (the words are in kernel.py)."""

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
MAX_MARKS = 2000  # of one cell: from there on stdout and stderr are only told apart
MAX_SHOWN = 50_000  # messages about outputs, of one cell


class Channel:
    """The way out: one message at a time, whole, whatever interrupts us."""

    def __init__(self, sock: socket.socket, fds: list[int], output_bytes: int) -> None:
        self.sock = sock
        # Out of the way of a cell's own files; it may redirect 1 and 2, and those stay.
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
        """A new cell."""
        self.marks = 0
        self.shown = 0
        self.errors = 0
        self.written = 0  # characters, through Python, since the cell or its output was new

    def take_standard_files(self) -> None:
        for fd, ours in zip((1, 2), self.files, strict=True):
            os.dup2(ours, fd)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stdout = sys.__stdout__ = Stream(self, 1)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = Stream(self, 2)  # type: ignore[misc]

    def at(self) -> list[int]:
        return [os.fstat(fd).st_size for fd in self.files]

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        if os.getpid() != self.owner:
            return  # two processes would speak at once
        data = messages.pack(header, body)
        with self.lock, self._undisturbed():
            self.sock.sendall(data)

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        # Handlers run in the main thread: another one's message is in no danger.
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

    def interrupted(self, *_: object) -> None:
        """The handler of SIGINT: half a message would be taken for a forged one."""
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
        self.send({"is": kind, "at": self.at()}, body)

    def error(self, error: BaseException, traceback: list[str]) -> None:
        self.errors += 1
        name = type(error).__name__
        try:
            said = str(error)
        except BaseException:
            said = "(its message cannot be made)"
        lines = traceback or [f"{name}: {said}"]
        content = {"ename": name, "evalue": said, "traceback": [str(line) for line in lines]}
        if len(as_json(content)) > self.output_bytes:
            content = {"ename": name, "evalue": said[:1000], "traceback": [said[:1000]]}
        self.output("error", content)

    def clear(self, wait: bool) -> None:
        self.written = 0
        self.shown += 1
        if self.shown <= MAX_SHOWN:
            self.send({"is": "clear", "wait": bool(wait), "at": self.at()})

    def mark(self, writer: Stream) -> None:
        """Before ``writer`` writes: what the other one wrote until now comes first."""
        if self.last_writer is not None and self.marks < MAX_MARKS:
            self.marks += 1
            self.send({"is": "mark", "at": self.at()})
        self.last_writer = writer


class Stream(io.TextIOWrapper):
    """sys.stdout and sys.stderr: at once into the file, and no more than will be kept."""

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
        if channel.written <= channel.output_bytes:  # or the outside has seen that there was more
            channel.written += len(text)
            super().write(text[: channel.output_bytes + 1])
        return len(text)


def as_json(content: dict[str, Any]) -> bytes:
    """Text, whatever a ``_repr_mimebundle_`` returned; of what cannot be written, its repr."""
    try:
        return json.dumps(content, allow_nan=False, default=_plain).encode()
    except (ValueError, TypeError, RecursionError):
        data = content.get("data", {})
        said = {"text/plain": str(data.get("text/plain", "(an output that is no JSON)"))}
        return json.dumps({"data": said, "metadata": {}}).encode()


def _plain(value: object) -> str:
    if isinstance(value, bytes):  # a picture
        return b64encode(value).decode()
    return str(value)
