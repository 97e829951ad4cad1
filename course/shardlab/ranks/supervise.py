"""Sees one run through, in the kernel's process: starts the ranks, listens to them, ends them.

All in one thread and one loop.  Whatever happens in between, an interrupt included, leaving the
`with` block ends every process of the run and waits until they are gone.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from typing import Any

from shardlab.errors import LaunchError, MachineTooBusy, RankError
from shardlab.ranks import engines, messages
from shardlab.ranks.building import Building
from shardlab.ranks.client import (
    Channel,
    Host,
    memory_file,
    setup_file,
)
from shardlab.ranks.clock import Clock
from shardlab.ranks.explain import ranks_text, timeout_error
from shardlab.ranks.judge import Judge
from shardlab.ranks.messages import Inbox
from shardlab.ranks.process import RankProcess
from shardlab.ranks.stream import PRINTED_BYTES, PROGRESS_AFTER_S, Printed, Screen
from shardlab.trace import log, wire

STARTUP_LIMIT_S = {  # a first import of torch, and of all of DeepSpeed, on a cold disk is within it
    "torch": 120.0,
    "deepspeed": 300.0,
    "deepspeed-cuda": 300.0,
}
GRADED_PRINTED_BYTES = 1 << 20  # of each rank and stream
GRADED_EVENTS = 100_000  # of each rank's log; labs write some hundreds
LOADING_SHOWN_AFTER_S = 0.5
LOADING_PATIENCE_S = 0.5
LOOK_S = 0.05  # how often the ranks' logs are read
Counts = dict[wire.Connection, tuple[int, int]]  # connection -> (rank, bytes written)


class Supervisor:
    """`with Supervisor(...) as run: run.start(); run.release(inputs); run.watch()`."""

    def __init__(
        self,
        setup: dict[str, Any],
        program: bytes,
        screen: Screen,
        timeout_s: float,
        host: Host,
        patience: float = 1.0,
        output_bytes: int = 4 << 30,
    ) -> None:
        self.setup, self.program = setup, program
        self.world_size: int = setup["world_size"]
        self.screen = screen
        self.timeout_s = timeout_s
        self.host = host
        self.ranks: list[RankProcess] = []
        self.clock = Clock(timeout_s, patience)
        is_graded = patience > 1  # and so untrusted: what is kept of it here is little
        self.output_bytes = output_bytes
        self.printed_bytes = GRADED_PRINTED_BYTES if is_graded else PRINTED_BYTES
        self.most_events = GRADED_EVENTS if is_graded else log.MOST_EVENTS
        self.judge = Judge(self.ranks, self.world_size, is_patient=patience > 1)
        self.server = engines.server_of(setup["engine"], setup["device"])
        self.building = Building(screen)
        self.selector = selectors.DefaultSelector()
        self.cleanup = contextlib.ExitStack()
        self.channel: Channel | None = None
        self.begun_s = time.monotonic()
        self.released_s = 0.0  # when the ranks were let go: the origin of all times in the run
        self.store_fd = -1
        self.stored_before = self.stored_bytes = 0
        self.before: Counts = {}
        self.after: Counts = {}
        self.unseen_before: int | None = None
        self.unseen_after: int | None = None

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.released_s and not self.after:
                self.after = self._count()  # of a failed run: as far as it came
            self.screen.close(time.monotonic() - self.begun_s)
        finally:
            self._end_all()

    def start(self) -> None:
        """Fork the ranks and wait until all can communicate; raises LaunchError."""
        begun_s, limit_s = time.monotonic(), STARTUP_LIMIT_S[self.server]
        store_fd = memory_file("shardlab-store")
        setup_fd = setup_file(self.setup, self.program)
        try:
            self.channel = self.host.open_channel(self.server, setup_fd, store_fd)
        finally:
            self.cleanup.callback(os.close, store_fd)
            os.close(setup_fd)
        self.store_fd = store_fd
        self.selector.register(self.channel.sock, selectors.EVENT_READ, ("channel", None))
        for rank in range(self.world_size):
            self._fork(rank, self.channel)
        while not all(process.state == "ready" for process in self.ranks):
            self._listen(LOOK_S)
            try:
                self.judge.raise_failures(time.monotonic(), at_once=True)
            except RankError as error:  # before any code of the user's: the machine's doing
                headline = f"the ranks could not be started: {error.headline}"
                raise LaunchError(headline, error.detail) from error
            waited_s = time.monotonic() - begun_s
            self._show_loading(waited_s)
            if waited_s > limit_s:
                late = [process.rank for process in self.ranks if process.state == "starting"]
                raise LaunchError(f"{ranks_text(late)} did not start within {limit_s:.0f} s")

    def _show_loading(self, waited_s: float) -> None:
        is_loading = any(process.pid is None for process in self.ranks)
        if self.server != "torch" and waited_s > LOADING_SHOWN_AFTER_S:
            text = (
                f"DeepSpeed is being loaded, once per notebook: {waited_s:.0f} s, usually 5 to 20"
            )
            self.screen.progress(text if is_loading else "")

    def _fork(self, rank: int, channel: Channel) -> None:
        ours, theirs = socket.socketpair()
        self.cleanup.callback(ours.close)
        log_fd, stack_fd = log.create(), memory_file("shardlab-stack")
        self.cleanup.callback(os.close, log_fd)
        self.cleanup.callback(os.close, stack_fd)
        process = RankProcess(
            rank,
            ours,
            log.Reader(log_fd, self.most_events),
            stack_fd,
            Inbox(self.output_bytes // self.world_size),
            Printed(self.printed_bytes),
            Printed(self.printed_bytes),
        )
        self.ranks.append(process)
        self.selector.register(ours, selectors.EVENT_READ, ("control", process))
        out, err = self._pipe("stdout", process), self._pipe("stderr", process)
        try:
            channel.fork(rank, [theirs.fileno(), out, err, log_fd, stack_fd])
        except OSError as error:
            raise LaunchError(f"rank {rank} could not be started: {error}") from error
        finally:
            theirs.close()
            os.close(out)
            os.close(err)

    def _pipe(self, kind: str, process: RankProcess) -> int:
        """The end to write into; the other is listened to until everyone has closed it."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        self.selector.register(read_end, selectors.EVENT_READ, (kind, process))
        return write_end

    def release(self, inputs: list[bytes]) -> None:
        """Count the sockets as they are now and let all ranks go, each with its own input."""
        self.before = self._count()
        self.unseen_before = self._crossed_unseen()
        self.stored_before = os.fstat(self.store_fd).st_size
        self.released_s = time.monotonic()
        self.clock.start(self.released_s, [process.pid for process in self.ranks])
        for process, given in zip(self.ranks, inputs, strict=True):
            process.state = "running"
            with contextlib.suppress(BrokenPipeError):  # it died: its end will be told
                messages.send(process.control, {"is": "go"}, given)

    def watch(self) -> None:
        """Until every rank has returned.

        Raises RankError, DeadlockError, RunTimeout; MachineTooBusy where ranks waited more for a
        processor than ``patience`` allows.
        """
        looked_s = 0.0
        while not all(process.state == "finished" for process in self.ranks):
            self._listen(LOOK_S)
            now = time.monotonic()
            if now - looked_s >= LOOK_S:  # printing and outputs wake us far more often
                looked_s = now
                self.clock.look(now)
                self.judge.look(now)
                if self.building.going_on:
                    self.building.show(now)
                elif now - self.released_s > PROGRESS_AFTER_S:
                    self.screen.progress(self._progress(now))
            self.judge.raise_failures(now)
            self._keep_to_its_time(now)
        self.judge.read_logs()
        self.judge.raise_mismatch(float("inf"), at_once=True)
        self.after = self._count()
        self.unseen_after = self._crossed_unseen()
        self.stored_bytes = os.fstat(self.store_fd).st_size - self.stored_before

    def _keep_to_its_time(self, now: float) -> None:
        paused_s = self.building.taken_s(now)
        if self.clock.is_over(now, paused_s):
            self.judge.raise_what_is_known(now)
            views = self.judge.views()  # before the question wakes those that wait
            stacks = self._stacks()
            raise timeout_error(self.timeout_s, views, self.judge.log.groups, stacks)
        if self.clock.is_past_patience(now, paused_s):
            raise MachineTooBusy(
                f"after {now - self.released_s:.0f} s the ranks still had not had "
                f"{self.timeout_s:g} s of this machine: it is too busy"
            )

    def _progress(self, now: float) -> str:
        done = sum(process.state == "finished" for process in self.ranks)
        waiting = sum(map(bool, self.judge.log.pending))
        return (
            f"{now - self.released_s:.0f} s of at most {self.timeout_s:g}: "
            f"{done} of {self.world_size} ranks have finished, {waiting} are in a call, "
            f"{len(self.judge.log.calls):,} calls so far"
        )

    def _stacks(self) -> dict[int, str]:
        assert self.channel is not None
        self.channel.ask_stacks()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            self._listen(LOOK_S)
        return {process.rank: process.stack() for process in self.ranks}

    def _count(self) -> Counts:
        rank_of = {process.pid: process.rank for process in self.ranks if process.pid is not None}
        try:
            found = wire.connections_of(rank_of, self.channel.netlink if self.channel else None)
        except OSError:  # a machine that does not show its sockets: `launch` then uses the calls
            return {}
        return {connection: (rank_of[pid], count) for connection, (pid, count) in found.items()}

    def _crossed_unseen(self) -> int | None:
        """Bytes that have crossed the ranks' loopback so far in no socket that is open now; None
        where loopback is not theirs alone."""
        if self.channel is None or self.channel.netlink is None or self.channel.interfaces is None:
            return None
        try:
            crossed = wire.loopback_payload_bytes(self.channel.interfaces)
            return crossed - wire.carried_bytes(self.channel.netlink)
        except OSError:
            return None

    @property
    def unseen_bytes(self) -> int | None:
        """What crossed the ranks' loopback during the run and was in none of the counted sockets:
        in some that were opened and closed by hand, say.  None where nobody can tell."""
        if self.unseen_before is None or self.unseen_after is None:
            return None
        closed = {at: count for _, counts in self.judge.log.closing for at, count in counts.items()}
        return max(0, self.unseen_after - self.unseen_before - sum(closed.values()))

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
            for process in self.ranks:  # they die with the server; what they started does not
                if process.pid is not None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
            self.host.discard(self.server)
            raise LaunchError(
                "the process that starts ranks was killed; the next launch starts a new one"
            )
        if isinstance(message["rank"], str):
            self.building.hear(message)
            return
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
            while not process.is_over and (message := process.inbox.next()) is not None:
                process.hear(*message)
                if process.needs:
                    self._have_built(process)
        except ValueError as error:
            process.fail_in_output(error)
        if process.is_over:  # it has had its say: what more it sends stays unread
            self.selector.unregister(process.control)

    def _have_built(self, process: RankProcess) -> None:
        assert self.channel is not None
        if self.server == "torch" or process.needs in process.needed:
            raise messages.Forged(f"it asked for {process.needs[:40]!r} to be compiled")
        process.needed.add(process.needs)
        self.building.ask(process, self.channel)

    def _hear_print(self, process: RankProcess, kind: str, fd: int) -> None:
        data = os.read(fd, 1 << 16)
        printed = process.out if kind == "stdout" else process.err
        for line in printed.feed(data, final=not data):
            self.screen.line(process.rank, line, kind == "stderr")
        if not data:
            self.selector.unregister(fd)
            os.close(fd)

    def _end_all(self) -> None:
        if self.channel is not None:
            has_answered = any(process.pid is not None for process in self.ranks)
            self.channel.kill(None if has_answered else LOADING_PATIENCE_S)
        self.judge.read_logs()
        for key in list(self.selector.get_map().values()):
            kind, process = key.data
            if kind in ("stdout", "stderr"):
                self._drain(process, kind, key.fd)
        self.selector.close()
        self.building.close()
        self.cleanup.close()

    def _drain(self, process: RankProcess, kind: str, fd: int) -> None:
        """What is still in the pipe; never waits, should some process still hold its other end."""
        os.set_blocking(fd, False)
        try:
            while fd in self.selector.get_map():
                self._hear_print(process, kind, fd)
        except BlockingIOError:
            self.selector.unregister(fd)
            os.close(fd)
