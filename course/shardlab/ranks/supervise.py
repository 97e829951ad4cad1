"""Sees ranks through, in the kernel's process: starts them, gives them functions, listens, ends.

All in one thread and one loop.  Whatever happened before, an interrupt included, `close` ends every
process and waits until they are gone.
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
from shardlab.ranks.client import Channel, Host, memory_file, setup_file
from shardlab.ranks.explain import ranks_text, timeout_error
from shardlab.ranks.failure_detector import FailureDetector
from shardlab.ranks.meter import Meter
from shardlab.ranks.process import RankProcess
from shardlab.ranks.stream import PRINTED_BYTES, PROGRESS_AFTER_S, Printed, Screen
from shardlab.ranks.trust import Trust
from shardlab.ranks.turn import Turn
from shardlab.trace import log
from shardlab.trace.calls import CallLog

STARTUP_LIMIT_S = {  # a first import of torch, and of all of DeepSpeed, on a cold disk is within it
    "torch": 120.0,
    "deepspeed": 300.0,
    "deepspeed-cuda": 300.0,
}
MOST_PRINTED_BYTES = {Trust.OWN: PRINTED_BYTES, Trust.UNTRUSTED: 1 << 20}  # by rank and stream
# Of each rank's log; labs write some hundreds
MOST_EVENTS = {Trust.OWN: log.MOST_EVENTS, Trust.UNTRUSTED: 100_000}
LOADING_SHOWN_AFTER_S = 0.5
LOADING_PATIENCE_S = 0.5
LOOK_S = 0.05  # how often the ranks' logs are read
STACKS_S = 0.3, 3.0  # to write down a stack; at most, until every rank has
PIPE_READS = 2  # of 64 KiB, as much as a pipe holds


class Supervisor:
    """`ranks.start(); turn = ranks.begin(...); ranks.watch(turn); ...; ranks.close()`."""

    def __init__(
        self, setup: dict[str, Any], screen: Screen, host: Host, trust: Trust = Trust.OWN
    ) -> None:
        self.setup = setup
        self.trust = trust
        self.world_size: int = setup["world_size"]
        self.screen = screen
        self.host = host
        self.ranks: list[RankProcess] = []
        self.printed_bytes = MOST_PRINTED_BYTES[trust]
        self.most_events = MOST_EVENTS[trust]
        self.server = engines.server_of(setup["engine"], setup["device"])
        self.building = Building(screen)
        self.selector = selectors.DefaultSelector()
        self.cleanup = contextlib.ExitStack()
        self.channel: Channel | None = None
        self.begun_s = time.monotonic()
        self.turn: Turn | None = None

    def close(self) -> None:
        try:
            self.screen.close(time.monotonic() - self.begun_s)
        finally:
            self._end_all()

    meter: Meter  # once it has started

    def start(self) -> None:
        """Fork the ranks and wait until all can communicate; raises LaunchError.

        On a full machine a rank may be ready before its server has told its process's number,
        without which its sockets are nobody's.
        """
        begun_s, limit_s = time.monotonic(), STARTUP_LIMIT_S[self.server]
        detector = FailureDetector(self.ranks, CallLog(self.world_size), self.trust)
        store_fd = memory_file("shardlab-store")
        setup_fd = setup_file(self.setup)
        try:
            self.channel = self.host.open_channel(self.server, setup_fd, store_fd)
        finally:
            self.cleanup.callback(os.close, store_fd)
            os.close(setup_fd)
        # Ranks that may open no connections have had all their groups from the start.
        is_sealed = not self.setup["may_connect"]
        self.meter = Meter(self.channel, self.ranks, store_fd, seeks_collectives=is_sealed)
        self.selector.register(self.channel.sock, selectors.EVENT_READ, ("channel", None))
        for rank in range(self.world_size):
            self._fork(rank, self.channel)
        while late := [p.rank for p in self.ranks if p.state != "ready" or p.pid is None]:
            self._listen(LOOK_S)
            try:
                detector.raise_failures(time.monotonic(), at_once=True)
            except RankError as error:  # before any code of the user's: the machine's doing
                headline = f"the ranks could not be started: {error.headline}"
                raise LaunchError(headline, error.detail) from error
            waited_s = time.monotonic() - begun_s
            self._show_loading(waited_s)
            if waited_s > limit_s:
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
        process = RankProcess(rank, ours, log.LogReader(log_fd, self.most_events), stack_fd)
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
        os.set_blocking(read_end, False)
        self.selector.register(read_end, selectors.EVENT_READ, (kind, process))
        return write_end

    def begin(
        self,
        order: dict[str, Any],
        program: bytes,
        inputs: list[bytes],
        timeout_s: float,
        output_bytes: int = 4 << 30,
    ) -> Turn:
        """Count the sockets as they are now and let the first ranks go, each with its own input.

        ``order``: what the ranks get with the program (rank.py), including its ``world_size``.
        """
        taking_part = self.ranks[: order["world_size"]]
        for process in self.ranks:
            self._forget(process)
        last = self.turn
        # What the ranks moved since is this turn's.
        before = (last and last.after) or self.meter.read()
        self.turn = turn = Turn(taking_part, timeout_s, self.trust, before)
        turn.clock.start(turn.begun_s, [process.pid for process in taking_part])
        order = {"is": "go", "program_bytes": len(program), "trust": self.trust.value, **order}
        for process, given in zip(taking_part, inputs, strict=True):
            printed = Printed(self.printed_bytes), Printed(self.printed_bytes)
            process.begin(*printed, output_bytes // len(taking_part))
            if process.control not in self.selector.get_map():  # nobody listens to one that is over
                self.selector.register(process.control, selectors.EVENT_READ, ("control", process))
            with contextlib.suppress(BrokenPipeError):  # it died: its end will be told
                messages.send(process.control, order, program + given)
        return turn

    def _forget(self, process: RankProcess) -> None:
        """What came of it since it was done."""
        for _ in process.log.new_events():
            pass
        process.log.events_left = self.most_events

    def watch(self, turn: Turn) -> None:
        """Until every rank of the turn has returned.

        Raises RankError, DeadlockError, RunTimeout; MachineTooBusy where untrusted ranks waited
        longer for a processor than the clock allows.  Even then it counts what can be counted.
        """
        try:
            self._watch(turn)
        finally:
            turn.after = turn.after or self.meter.read()
            turn.read_logs()
            self._hear_last_prints()

    def _watch(self, turn: Turn) -> None:
        looked_s = 0.0
        while not all(process.state == "finished" for process in turn.ranks):
            self._listen(LOOK_S)
            now = time.monotonic()
            if now - looked_s >= LOOK_S:  # printing and outputs wake us far more often
                looked_s = now
                turn.clock.look(now)
                turn.read_logs()
                turn.detector.raise_failures(now)  # first: ranks that wait for a failed one hang
                turn.detector.raise_deadlock(now)
                if self.building.going_on:
                    self.building.show(now)
                elif now - turn.begun_s > PROGRESS_AFTER_S:
                    self.screen.progress(turn.progress(now))
            self._keep_to_its_time(turn, now)
        turn.read_logs()
        turn.detector.raise_failures(float("inf"), at_once=True)
        turn.detector.raise_mismatch(float("inf"), at_once=True)
        turn.after = self.meter.read()

    def _keep_to_its_time(self, turn: Turn, now: float) -> None:
        paused_s = self.building.taken_s(now)
        if turn.clock.is_over(now, paused_s):
            turn.read_logs()
            turn.detector.raise_at_timeout(now)
            views = turn.detector.views()  # before the question wakes those that wait
            stacks = self._stacks(turn)
            raise timeout_error(turn.timeout_s, views, turn.log.groups, stacks)
        if turn.clock.is_machine_too_busy(now, paused_s):
            raise MachineTooBusy(
                f"after {now - turn.begun_s:.0f} s the ranks still had not had "
                f"{turn.timeout_s:g} s of this machine: it is too busy"
            )

    def _stacks(self, turn: Turn) -> dict[int, str]:
        """What the ranks are at: of many that are busy each has to wait until it can tell."""
        assert self.channel is not None
        self.channel.ask_stacks()
        least, most = (time.monotonic() + wait_s for wait_s in STACKS_S)
        while (now := time.monotonic()) < most:
            if now >= least and all(process.is_over or process.stack() for process in turn.ranks):
                break
            self._listen(LOOK_S)
        return {process.rank: process.stack() for process in self.ranks}

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
            while self._hear_rank(process):  # its last words, whoever was listened to first
                pass
            if not process.is_over:
                process.state = "dead"

    def _hear_rank(self, process: RankProcess) -> bool:
        """Whether there was something to hear."""
        if process.control not in self.selector.get_map():
            return False
        try:
            data = process.control.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self.selector.unregister(process.control)
            return False
        process.inbox.feed(data)
        try:
            while not process.is_over and (message := process.inbox.next()) is not None:
                process.hear(*message)
                if process.needs:
                    self._have_built(process)
                if process.look_at:
                    process.look()
        except ValueError as error:
            process.fail_in_output(error)
        if process.is_over:  # it has had its say: what more it sends stays unread
            self.selector.unregister(process.control)
        return True

    def _have_built(self, process: RankProcess) -> None:
        assert self.channel is not None
        if self.server == "torch" or process.needs in process.needed:
            raise messages.Forged(f"it asked for {process.needs[:40]!r} to be compiled")
        process.needed.add(process.needs)
        self.building.ask(process, self.channel)

    def _hear_print(self, process: RankProcess, kind: str, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        printed = process.out if kind == "stdout" else process.err
        for line in printed.feed(data, final=not data):
            self.screen.line(process.rank, line, kind == "stderr")
        if not data:
            self.selector.unregister(fd)
            os.close(fd)

    def _hear_last_prints(self) -> None:
        """What is still in the pipes."""
        for _ in range(PIPE_READS):
            for key in list(self.selector.get_map().values()):
                kind, process = key.data
                if kind in ("stdout", "stderr"):
                    self._hear_print(process, kind, key.fd)

    def _end_all(self) -> None:
        if self.channel is not None:
            has_answered = any(process.pid is not None for process in self.ranks)
            self.channel.kill(None if has_answered else LOADING_PATIENCE_S)
        for key in list(self.selector.get_map().values()):
            if key.data[0] in ("stdout", "stderr"):
                os.close(key.fd)
        self.selector.close()
        self.building.close()
        self.cleanup.close()
