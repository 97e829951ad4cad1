"""One rank as seen from the kernel: its connections, and what it has sent over them."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardlab.linux import thread
from shardlab.ranks import messages
from shardlab.ranks.messages import Forged, Inbox
from shardlab.ranks.stream import CapturedOutput
from shardlab.run.live_memory import ByteRange
from shardlab.trace.log import LogReader

MAX_WAIT_S = 3.0  # for its threads to become idle
SENT_AT_ONCE_BYTES = 1 << 18  # about the size of a socket's buffer
MAX_READINGS, MAX_LABEL_CHARS = 1000, 200  # per function; per block label
MAX_CAUSES, MAX_FRAMES, MAX_CHARS = 5, 50, 20_000  # of one exception, as rank.py sends it


@dataclass
class RankProcess:
    rank: int
    control: socket.socket
    log: LogReader
    stack_fd: int
    inbox: Inbox = field(default_factory=Inbox)
    outbox: deque[memoryview] = field(default_factory=deque)  # not yet sent, see `send`
    out: CapturedOutput = field(default_factory=CapturedOutput)
    err: CapturedOutput = field(default_factory=CapturedOutput)
    pid: int | None = None
    state: str = "starting"  # then ready, running, and finished (or ready again), failed or dead
    output: bytes = b""
    failure: dict[str, Any] | None = None  # the rank's description of its exception
    forged: str = ""  # why one of its messages can't come from our own code
    requested_op: str = ""  # the DeepSpeed op that it waits for (builds.py)
    requested_ops: set[str] = field(default_factory=set)  # all ops that it has requested
    # Label of the block that just ended: the rank waits until it has been measured
    block_to_measure: str = ""
    readings: int = 0
    process_bytes: dict[str, ByteRange] = field(default_factory=dict)  # by block
    # Pickled values that it receives one at a time, by the label of the block that it must end
    # first; and the bytes that it had sent by then, None if they cannot be counted.
    withheld: dict[str, deque[bytes]] = field(default_factory=dict)
    sent_before: dict[str, list[int | None]] = field(default_factory=dict)
    threads_become_idle: bool = True
    exit_code: int | None = None
    max_rss_bytes: int = 0
    run_ns: int | None = None
    idle_since_s: float = 0.0
    last_busy_s: float = 0.0  # when a thread of it last ran

    def begin(
        self,
        out: CapturedOutput,
        err: CapturedOutput,
        max_bytes: int,
        withheld: Mapping[str, list[bytes]],
    ) -> None:
        """Start a new function, whose output may have at most ``max_bytes``."""
        self.inbox.max_body_bytes = max_bytes
        self.outbox.clear()
        self.out, self.err = out, err
        self.output, self.failure, self.forged = b"", None, ""
        self.run_ns, self.last_busy_s = None, 0.0
        self.process_bytes, self.readings = {}, 0
        self.withheld = {label: deque(values) for label, values in withheld.items()}
        self.sent_before = {label: [] for label in withheld}
        self.state = "running" if self.exit_code is None else "dead"

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "failed", "dead")

    @property
    def exit_is_unreported(self) -> bool:
        """Whether it has died and the server has not yet reported its exit."""
        return not self.is_over and self.pid is not None and thread.has_ended(self.pid)

    def stack(self) -> str:
        """What faulthandler wrote on a crash or on request."""
        return os.pread(self.stack_fd, 1 << 20, 0).decode(errors="replace")

    def idle_s(self, now: float) -> float:
        """How long its main thread has used no processor time."""
        run_ns = thread.run_ns(self.pid)
        if run_ns != self.run_ns or run_ns is None:
            self.run_ns, self.idle_since_s = run_ns, now
        return now - self.idle_since_s

    def is_quiet(self, now: float, for_s: float) -> bool:
        """Whether it is over, or none of its threads has run for ``for_s``."""
        if self.is_over:
            return True
        if thread.is_busy(self.pid) or not self.last_busy_s:
            self.last_busy_s = now
        return min(self.idle_s(now), now - self.last_busy_s) >= for_s

    def send(self, *parts: bytes) -> None:
        """Sends as much as its connection takes now; `send_rest` sends the rest.

        A rank need not read: a checker that waited for it might never continue.
        """
        self.outbox += [memoryview(part) for part in parts if part]
        self.send_rest()

    def send_rest(self) -> None:
        try:
            while self.outbox:
                sent = self.control.send(self.outbox[0][:SENT_AT_ONCE_BYTES], socket.MSG_DONTWAIT)
                self.outbox[0] = self.outbox[0][sent:]
                if not self.outbox[0]:
                    self.outbox.popleft()
        except BlockingIOError:
            return
        except OSError:  # it died: the server will report it
            self.outbox.clear()

    def handle(self, header: dict[str, Any], body: bytes) -> None:
        """Process one message from the rank; raises Forged if its form is unknown."""
        match header.get("is"), sorted(header.keys() - {"is"}), self.state:
            case "ready", [], "starting":
                self.state = "ready"
            case "finished", [], "running":
                self.state, self.output = "finished", body
            case "needs", ["op"], "running":
                self.requested_op = clean_text(header["op"], 100)
            case "measure", ["label"], "running":
                if self.outbox:  # it asks without having read the answer before
                    raise Forged("it asked to be measured while it was being measured")
                self.block_to_measure = clean_text(header["label"], MAX_LABEL_CHARS) or " "
            case "failed", ["chain", "stage"], _:
                self.failure = _failure(header)
                self.state = "failed"
            case _:
                raise Forged("it sent an unknown message")

    def may_be_measured(self) -> bool:
        """Whether to measure it at the end of the block; counts the requests."""
        self.readings += 1
        can_be_measured = self.exit_code is None and self.readings <= MAX_READINGS
        if not can_be_measured:
            self.process_bytes = {}  # an incomplete record would mislead
        return can_be_measured

    def record(self, now_bytes: int | None, sent_bytes: int | None) -> None:
        """Add what was measured at the end of its block."""
        label = self.block_to_measure
        if now_bytes is not None:
            least, most = self.process_bytes.get(label, (now_bytes, now_bytes))
            self.process_bytes[label] = ByteRange(min(least, now_bytes), max(most, now_bytes))
        if label in self.sent_before:
            self.sent_before[label].append(sent_bytes)

    def resume(self) -> None:
        """Let it continue after its block, with the next value withheld from it."""
        values = self.withheld.get(self.block_to_measure)
        self.block_to_measure = ""
        self.send(messages.pack({"is": "measured"}, values.popleft() if values else b""))

    def fail_in_output(self, error: Exception) -> None:
        """Its output could not be read."""
        if isinstance(error, Forged):
            self.forged = str(error)
        chain = [{"kind": type(error).__name__, "message": str(error), "frames": []}]
        self.state, self.failure = "failed", {"stage": "output", "chain": chain}


def _failure(header: dict[str, Any]) -> dict[str, Any]:
    """A rank's description of its exception, in exactly the form that explain.py expects.

    Raises Forged for any other form.
    """
    try:
        chain = [
            {
                "kind": clean_text(cause["kind"], 200),
                "message": clean_text(cause["message"], MAX_CHARS),
                "frames": [
                    [clean_text(name, 500), int(line), clean_text(fn, 200)]
                    for name, line, fn in cause["frames"][-MAX_FRAMES:]
                ],
            }
            for cause in header["chain"][:MAX_CAUSES]
        ]
        stage = clean_text(header["stage"], 20)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Forged("it sent an unknown message") from error
    if not chain:
        raise Forged("it sent an unknown message")
    return {"stage": stage, "chain": chain}


def clean_text(value: Any, max_chars: int) -> str:
    """A string that is safe to print and encode, whatever the rank sent."""
    return str(value)[:max_chars].encode(errors="replace").decode()
