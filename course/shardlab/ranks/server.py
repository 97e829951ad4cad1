"""The rank server: a process with torch already imported that forks ranks on request.

One runs next to each kernel (client.py starts it and talks to it).  Importing torch costs a second
and 150 MB; forking a process that has it costs milliseconds and shares the pages.

Two kinds of sockets, both SOCK_SEQPACKET, so that one message is one packet:

- the *request socket*, one per server: each packet opens a run and carries the run's own channel;
- a *channel*, one per run: each packet from the client forks a rank (or a builder: builds.py, or
  what makes nodes: nodes/switch.py) or requests all stacks; packets to the client report a rank's
  pid and, later, its exit.  When the client closes its side (or dies), every process of the run is
  killed, and the server closes its side once all of them are gone.

So "no rank survives its run" does not depend on the client: an interrupt at any point in it leaves
nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardlab.linux import thread
from shardlab.linux.pages import collapse_heap
from shardlab.nodes import namespaces
from shardlab.ranks import builds, engines, messages

PRELOAD = (
    "torch",
    "torch.distributed",
    "numpy",
    "numpy.random",  # numpy postpones it, and setting its seed would import it in every rank
    "cloudpickle",
    "shardlab.ranks.rank",
)
# y.backward(gradient), DDP, FSDP2, DTensor and optimizers import these on first use, 1 to 5 s in
# every rank.  The server imports them one at a time while it is idle, later if others need the
# processors, or before it forks the ranks of a program that names such a use (named_imports.py).
AUTOGRAD_IMPORTS = ("torch.fx.experimental.symbolic_shapes",)
TRAINING_IMPORTS = (
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.optim",
)
# Python's own thresholds, whatever this environment starts with (tools/environment.py): tensors in
# reference cycles live as long as in any other program.
RANKS_GC = 700, 10, 10
IDLE_S, IDLE_ON_A_BUSY_MACHINE_S = 1.5, 15.0
# A fork from small pages costs 6 ms more, and moving the heap to huge pages costs 400 ms, once.
FORKS_BEFORE_COLLAPSE = 64
RANK_FDS = ("control", "stdout", "stderr", "log", "stack")  # sent with a fork request
MAX_NAMESPACES = 4  # of a rank's node, sent after these
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MAX_PACKET = 1 << 16


@dataclass
class ServedRun:
    channel: socket.socket
    store_fd: int
    setup_fd: int
    # live processes: pid -> rank, or the name of the op it builds
    rank_of: dict[int, int | str] = field(default_factory=dict)
    closing: bool = False

    def report(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # the client may be gone
            self.channel.send(json.dumps(message).encode())


class Server:
    """``request_socket``: None for a server of one given run (`serve_only`)."""

    def __init__(self, request_socket: socket.socket | None, kind: str) -> None:
        self.request_socket = request_socket
        self.runs: list[ServedRun] = []
        self.forks_from_small_pages = 0
        self.selector = selectors.DefaultSelector()
        self.idle_work: list[tuple[str, Callable[[], None]]] = [
            *(("autograd", functools.partial(preload_ahead, name)) for name in AUTOGRAD_IMPORTS),
            *(("training", functools.partial(preload_ahead, name)) for name in TRAINING_IMPORTS),
            ("forks", self.collapse_heap),
        ]
        if kind != "torch":
            cache_cpu_info = functools.partial(ignore_errors, engines.cache_cpu_info)
            self.idle_work.insert(0, ("offload", cache_cpu_info))

    def serve(self, parent: int) -> None:
        """Serve until the process that started us closes the request socket or dies."""
        assert self.request_socket is not None
        self._watch_children()
        with contextlib.suppress(ProcessLookupError):
            # a forked child of the kernel may keep the request socket open after the kernel's death
            self.selector.register(os.pidfd_open(parent), selectors.EVENT_READ, "parent")
        self.selector.register(self.request_socket, selectors.EVENT_READ, "request_socket")
        patience_s = IDLE_S
        while os.getppid() == parent:
            # not while ranks run: it would delay the report of an exit
            is_free = bool(self.idle_work) and not self.is_busy
            ready = self.selector.select(patience_s if is_free else None)
            if ready:
                patience_s = IDLE_S
            elif patience_s == IDLE_S and machine_is_busy():
                patience_s = IDLE_ON_A_BUSY_MACHINE_S
            elif is_free:
                patience_s = 0
                self.idle_work.pop(0)[1]()
            for key, _ in ready:
                if key.data == "parent" or (key.data == "request_socket" and not self.open_run()):
                    return
                self.handle(key.data)

    def serve_only(self, run: ServedRun) -> None:
        """Serve until this run is over and all its processes are gone."""
        self._watch_children()
        self.add_run(run)
        while self.runs:
            for key, _ in self.selector.select():
                self.handle(key.data)

    @property
    def is_busy(self) -> bool:
        return bool(self.runs)

    def _watch_children(self) -> None:
        wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the kernel handles interrupts
        self.selector.register(wake_r, selectors.EVENT_READ, ("child", wake_r))

    def handle(self, source: object) -> None:
        if isinstance(source, ServedRun):
            if not source.closing:
                self.read_request(source)
        elif isinstance(source, tuple):
            with contextlib.suppress(BlockingIOError):
                os.read(source[1], MAX_PACKET)
            self.reap()

    def open_run(self) -> bool:
        """Read one packet from the request socket; False if it was closed."""
        assert self.request_socket is not None
        packet, fds, _, _ = socket.recv_fds(
            self.request_socket, MAX_PACKET, 3, socket.MSG_CMSG_CLOEXEC
        )
        if not packet:
            return False
        run = run_of(fds)
        self.preload_for(run)
        self.add_run(run)
        return True

    def preload_for(self, run: ServedRun) -> None:
        """Finish imports now that this run will use, and what its ranks would each compute."""
        if setup := settings_of(run):
            if missing := [name for name in setup["preload"] if name not in sys.modules]:
                preload_ahead(*missing)
            needed = [each for each in self.idle_work if each[0] in setup["imports_needed"]]
            for each in needed:
                self.idle_work.remove(each)
                each[1]()
            if setup["prepare"]:
                function, *arguments = setup["prepare"]
                ignore_errors(lambda: pkgutil.resolve_name(function)(*arguments))

    def collapse_heap(self) -> None:
        """Moves the heap to huge pages, now that the imports are done or many forks pay for it."""
        self.forks_from_small_pages = FORKS_BEFORE_COLLAPSE
        collapse_heap()

    def count_forks(self, forks: int) -> None:
        before = self.forks_from_small_pages
        self.forks_from_small_pages += forks
        if before < FORKS_BEFORE_COLLAPSE <= self.forks_from_small_pages:
            self.collapse_heap()

    def add_run(self, run: ServedRun) -> None:
        self.runs.append(run)
        self.selector.register(run.channel, selectors.EVENT_READ, run)

    def read_request(self, run: ServedRun) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(
                run.channel,
                MAX_PACKET,
                len(RANK_FDS) + MAX_NAMESPACES,
                socket.MSG_CMSG_CLOEXEC,
            )
        except ConnectionError:
            packet, fds = b"", []
        if not packet:
            run.closing = True
            self.selector.unregister(run.channel)
            for pid in run.rank_of:
                os.killpg(pid, signal.SIGKILL)
            self.forget_if_done(run)
            return
        request = json.loads(packet)
        if "rank" in request:
            self.fork(run, request["rank"], fds)
        elif messages.NODES in request:
            self.fork(run, messages.NODES, fds)
        elif "stacks" in request:
            for pid, rank in run.rank_of.items():
                if isinstance(rank, int):
                    os.kill(pid, signal.SIGUSR1)  # faulthandler writes the stack (rank.py)
        else:
            self.handle_other_request(run, request, fds)

    def handle_other_request(self, run: ServedRun, request: dict[str, Any], fds: list[int]) -> None:
        self.fork(run, request["build"], fds)

    def fork(self, run: ServedRun, rank: int | str, fds: list[int]) -> None:
        try:
            if _is_shut(run.channel):  # cancelled while we were importing
                raise OSError("the run was cancelled")
            self.count_forks(1)
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes
            run.report(rank=rank, failed=str(error))
        else:
            if pid == 0:
                self.run_child(run, rank, fds)
            with contextlib.suppress(OSError):  # in both processes, as either may run first
                os.setpgid(pid, pid)
            run.rank_of[pid] = rank
            run.report(rank=rank, pid=pid)
        for fd in fds:
            os.close(fd)

    def run_child(self, run: ServedRun, rank: int | str, fds: list[int]) -> None:
        """Runs in the forked child; never returns."""
        try:
            os.setpgid(0, 0)
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # if the server is killed, so are its ranks
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.selector.close()
            if self.request_socket is not None:
                self.request_socket.close()
            for other in self.runs:
                other.channel.close()
                if other is not run:
                    os.close(other.store_fd)
                    os.close(other.setup_fd)
            if rank == messages.NODES:
                self.make_nodes(run, reply=fds[0])
            self.isolate(run, fds)
            if isinstance(rank, str):
                self.run_other_child(run, rank, fds)
                return
            from shardlab.ranks import rank as rank_module

            named = dict(zip(RANK_FDS, fds, strict=False))
            rank_module.main(rank, setup_fd=run.setup_fd, store_fd=run.store_fd, **named)
        finally:
            os._exit(70)  # main() ends with os._exit; only a bug of ours reaches this

    def make_nodes(self, run: ServedRun, reply: int) -> None:
        """In the forked child, which never returns and runs no student code."""
        from shardlab.nodes import switch  # already imported: it is in the run's `preload`

        setup = settings_of(run)
        switch.main(setup["nodes"], setup["link_bits_per_s"], reply)
        os._exit(0)

    def run_other_child(self, run: ServedRun, name: str, fds: list[int]) -> None:
        """Run as the builder of a DeepSpeed op."""
        builds.main(name, settings_of(run)["environment"], report_fd=fds[0])

    def isolate(self, run: ServedRun, fds: list[int]) -> None:
        """In the forked child, before student code runs: enter its node, if it has one.

        A sandbox overrides it.
        """
        for fd in fds[len(RANK_FDS) :]:
            namespaces.enter(fd)
            os.close(fd)

    def reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            run = next((run for run in self.runs if ended.si_pid in run.rank_of), None)
            if run is not None:
                # Until the leader is reaped, its process group id can't be reused.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(ended.si_pid, signal.SIGKILL)
            _, status, usage = os.wait4(ended.si_pid, 0)
            if run is not None:
                rank = run.rank_of.pop(ended.si_pid)
                code = os.waitstatus_to_exitcode(status)
                self.end_orphans()
                run.report(rank=rank, exit=code, max_rss_bytes=usage.ru_maxrss * 1024)
                self.forget_if_done(run)

    def end_orphans(self) -> None:
        """End the descendants of an ended rank: we inherit its children, then theirs."""
        ranks = {pid for run in self.runs for pid in run.rank_of}
        while orphans := thread.children(os.getpid()) - ranks:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def forget_if_done(self, run: ServedRun) -> None:
        if run.closing and not run.rank_of:
            self.runs.remove(run)
            run.channel.close()
            os.close(run.store_fd)
            os.close(run.setup_fd)

    def stop(self) -> None:
        """End all ranks and wait for them; we inherit their children and end them too."""
        for run in self.runs:
            for pid in run.rank_of:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        while any(run.rank_of for run in self.runs):
            time.sleep(0.005)
            self.reap()


def settings_of(run: ServedRun) -> dict[str, Any]:
    """What the client wrote for the ranks of this run; empty for a run without ranks."""
    return messages.read_file(run.setup_fd)[0] if os.fstat(run.setup_fd).st_size else {}


def run_of(fds: list[int]) -> ServedRun:
    channel_fd, store_fd, setup_fd = fds
    return ServedRun(socket.socket(fileno=channel_fd), store_fd, setup_fd)


def _is_shut(channel: socket.socket) -> bool:
    """Whether the other side will send no more; earlier packets may still be unread."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    return bool(poll.poll(0))


def machine_is_busy() -> bool:
    """Whether other work would wait for what this server imports ahead of time."""
    return os.getloadavg()[0] >= len(os.sched_getaffinity(0))


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main() -> None:
    request_socket = socket.socket(fileno=int(sys.argv[1]))
    parent, kind = int(sys.argv[2]), sys.argv[3]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    preload_for_kind(kind)
    server = Server(request_socket, kind)
    try:
        server.serve(parent)
    finally:
        server.stop()
    # Without the interpreter's own shutdown, which takes torch apart: 0.3 s of a processor.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def preload_for_kind(kind: str) -> None:
    """Import what every rank of this kind of server needs."""
    engines.configure_deepspeed_on_import()
    with engines.nothing_compiled():
        preload(*PRELOAD, *engines.preload_of(kind))


def preload_ahead(*names: str) -> None:
    """Those that can be imported: a rank that needs another one will report the error."""
    preload(*names, ignored=(Exception,))


def ignore_errors(work: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):  # a rank that needs it will report the error
        work()


def preload(*names: str, ignored: tuple[type[Exception], ...] = ()) -> None:
    gc.disable()  # collecting during imports takes a quarter of their time and finds nothing
    try:
        for name in names:
            with contextlib.suppress(*ignored):
                importlib.import_module(name)
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()  # or garbage collection in a rank would touch, and so copy, every shared page
    gc.set_threshold(*RANKS_GC)


if __name__ == "__main__":
    # `python -m` runs this file as __main__; in ranks that name is the student's module
    from shardlab.ranks import server

    server.main()
