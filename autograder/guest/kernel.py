"""Inside a container: runs a student's cells in IPython, without Jupyter's sockets and threads.

``grading/notebook/process.py`` drives it and treats every message from here as untrusted, because
student code runs in this process.  The protocol, over one stream socket (shardlab.ranks.messages):

    to here    {"do": "start", "output_bytes": n}, with two memory files: stdout and stderr
               {"do": "run", "cell": k}, the body is its source
    from here  {"is": "ready"}
               {"is": "display", "result", "update" or "error", "at": [o, e]}, the body is JSON
               {"is": "clear", "wait": bool, "at": [o, e]}
               {"is": "mark", "at": [o, e]}
               {"is": "too much", "at": [o, e]}
               {"is": "answer", "name": exercise}, the body is a cloudpickle
               {"is": "done", "cell": k, "raised": bool, "at": [o, e]}

stdout and stderr are memory files, not pipes: output of Python, C code and child processes keeps
its order, no writer blocks, and it can still be read after the process has died.  ``at`` is the
size of both files, so that text and figures appear in the order in which they were produced.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import io
import os
import signal
import socket
import sys
from typing import Any, NoReturn

import IPython.core.ultratb

import autograder
from autograder.guest.answer import CheckFailed, pickled
from autograder.guest.channel import Channel
from autograder.guest.shell import Shell, make_shell
from shardlab.ranks import messages, server

PRELOAD = (
    "IPython.core.interactiveshell",
    "matplotlib.pyplot",
    "shardlab.widgets",
    # What a shell imports when it is created; creating one here would take over this process.
    "IPython.core.completer",
    "IPython.core.macro",
    "IPython.core.magics.script",
    "IPython.core.payload",
    "IPython.core.prefilter",
)
FIGURES = "module://matplotlib_inline.backend_inline"  # into the notebook, as in Jupyter


def preload() -> None:
    """In the parent process of the fork: import what ``main``, most cells and most ranks need.

    It costs 5 s of CPU time once per worker; without it, lab 01 takes 9 s for each submission.
    """
    from autograder.guest import on_rank  # with torch: a process that is not forked may not need it

    server.preload(*PRELOAD, *on_rank.PRELOAD, *server.AUTOGRAD_IMPORTS, *server.TRAINING_IMPORTS)
    formatter = IPython.core.ultratb.AutoFormattedTB(mode="Context")
    try:
        raise ValueError("never shown")
    except ValueError as error:
        formatter.structured_traceback(type(error), error, error.__traceback__)
    sys.modules["matplotlib.pyplot"].Figure().savefig(io.BytesIO())  # loads the fonts
    sys.modules["matplotlib"].rcsetup.validate_backend(FIGURES)  # scans the installed packages
    server.preload()


def main(sock: socket.socket) -> NoReturn:
    """Runs the cells that arrive over ``sock`` in the current folder, until it is closed."""
    try:
        _serve(sock)
    except BaseException:  # for instance, a cell closed our files
        os._exit(70)
    os._exit(0)  # does not wait for student threads or run atexit handlers


def _serve(sock: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between cells there is nothing to interrupt
    packet, fds, _, _ = socket.recv_fds(sock, 1 << 16, 2, socket.MSG_CMSG_CLOEXEC)
    inbox = messages.Inbox()
    inbox.feed(packet)
    first = inbox.next()
    assert first is not None
    channel = Channel(sock, fds, int(first[0]["output_bytes"]))
    channel.redirect_standard_streams()
    os.environ.update(MPLBACKEND=FIGURES, PAGER="cat", TERM="dumb")
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].rcParams["backend"] = FIGURES
    sys.argv = [""]
    sys.path.insert(0, "")
    builtins.input = _no_input
    shell = make_shell(channel)

    def check(name: str, subject: Any) -> None:
        """`check` for cells in here: sends the pickled answer to the grader, which evaluates it."""
        channel.send({"is": "answer", "name": name}, pickled(name.partition(".")[2], subject))

    # For a cell's `from autograder import check`.
    vars(autograder).update(check=check, CheckFailed=CheckFailed)
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
            return  # a process that the student's code forked
        channel.send(
            {"is": "done", "cell": header["cell"], "raised": raised, "at": channel.file_sizes()}
        )


def _run(shell: Shell, channel: Channel, loop: asyncio.AbstractEventLoop, source: str) -> bool:
    """Whether the cell raised."""
    result: Any = None
    error: BaseException | None = None
    try:
        task = loop.create_task(_cell(shell, source))
        signal.signal(signal.SIGINT, channel.on_interrupt)
        try:
            result = loop.run_until_complete(task)
        except KeyboardInterrupt:  # the cell was awaiting, so IPython did not see it
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
    """As in Jupyter: inside a running event loop, whether or not the cell awaits anything."""
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
    raise EOFError("input() is not available during grading: write the value into the cell")


if __name__ == "__main__":
    # Imported under its own name, because __main__ becomes the student's module.
    from autograder.guest import kernel as cells

    cells.main(socket.socket(fileno=int(sys.argv[1])))
