"""Inside a container: a student's cells in IPython, without Jupyter's sockets and threads.

``kernel.py`` drives it from outside and believes nothing that comes from here, because it comes
from a process in which student code runs.  Over one stream socket (shardlab.ranks.messages):

    to here    {"do": "start", "output_bytes": n}, with two memory files: stdout and stderr
               {"do": "run", "cell": k}, the body is its source
    from here  {"is": "ready"}
               {"is": "display", "result", "update" or "error", "at": [o, e]}, a body of JSON
               {"is": "clear", "wait": bool, "at": [o, e]}
               {"is": "mark", "at": [o, e]}
               {"is": "too much", "at": [o, e]}
               {"is": "answer", "name": exercise}, the body is a cloudpickle
               {"is": "done", "cell": k, "raised": bool, "at": [o, e]}

stdout and stderr are files in memory, not pipes: what Python, C code and child processes write
keeps its order, nobody waits for a reader, and it can still be read after the process has died.
``at`` tells how long both are, so that text and pictures come out in the order they were made.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import fcntl
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, NoReturn

import IPython.core.ultratb
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets.config import Config

from autograder import kernel
from shardlab.ranks import messages, server

PRELOAD = (
    "matplotlib.pyplot",
    "shardlab.widgets",
    # What a shell imports when it is made; one that is made here would take this process over.
    "IPython.core.completer",
    "IPython.core.macro",
    "IPython.core.magics.script",
    "IPython.core.payload",
    "IPython.core.prefilter",
)
FIGURES = "module://matplotlib_inline.backend_inline"  # to the notebook, as in Jupyter
ALL_SIGNALS = signal.valid_signals()
MAX_MARKS = 2000  # of one cell: from there on stdout and stderr are only told apart
MAX_SHOWN = 50_000  # messages about outputs, of one cell


def preload() -> None:
    """In the process that this one is forked from: what ``main``, most cells and ranks import.

    5 s of a processor once for each worker; what lab 01 takes for each submission without it is 9.
    """
    server.preload(*PRELOAD, *server.PRELOAD_WHEN_IDLE)
    formatter = IPython.core.ultratb.AutoFormattedTB(mode="Context")
    try:
        raise ValueError("shown to nobody")
    except ValueError as error:
        formatter.structured_traceback(type(error), error, error.__traceback__)
    sys.modules["matplotlib.pyplot"].Figure().savefig(io.BytesIO())  # reads the fonts
    sys.modules["matplotlib"].rcsetup.validate_backend(FIGURES)  # reads what is installed
    server.preload()


def main(sock: socket.socket) -> NoReturn:
    """Runs what comes over ``sock`` in the current folder, until the other side closes it."""
    try:
        _serve(sock)
    except BaseException:  # a cell closed our files, say
        os._exit(70)
    os._exit(0)  # no student's threads are waited for, nor any atexit run


def _serve(sock: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between cells there is nothing to interrupt
    packet, fds, _, _ = socket.recv_fds(sock, 1 << 16, 2, socket.MSG_CMSG_CLOEXEC)
    inbox = messages.Inbox()
    inbox.feed(packet)
    first = inbox.next()
    assert first is not None
    channel = Channel(sock, fds, int(first[0]["output_bytes"]))
    channel.take_standard_files()
    os.environ.update(MPLBACKEND=FIGURES, PAGER="cat", TERM="dumb")
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].rcParams["backend"] = FIGURES
    sys.argv = [""]
    sys.path.insert(0, "")
    builtins.input = _no_input
    shell = make_shell(channel)
    kernel.hand_over = channel.answer
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    channel.send({"is": "ready"})
    while True:
        try:
            header, source = messages.receive(sock)
        except EOFError:
            return
        channel.begin()
        raised = _run(shell, channel, loop, source.decode())
        if os.getpid() != channel.owner:
            return  # a fork of the student's that ran on: not ours to speak for
        channel.send({"is": "done", "cell": header["cell"], "raised": raised, "at": channel.at()})


def _run(shell: Shell, channel: Channel, loop: asyncio.AbstractEventLoop, source: str) -> bool:
    """Whether the cell raised."""
    result: Any = None
    error: BaseException | None = None
    try:
        task = loop.create_task(_cell(shell, source))
        signal.signal(signal.SIGINT, channel.interrupted)
        try:
            result = loop.run_until_complete(task)
        except KeyboardInterrupt:  # it waited for something: IPython saw nothing of this
            task.cancel()
            result = loop.run_until_complete(task)
    except BaseException as failure:  # also SystemExit, or what a broken shell raises
        error = failure
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    if result is not None and error is None:
        error = result.error_before_exec or result.error_in_exec
    if error is not None and not channel.errors:
        channel.error(error, [])
    with contextlib.suppress(Exception, KeyboardInterrupt):
        sys.stdout.flush()
        sys.stderr.flush()
    return error is not None


async def _cell(shell: Shell, source: str) -> Any:
    """As Jupyter does it: inside a running loop, whether the cell awaits anything or not."""
    failure = None
    try:
        transformed = shell.transform_cell(source)
    except Exception:
        transformed, failure = source, sys.exc_info()
    result = None
    try:
        result = await shell.run_cell_async(
            source,
            store_history=True,
            transformed_cell=transformed,
            preprocessing_exc_tuple=failure,
        )
    finally:
        shell.events.trigger("post_execute")  # figures are shown here
        shell.events.trigger("post_run_cell", result)
    return result


def _no_input(prompt: object = "") -> str:
    raise EOFError("nobody can answer input() while a notebook is graded: write the value down")


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
            self.send({"is": "too much", "at": self.at()})
        else:
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

    def answer(self, name: str, pickled: bytes) -> None:
        self.send({"is": "answer", "name": name}, pickled)


class Stream(io.TextIOWrapper):
    """sys.stdout and sys.stderr: at once into the file, and no more than will be kept."""

    def __init__(self, channel: Channel, fd: int) -> None:
        super().__init__(
            io.FileIO(fd, "w", closefd=False),
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        self.channel = channel

    def write(self, text: str) -> int:
        channel = self.channel
        if os.getpid() == channel.owner and isinstance(text, str):
            if channel.last_writer is not self:
                channel.mark(self)
            if channel.written > channel.output_bytes:
                return len(text)  # the outside has enough to see that there was more
            channel.written += len(text)
            super().write(text[: channel.output_bytes + 1])
            return len(text)
        return super().write(text)


class Publisher(DisplayPublisher):
    """Where ``display`` leads."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: object = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        self._validate_data(data, metadata)
        content = {
            "data": data,
            "metadata": metadata or {},
            "display_id": (transient or {}).get("display_id"),
        }
        self.shell.channel.output("update" if update else "display", content)

    def clear_output(self, wait: bool = False) -> None:
        self.shell.channel.clear(wait)


class Hook(DisplayHook):
    """Shows the value of a cell's last line."""

    shell: Shell

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        self.shell.channel.output("result", {"data": format_dict, "metadata": md_dict or {}})

    def finish_displayhook(self) -> None:
        self._is_active = False


class Shell(InteractiveShell):
    channel: Channel
    kernel = None  # what tells a notebook from a terminal; it has no live widgets

    def init_virtualenv(self) -> None:
        """We are in the right one already."""

    def init_hooks(self) -> None:
        super().init_hooks()
        # `thing?`: a notebook shows it beside the cells, and keeps nothing
        self.set_hook("show_in_pager", lambda *_, **__: None, 99)

    def enable_gui(self, gui: object = None) -> None:
        """There is none; figures are drawn into the notebook."""

    def ask_exit(self) -> None:
        """``exit`` in a cell: the cells behind it count all the same."""

    def system(self, cmd: str) -> None:
        """``!command``: into the cell's output, or where %%capture has redirected that."""
        command = self.var_expand(cmd, depth=1)
        if isinstance(sys.stdout, Stream):
            status = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL).returncode
        else:
            done = subprocess.run(
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            sys.stdout.write(done.stdout.decode(errors="replace"))
            status = done.returncode
        self.user_ns["_exit_code"] = status

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.channel.error(evalue, stb)


def make_shell(channel: Channel) -> Shell:
    """The process's only one; writes no file and reads none of anybody's settings."""
    config = Config()
    config.HistoryManager.enabled = False
    config.Completer.use_jedi = False
    shell: Shell = Shell.instance(
        config=config,
        ipython_dir=os.getcwd(),
        profile_dir=ProfileDir(),
        display_pub_class=Publisher,
        displayhook_class=Hook,
    )
    shell.channel = channel
    return shell


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


if __name__ == "__main__":
    # As a module of its own: __main__ is to be the student's.
    from autograder.grading import cells

    cells.main(socket.socket(fileno=int(sys.argv[1])))
