"""Supervises ranks from the kernel's process: starts them, sends them functions, ends them.

All in one thread and one loop.  `close` ends every process and waits until they are gone, even
after an interrupt.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardlab.errors import LaunchError, MachineTooBusy, RankError
from shardlab.linux import process_memory, thread
from shardlab.nodes.cluster import Cluster
from shardlab.nodes.link_meter import READ_S, LinkMeter
from shardlab.ranks import engines, messages
from shardlab.ranks.client import Channel, Host, memory_file, setup_file
from shardlab.ranks.execution import Execution
from shardlab.ranks.explain_hang import timeout_error
from shardlab.ranks.failure_detector import BLOCKED_S, FailureDetector
from shardlab.ranks.meter import Meter
from shardlab.ranks.pending_builds import PendingBuilds
from shardlab.ranks.process import MAX_WAIT_S, RankProcess
from shardlab.ranks.stream import PRINTED_BYTES, PROGRESS_AFTER_S, CapturedOutput, Screen
from shardlab.ranks.trust import Trust
from shardlab.ranks.wording import ranks_text
from shardlab.trace import log
from shardlab.trace.calls import CallLog

STARTUP_LIMIT_S = {  # enough to import torch, or all of DeepSpeed, from a cold disk
    "torch": 120.0,
    "deepspeed": 300.0,
    "deepspeed-cuda": 300.0,
}
MAX_PRINTED_BYTES = {Trust.OWN: PRINTED_BYTES, Trust.UNTRUSTED: 1 << 20}  # per rank and stream
# Per rank; labs log a few hundred
MAX_EVENTS = {Trust.OWN: log.MAX_EVENTS, Trust.UNTRUSTED: 20_000}
LOADING_SHOWN_AFTER_S = 0.5
LOADING_PATIENCE_S = 0.5
POLL_S = 0.05  # how often the ranks' logs are read
ACTIVE_S = 0.3  # how long ranks are observed at a timeout, to tell computing from waiting
MIN_STACKS_S, MAX_STACKS_S = 0.3, 3.0  # how long to wait until every rank has written its stack
CLOSING_READS, CLOSING_BYTES = 10, 1000
READ_AND_SEND = selectors.EVENT_READ | selectors.EVENT_WRITE
PIPE_READS = 2  # of 64 KiB, the capacity of a pipe


class Supervisor:
    """`ranks.start(); execution = ranks.begin(...); ranks.watch(execution); ...; ranks.close()`."""

    def __init__(
        self, setup: dict[str, Any], screen: Screen, host: Host, trust: Trust = Trust.OWN
    ) -> None:
        self.setup = setup
        self.trust = trust
        self.world_size: int = setup["world_size"]
        self.screen = screen
        self.host = host
        self.ranks: list[RankProcess] = []
        self.printed_bytes = MAX_PRINTED_BYTES[trust]
        self.max_events = MAX_EVENTS[trust]
        self.server = engines.server_of(setup["engine"], setup["device"])
        self.pending_builds = PendingBuilds(screen)
        self.selector = selectors.DefaultSelector()
        self.unread = deque[RankProcess]()  # ranks with messages behind a request to be measured
        self.cleanup = contextlib.ExitStack()
        self.channel: Channel | None = None
        self.cluster: Cluster | None = None  # None for ranks on one node
        self.unplugged_s: float | None = None  # when a node's link was taken down
        self.started_s = time.monotonic()
        self.execution: Execution | None = None

    def close(self) -> None:
        try:
            self.screen.close(time.monotonic() - self.started_s)
        finally:
            self._end_all()

    meter: Meter  # set by start()

    def start(self) -> None:
        """Fork the ranks and wait until all can communicate; raises LaunchError.

        On a busy machine a rank may be ready before its server has reported its pid, without which
        its sockets can't be attributed to it.
        """
        started_s, limit_s = time.monotonic(), STARTUP_LIMIT_S[self.server]
        detector = FailureDetector(self.ranks, CallLog(self.world_size), self.trust)
        store_fd = memory_file("shardlab-store")
        setup_fd = setup_file(self.setup)
        try:
            self.channel = self.host.open_channel(self.server, setup_fd, store_fd)
        finally:
            self.cleanup.callback(os.close, store_fd)
            os.close(setup_fd)
        self.selector.register(self.channel.sock, selectors.EVENT_READ, ("channel", None))
        if self.setup["nodes"] > 1:
            self._make_nodes(self.channel, started_s + limit_s)
        # Ranks that may not open connections create all their groups at the start.
        is_sealed = not self.setup["may_connect"]
        self.meter = Meter(self.channel, self.ranks, store_fd, counts_collectives=is_sealed)
        for rank in range(self.world_size):
            self._fork(rank, self.channel)
        while late := [p.rank for p in self.ranks if p.state != "ready" or p.pid is None]:
            self._listen(POLL_S)
            try:
                detector.raise_failures(time.monotonic(), at_once=True)
            except RankError as error:  # no user code has run yet, so the machine is the cause
                headline = f"the ranks could not be started: {error.headline}"
                raise LaunchError(headline, error.detail) from error
            waited_s = time.monotonic() - started_s
            self._show_loading(waited_s)
            if waited_s > limit_s:
                raise LaunchError(f"{ranks_text(late)} did not start within {limit_s:.0f} s")

    def _make_nodes(self, channel: Channel, until_s: float) -> None:
        self.cluster = Cluster(self.setup["nodes"])
        self.cleanup.callback(self.cluster.close)
        with self.cluster.reply as reply:
            channel.make_nodes(reply.fileno())
        self.selector.register(self.cluster, selectors.EVENT_READ, ("cluster", None))
        while not self.cluster.is_complete:
            self._listen(POLL_S)
            self._show_loading(time.monotonic() - self.started_s)
            if time.monotonic() > until_s:
                raise LaunchError("the nodes could not be made in time")
        self.selector.unregister(self.cluster)
        channel.networks = self.cluster.networks

    def _show_loading(self, waited_s: float) -> None:
        is_loading = not self.ranks or any(process.pid is None for process in self.ranks)
        what, shown_after_s, usually = "DeepSpeed", LOADING_SHOWN_AFTER_S, ", usually 5 to 20"
        if self.server == "torch":
            what, shown_after_s, usually = "PyTorch for the ranks", PROGRESS_AFTER_S, ""
        if waited_s > shown_after_s:
            text = f"loading {what} (once per notebook): {waited_s:.0f} s{usually}"
            self.screen.progress(text if is_loading else "")

    def _fork(self, rank: int, channel: Channel) -> None:
        ours, theirs = socket.socketpair()
        self.cleanup.callback(ours.close)
        log_fd, stack_fd = log.create(), memory_file("shardlab-stack")
        self.cleanup.callback(os.close, log_fd)
        self.cleanup.callback(os.close, stack_fd)
        process = RankProcess(rank, ours, log.LogReader(log_fd, self.max_events), stack_fd)
        self.ranks.append(process)
        self.selector.register(ours, selectors.EVENT_READ, ("control", process))
        out, err = self._pipe("stdout", process), self._pipe("stderr", process)
        try:
            fds = [theirs.fileno(), out, err, log_fd, stack_fd]
            channel.fork(rank, [*fds, *self._namespaces_of(rank)])
        except OSError as error:
            raise LaunchError(f"rank {rank} could not be started: {error}") from error
        finally:
            theirs.close()
            os.close(out)
            os.close(err)

    def _node_of(self, rank: int) -> int:
        return rank * self.setup["nodes"] // self.world_size

    def _namespaces_of(self, rank: int) -> list[int]:
        """Of its node; none if all ranks are on one."""
        return [] if self.cluster is None else self.cluster.namespaces[self._node_of(rank)]

    def _unplug_when_due(self, execution: Execution, now: float) -> None:
        if self.cluster is None or self.setup["unplug"] is None:
            return
        after_s, node = self.setup["unplug"]
        if self.unplugged_s is None and now - execution.started_s >= after_s:
            self.cluster.unplug(node)
            self.unplugged_s = now
        # What has passed the link may still arrive
        if self.unplugged_s is not None and now - self.unplugged_s >= BLOCKED_S:
            ranks = range(execution.world_size)
            execution.detector.unplugged = {each for each in ranks if self._node_of(each) == node}

    def _pipe(self, kind: str, process: RankProcess) -> int:
        """The write end of a new pipe; the read end is read until all writers have closed it."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        self.selector.register(read_end, selectors.EVENT_READ, (kind, process))
        return write_end

    def begin(
        self,
        options: dict[str, Any],
        program: bytes,
        inputs: list[bytes],
        timeout_s: float,
        output_bytes: int = 4 << 30,
        withheld: Sequence[Mapping[str, list[bytes]]] = (),
    ) -> Execution:
        """Read the socket counters and start the function on the first ranks, each with its input.

        ``withheld``: by rank, see RankProcess.

        ``options``: sent to the ranks with the program (rank.py); ``world_size`` selects the ranks.
        """
        participants = self.ranks[: options["world_size"]]
        for process in self.ranks:
            self._discard_events(process)
        last = self.execution
        # Bytes sent since the last execution belong to this one.
        before = (last and last.after) or self.meter.read()
        memory = options["memory"], options["process_memory"]
        execution = Execution(participants, timeout_s, self.trust, before, *memory)
        self.execution = execution
        if self.cluster is not None:
            execution.log.nodes = tuple(map(self._node_of, range(execution.world_size)))
            execution.link_meter = LinkMeter(self.cluster, execution.started_s)
        self.unread.clear()
        execution.clock.start(execution.started_s, [process.pid for process in participants])
        options = {"is": "go", "program_bytes": len(program), **options}
        for process, given in zip(participants, inputs, strict=True):
            printed = CapturedOutput(self.printed_bytes), CapturedOutput(self.printed_bytes)
            own = withheld[process.rank] if withheld else {}
            process.begin(*printed, output_bytes // len(participants), own)
            if process.control not in self.selector.get_map():  # unregistered when it was over
                self.selector.register(process.control, selectors.EVENT_READ, ("control", process))
            body = program + given
            process.send(messages.begin(options, body), body)
        return execution

    def _discard_events(self, process: RankProcess) -> None:
        """Skip what the rank logged after its last function."""
        for _ in process.log.new_events():
            pass
        process.log.events_left = self.max_events

    def watch(self, execution: Execution) -> None:
        """Wait until every rank of the execution has returned.

        Raises RankError, DeadlockError, RunTimeout; MachineTooBusy if untrusted ranks waited longer
        for a processor than the clock allows.  Always reads the socket counters.
        """
        try:
            self._watch(execution)
        finally:
            if execution.link_meter is not None:
                execution.link_meter.read()
            execution.after = execution.after or self.meter.read()
            execution.read_logs()
            self._read_until_seen(execution)
            self._drain_printed()

    def _read_until_seen(self, execution: Execution) -> None:
        """Linux reports a closed socket some time later, and counts the network and its sockets one
        after another: what is in flight between two readings is missing from one.  What still waits
        for a link, such as packets sent again, would count for the next function."""
        is_whole = all(process.state == "finished" for process in execution.ranks)
        may_appear = bool(execution.log.closing) or is_whole
        for _ in range(CLOSING_READS if self.channel and self.channel.pid else 0):
            is_missing = may_appear and (execution.unseen_bytes or 0) > CLOSING_BYTES
            is_waiting = is_whole and (execution.unexplained_bytes or 0) < -CLOSING_BYTES
            if not (is_missing or is_waiting):
                return
            time.sleep(POLL_S)
            execution.after = self.meter.read()

    def _watch(self, execution: Execution) -> None:
        polled_s = 0.0
        links = execution.link_meter
        while not all(process.state == "finished" for process in execution.ranks):
            self._listen(POLL_S if links is None else READ_S)
            if links is not None:
                links.read_if_due()
            now = time.monotonic()
            if now - polled_s >= POLL_S:  # output wakes us far more often
                polled_s = now
                self.meter.note_closed()
                execution.clock.update(now)
                execution.read_logs()
                self._unplug_when_due(execution, now)
                # Failures first: ranks that wait for a failed rank hang too.
                execution.detector.raise_failures(now)
                execution.detector.raise_deadlock(now)
                if self.pending_builds.in_progress:
                    self.pending_builds.show(now)
                elif now - execution.started_s > PROGRESS_AFTER_S:
                    self.screen.progress(execution.progress(now))
            self._enforce_time_limit(execution, now)
        execution.read_logs()
        execution.detector.raise_failures(float("inf"), at_once=True)
        execution.detector.raise_mismatch(float("inf"), at_once=True)
        execution.after = self.meter.read()

    def _enforce_time_limit(self, execution: Execution, now: float) -> None:
        paused_s = self.pending_builds.paused_s(now)
        if execution.clock.is_over(now, paused_s):
            execution.read_logs()
            execution.detector.raise_at_timeout(now)
            # Before the request for stacks wakes waiting ranks
            views, active = execution.detector.views(), self._active(execution)
            stacks = self._stacks(execution)
            cpu_s = execution.clock.used_cpu_s
            limit_s = execution.timeout_s
            raise timeout_error(limit_s, views, execution.log, stacks, active, cpu_s)
        if execution.clock.is_machine_too_busy(now, paused_s):
            raise MachineTooBusy(
                f"the machine is too busy: in {now - execution.started_s:.0f} s the ranks got "
                f"less than {execution.timeout_s:g} s of processor time"
            )

    def _active(self, execution: Execution) -> set[int]:
        """The ranks that use a processor now, or would if they got one."""
        before, started_s = execution.detector.wanted_ns(), time.monotonic()
        while (for_s := time.monotonic() - started_s) < ACTIVE_S:
            self._drain_printed()  # or a rank that prints all the time would wait
            time.sleep(0.002)  # reads no messages, which untrusted ranks may send endlessly
        return execution.detector.active(before, for_s)

    def _stacks(self, execution: Execution) -> dict[int, str]:
        """The ranks' stacks. If many ranks are busy, each writes its own once it is scheduled."""
        assert self.channel is not None
        self.channel.request_stacks()
        least, most = (time.monotonic() + wait_s for wait_s in (MIN_STACKS_S, MAX_STACKS_S))
        while (now := time.monotonic()) < most:
            if now >= least and all(
                process.is_over or process.stack() for process in execution.ranks
            ):
                break
            self._listen(POLL_S)
        return {process.rank: process.stack() for process in self.ranks}

    def _listen(self, timeout_s: float) -> None:
        if self.unread:
            timeout_s = 0.0
            self._handle_messages(self.unread.popleft())
        registered = self.selector.get_map()
        for process in self.ranks:
            if process.outbox and process.control in registered:
                self.selector.modify(process.control, READ_AND_SEND, ("control", process))
        for key, events in self.selector.select(timeout_s):
            kind, process = key.data
            if kind == "channel":
                self._read_server()
            elif kind == "cluster":
                assert self.cluster is not None
                self.cluster.read()
            elif kind == "control":
                if events & selectors.EVENT_WRITE:
                    process.send_rest()
                    if not process.outbox:
                        self.selector.modify(process.control, selectors.EVENT_READ, key.data)
                if events & selectors.EVENT_READ:
                    self._read_rank(process)
            else:
                self._read_printed(process, kind, key.fd)

    def _read_server(self) -> None:
        assert self.channel is not None
        message = self.channel.receive()
        if message is None:
            for process in self.ranks:  # ranks die with the server, but not their children
                if process.pid is not None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
            self.host.discard(self.server)
            raise LaunchError(
                "the process that starts ranks was killed; the next launch starts a new one"
            )
        if message["rank"] == messages.NODES:
            return
        if isinstance(message["rank"], str):
            self.pending_builds.handle(message)
            return
        process = self.ranks[message["rank"]]
        if "pid" in message:
            process.pid = message["pid"]
        elif "failed" in message:
            raise LaunchError(
                f"rank {process.rank} could not be started: {message['failed']}",
                "Try fewer ranks, or close other programs.",
            )
        else:
            process.exit_code = message["exit"]
            process.max_rss_bytes = message["max_rss_bytes"]
            if process in self.unread:
                self.unread.remove(process)
                self._handle_messages(process)
            while self._read_rank(process):  # read its last messages before its exit counts
                pass
            if not process.is_over:
                process.state = "dead"

    def _read_rank(self, process: RankProcess) -> bool:
        """Whether there was something to read."""
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
        if process not in self.unread:
            self._handle_messages(process)
        return True

    def _handle_messages(self, process: RankProcess) -> None:
        """Up to the next request to be measured, which takes time: a rank may have sent hundreds,
        and its time limit must be seen in between."""
        try:
            while not process.is_over and (message := process.inbox.next()) is not None:
                process.handle(*message)
                if process.requested_op:
                    self._request_build(process)
                if process.block_to_measure:
                    self._measure(process)
                    if process.exit_code is None:
                        self.unread.append(process)
                        return
        except ValueError as error:
            process.fail_in_output(error)
        if process.is_over and process.control in self.selector.get_map():
            self.selector.unregister(process.control)  # ignore anything it sends from now on

    def _measure(self, process: RankProcess) -> None:
        """Measure a rank that waits at the end of a block, then let it continue.

        Its own record of live bytes needs the wait too: gloo's threads may still hold tensors.
        """
        execution = self.execution
        counts_wire = process.block_to_measure in process.withheld
        is_wanted = execution is not None and (counts_wire or execution.with_memory)
        if execution is not None and is_wanted and process.may_be_measured():
            # What it has sent is final once its peers have received it.
            self._wait_for_idle_threads(execution.ranks if counts_wire else [process])
            sent_bytes = execution.sent_bytes(process.rank, self.meter) if counts_wire else None
            used_bytes = self._used_bytes(process) if execution.with_process_memory else None
            process.record(used_bytes, sent_bytes)
        process.resume()

    def _wait_for_idle_threads(self, processes: Sequence[RankProcess]) -> None:
        """Gloo's threads release a collective's tensors some time after it is done.

        If a student's own thread never becomes idle, this waits only once.
        """
        waiting = [each for each in processes if each.threads_become_idle and not each.is_over]

        def busy() -> Iterator[RankProcess]:
            return (each for each in waiting if thread.is_busy(each.pid))

        if waiting and not thread.become_idle(lambda: any(busy()), MAX_WAIT_S):
            for process in busy():
                process.threads_become_idle = False

    def _used_bytes(self, process: RankProcess) -> int | None:
        """Of a rank with the processes it has started; in a container, with all that no rank has
        as its own."""
        assert self.channel is not None
        started = thread.descendants(process.pid)
        if self.channel.pid is not None:
            started = thread.descendants(self.channel.pid)
            for other in self.ranks:
                if other is not process:
                    started -= {other.pid, *thread.descendants(other.pid)}
            started.discard(process.pid or 0)
        used_bytes = process_memory.used_bytes(process.pid, started)
        return None if used_bytes is None else used_bytes + self.meter.queued_bytes(process.rank)

    def _request_build(self, process: RankProcess) -> None:
        assert self.channel is not None
        if self.server == "torch" or process.requested_op in process.requested_ops:
            raise messages.Forged(f"it requested a build of {process.requested_op[:40]!r}")
        process.requested_ops.add(process.requested_op)
        self.pending_builds.request(process, self.channel)

    def _read_printed(self, process: RankProcess, kind: str, fd: int) -> None:
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

    def _drain_printed(self) -> None:
        """Read what is still in the pipes."""
        for _ in range(PIPE_READS):
            for key in list(self.selector.get_map().values()):
                kind, process = key.data
                if kind in ("stdout", "stderr"):
                    self._read_printed(process, kind, key.fd)

    def _end_all(self) -> None:
        if self.channel is not None:
            has_answered = any(process.pid is not None for process in self.ranks)
            self.channel.kill(None if has_answered else LOADING_PATIENCE_S)
        for key in list(self.selector.get_map().values()):
            if key.data[0] in ("stdout", "stderr"):
                os.close(key.fd)
        self.selector.close()
        self.pending_builds.close()
        self.cleanup.close()
