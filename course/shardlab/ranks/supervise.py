"""Sees one run through, in the kernel's process: starts the ranks, listens, judges, ends them.

All in one thread and one loop.  Whatever happens in between, an interrupt included, leaving the
`with` block ends every process of the run and waits until they are gone.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from shardlab.errors import LaunchError
from shardlab.ranks import explain, messages, thread
from shardlab.ranks.client import Channel, memory_file, rank_server, setup_file
from shardlab.ranks.deadlock import RankView
from shardlab.ranks.stream import PROGRESS_AFTER_S, Printed, Screen
from shardlab.trace import log, wire
from shardlab.trace.calls import CallLog, OpenCall

STARTUP_LIMIT_S = 120.0  # a first import of torch on a cold disk is within it
LOOK_S = 0.05  # how often the ranks' logs are read; also the answer to "at once"
STILL_S = 1.0  # a rank that used no processor for this long while it waits is blocked
AFTERMATH_S = 0.4  # after a first failure: time for the others' words, to tell cause from effect
MAX_OUTPUT_BYTES = 4 << 30


@dataclass
class RankProcess:
    rank: int
    control: socket.socket
    log: log.Reader
    stack_fd: int
    inbox: messages.Inbox
    pid: int | None = None
    state: str = "starting"  # ready, running, finished, failed, dead
    output: bytes = b""
    failure: dict[str, Any] | None = None
    exit_code: int | None = None
    max_rss_bytes: int = 0
    out: Printed = field(default_factory=Printed)
    err: Printed = field(default_factory=Printed)
    cpu_ns: int | None = None
    still_since_s: float = 0.0

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "failed", "dead")

    def stack(self) -> str:
        return os.pread(self.stack_fd, 1 << 20, 0).decode(errors="replace")


class Supervisor:
    """`with Supervisor(...) as run: run.start(); run.release(inputs); run.watch()`."""

    def __init__(
        self, world_size: int, setup: dict[str, Any], program: bytes, screen: Screen, timeout_s: float
    ) -> None:
        self.begun_s = time.monotonic()
        self.world_size = world_size
        self.setup, self.program = setup, program
        self.screen = screen
        self.timeout_s = timeout_s
        self.ranks: list[RankProcess] = []
        self.call_log = CallLog(world_size)
        self.selector = selectors.DefaultSelector()
        self.cleanup = contextlib.ExitStack()
        self.channel: Channel | None = None
        self.open_pipes = 0
        self.released_s = 0.0  # when the ranks were let go: the origin of all times in the run
        self.baseline: dict[wire.Connection, tuple[int, int]] = {}
        self.final: dict[wire.Connection, tuple[int, int]] = {}
        self.first_failure_s: float | None = None
        self.looked_s = 0.0
        self.mismatch_seen_s: float | None = None

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.released_s and not self.final:
                self.final = self._count()  # of a failed run: as far as it came
            self.screen.close()
        finally:
            self._end_all()

    # --- start ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Fork the ranks and wait until all can communicate; raises LaunchError."""
        store_fd = memory_file("shardlab-store")
        setup_fd = setup_file(self.setup, self.program)
        try:
            self.channel = rank_server().open_channel(setup_fd, store_fd)
        finally:
            os.close(store_fd)
            os.close(setup_fd)
        self.selector.register(self.channel.sock, selectors.EVENT_READ, ("channel", None))
        for rank in range(self.world_size):
            self._fork(rank)
        deadline = self.begun_s + STARTUP_LIMIT_S
        while not all(process.state == "ready" for process in self.ranks):
            self._listen(LOOK_S)
            self._raise_failures()
            if time.monotonic() > deadline:
                late = [process.rank for process in self.ranks if process.state == "starting"]
                raise LaunchError(
                    f"{explain.ranks_text(late)} did not start within {STARTUP_LIMIT_S:.0f} s"
                )

    def _fork(self, rank: int) -> None:
        assert self.channel is not None
        ours, theirs = socket.socketpair()
        self.cleanup.callback(ours.close)
        out_r, out_w = os.pipe2(os.O_CLOEXEC)
        err_r, err_w = os.pipe2(os.O_CLOEXEC)
        log_fd, stack_fd = log.create(), memory_file("shardlab-stack")
        self.cleanup.callback(os.close, log_fd)
        self.cleanup.callback(os.close, stack_fd)
        inbox = messages.Inbox(MAX_OUTPUT_BYTES)
        process = RankProcess(rank, ours, log.Reader(log_fd), stack_fd, inbox)
        self.ranks.append(process)
        self.selector.register(ours, selectors.EVENT_READ, ("control", process))
        for fd, kind in ((out_r, "stdout"), (err_r, "stderr")):
            self.selector.register(fd, selectors.EVENT_READ, (kind, process))
            self.open_pipes += 1
        try:
            self.channel.fork(rank, [theirs.fileno(), out_w, err_w, log_fd, stack_fd])
        except OSError as error:
            raise LaunchError(f"rank {rank} could not be started: {error}") from error
        finally:
            theirs.close()
            os.close(out_w)
            os.close(err_w)

    # --- run -----------------------------------------------------------------------------------

    def release(self, inputs: list[bytes]) -> None:
        """Count the sockets as they are now and let all ranks go, each with its own input."""
        self.baseline = self._count()
        self.released_s = time.monotonic()
        for process, given in zip(self.ranks, inputs, strict=True):
            process.state = "running"
            with contextlib.suppress(BrokenPipeError):  # it died: its end will be told
                messages.send(process.control, {"is": "go"}, given)

    def watch(self) -> None:
        """Until every rank has returned; raises RankError, DeadlockError or RunTimeout."""
        deadline = self.released_s + self.timeout_s
        while not all(process.state == "finished" for process in self.ranks):
            self._listen(LOOK_S)
            self._look()
            self._raise_failures()
            if time.monotonic() > deadline:
                self._raise_timeout()
        self._read_logs()
        self._raise_mismatch()
        self.final = self._count()

    def _count(self) -> dict[wire.Connection, tuple[int, int]]:
        """By connection: (rank, bytes written)."""
        rank_of = {process.pid: process.rank for process in self.ranks if process.pid is not None}
        try:
            found = wire.connections_of(rank_of)
        except OSError:  # a machine that does not show its sockets: Run says that calls were used
            return {}
        return {connection: (rank_of[pid], count) for connection, (pid, count) in found.items()}

    def _listen(self, timeout_s: float) -> None:
        for key, _ in self.selector.select(timeout_s):
            kind, process = key.data
            if kind == "channel":
                self._hear_server()
            elif kind == "control":
                self._hear_rank(process)
            else:
                self._hear_print(process, kind, key.fd)

    def _hear_server(self) -> None:
        assert self.channel is not None
        message = self.channel.receive()
        if message is None:
            raise LaunchError(
                "the process that starts ranks was killed; the next launch starts a new one"
            )
        self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        process = self.ranks[message["rank"]]
        if "pid" in message:
            process.pid = message["pid"]
        elif "failed" in message:
            raise LaunchError(
                f"rank {process.rank} could not be started: {message['failed']}",
                "Fewer ranks, or closing other programs, may help.",
            )
        else:
            process.exit_code = message["exit"]
            process.max_rss_bytes = message["max_rss_bytes"]
            if not process.is_over:
                process.state = "dead"
                self._failed_now()

    def _hear_rank(self, process: RankProcess) -> None:
        try:
            data = process.control.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self.selector.unregister(process.control)
            return
        process.inbox.feed(data)
        try:
            message = process.inbox.next()
        except ValueError as error:
            self.selector.unregister(process.control)
            chain = [{"kind": "ValueError", "message": str(error), "frames": []}]
            message = {"is": "failed", "stage": "output", "at": time.monotonic(), "chain": chain}, b""
        if message is None:
            return
        header, body = message
        if header["is"] == "ready":
            process.state = "ready"
        elif header["is"] == "finished":
            process.state, process.output = "finished", body
        else:
            process.state, process.failure = "failed", header
            self._failed_now()

    def _failed_now(self) -> None:
        if self.first_failure_s is None:
            self.first_failure_s = time.monotonic()

    def _hear_print(self, process: RankProcess, kind: str, fd: int) -> None:
        data = os.read(fd, 1 << 16)
        printed = process.out if kind == "stdout" else process.err
        for line in printed.feed(data, final=not data):
            self.screen.line(process.rank, line, kind == "stderr")
        if not data:
            self.selector.unregister(fd)
            os.close(fd)
            self.open_pipes -= 1

    # --- judge ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the logs; find ranks that can never go on; show progress."""
        now = time.monotonic()
        if now - self.looked_s < LOOK_S:
            return
        self.looked_s = now
        self._read_logs()
        self._raise_mismatch()
        if now - self.released_s > PROGRESS_AFTER_S:
            self.screen.progress(self._progress(now))
        for process in self.ranks:
            self._look_at_processor(process, now)
        error = explain.is_stuck(self._views(now), self.call_log.groups)
        if error is not None and self.first_failure_s is None:
            raise error

    def _read_logs(self) -> None:
        for process in self.ranks:
            for event in process.log.new_events():
                self.call_log.add(process.rank, event)

    def _look_at_processor(self, process: RankProcess, now: float) -> None:
        cpu_ns = thread.run_ns(process.pid)
        if cpu_ns != process.cpu_ns or cpu_ns is None:
            process.cpu_ns, process.still_since_s = cpu_ns, now

    def _views(self, now: float) -> list[RankView]:
        views = []
        for process in self.ranks:
            pending = list(self.call_log.pending[process.rank].values())
            is_still = now - process.still_since_s >= STILL_S
            blocked_in: list[OpenCall] = []
            if pending and is_still and process.state == "running":
                blocked_in = [call for call in pending if call.waited]
                if not blocked_in and thread.waits_for_a_lock(process.pid):
                    blocked_in = pending  # the wait is inside C++, as DDP's is
            views.append(
                RankView(
                    rank=process.rank,
                    finished=process.is_over,
                    blocked_in=tuple(blocked_in),
                    started=self.call_log.started[process.rank],
                    receives_from_any=any(c.op == "recv" and c.peer is None for c in pending),
                )
            )
        return views

    def _progress(self, now: float) -> str:
        done = sum(process.state == "finished" for process in self.ranks)
        waiting = sum(bool(pending) for pending in self.call_log.pending)
        return (
            f"{now - self.released_s:.0f} s of at most {self.timeout_s:g}: "
            f"{done} of {self.world_size} ranks have finished, {waiting} are in a call, "
            f"{len(self.call_log.calls):,} calls so far"
        )

    def _raise_mismatch(self) -> None:
        mismatch = self.call_log.mismatch
        if mismatch is None:
            return
        members = self.call_log.members(mismatch.calls[0])
        now = time.monotonic()
        if self.mismatch_seen_s is None:
            self.mismatch_seen_s = now
        if len(mismatch.calls) < len(members) and now < self.mismatch_seen_s + AFTERMATH_S:
            return  # the others' calls tell who is the odd one out
        raise explain.mismatch_error(mismatch)

    def _raise_failures(self) -> None:
        """Name the cause, not its echo: when one rank dies, gloo raises on its partners too."""
        if self.first_failure_s is None:
            return
        failed = [process for process in self.ranks if process.state in ("failed", "dead")]
        silent = [process for process in failed if process.state == "dead"]
        raised = [process for process in failed if process.failure is not None]
        causes = [process for process in raised if not explain.is_consequence(process.failure or {})]
        if not causes and not silent and time.monotonic() - self.first_failure_s < AFTERMATH_S:
            return
        self._read_logs()
        if self.call_log.mismatch is not None:
            raise explain.mismatch_error(self.call_log.mismatch)
        if silent and not causes:
            raise self._exit_error(min(silent, key=lambda process: process.rank))
        guilty = min(causes or raised, key=lambda process: (process.failure or {})["at"])
        assert guilty.failure is not None
        raise explain.exception_error(
            guilty.rank, guilty.failure["stage"], guilty.failure["chain"]
        )

    def _exit_error(self, process: RankProcess) -> LaunchError:
        pending = list(self.call_log.pending[process.rank].values())
        return explain.exit_error(
            process.rank,
            process.exit_code or 0,
            process.stack(),
            pending[-1] if pending else None,
            process.max_rss_bytes,
        )

    def _raise_timeout(self) -> None:
        assert self.channel is not None
        self.channel.ask_stacks()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            self._listen(0.05)
        stacks = {process.rank: process.stack() for process in self.ranks}
        views = self._views(time.monotonic())
        raise explain.timeout_error(self.timeout_s, views, self.call_log.groups, stacks)

    # --- end -----------------------------------------------------------------------------------

    def _end_all(self) -> None:
        if self.channel is not None:
            with contextlib.suppress(KeyError):
                self.selector.unregister(self.channel.sock)
            for message in self.channel.kill():
                if "exit" in message:
                    self.ranks[message["rank"]].exit_code = message["exit"]
        self._read_logs()
        for key in list(self.selector.get_map().values()):
            kind, process = key.data
            if kind == "control":
                self.selector.unregister(key.fileobj)
                continue
            while self.open_pipes and key.fd in self.selector.get_map():
                self._hear_print(process, kind, key.fd)
        self.selector.close()
        self.cleanup.close()
