"""One rank as the kernel knows it: its lines of communication and what has been heard of it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from shardlab.live_memory import Seen
from shardlab.ranks import messages, resident, thread
from shardlab.ranks.messages import Forged, Inbox
from shardlab.ranks.stream import Printed
from shardlab.trace.log import LogReader

MOST_WAIT_S = 3.0  # for its threads to rest
MOST_LOOKS, MOST_CHARS_OF_A_LABEL = 1000, 200  # in one function, and of a block's
MOST_CAUSES, MOST_FRAMES, MOST_CHARS = 5, 50, 20_000  # of one exception, as rank.py sends it


@dataclass
class RankProcess:
    rank: int
    control: socket.socket
    log: LogReader
    stack_fd: int
    inbox: Inbox = field(default_factory=Inbox)
    out: Printed = field(default_factory=Printed)
    err: Printed = field(default_factory=Printed)
    pid: int | None = None
    state: str = "starting"  # then ready, running, and finished (or ready again), failed or dead
    output: bytes = b""
    failure: dict[str, Any] | None = None  # what it said of its exception
    forged: str = ""  # what it sent that no rank's own code sends
    needs: str = ""  # the op of DeepSpeed's that it waits for (builds.py)
    needed: set[str] = field(default_factory=set)  # and those that it has waited for
    look_at: str = ""  # it waits for its memory to be looked at: the block that has just ended
    looks: int = 0
    seen_bytes: dict[str, Seen] = field(default_factory=dict)  # by block
    comes_to_rest: bool = True
    exit_code: int | None = None
    max_rss_bytes: int = 0
    run_ns: int | None = None
    still_since_s: float = 0.0
    busy_s: float = 0.0  # when it was last seen at work

    def begin(self, out: Printed, err: Printed, most_bytes: int) -> None:
        """It is given a function, whose output may have so many bytes."""
        self.inbox.max_body_bytes = most_bytes
        self.out, self.err = out, err
        self.output, self.failure, self.forged = b"", None, ""
        self.run_ns, self.busy_s = None, 0.0
        self.seen_bytes, self.looks = {}, 0
        self.state = "running" if self.exit_code is None else "dead"

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "failed", "dead")

    @property
    def has_ended_untold(self) -> bool:
        """It has died, and the server has still to say how."""
        return not self.is_over and self.pid is not None and thread.has_ended(self.pid)

    def stack(self) -> str:
        """What faulthandler wrote of it, on a crash or when asked."""
        return os.pread(self.stack_fd, 1 << 20, 0).decode(errors="replace")

    def still_s(self, now: float) -> float:
        """For how long its main thread has used no processor."""
        run_ns = thread.run_ns(self.pid)
        if run_ns != self.run_ns or run_ns is None:
            self.run_ns, self.still_since_s = run_ns, now
        return now - self.still_since_s

    def is_quiet(self, now: float, for_s: float) -> bool:
        """Whether it is over, or no thread of it was seen at work for so long."""
        if self.is_over:
            return True
        if thread.is_busy(self.pid) or not self.busy_s:
            self.busy_s = now
        return min(self.still_s(now), now - self.busy_s) >= for_s

    def hear(self, header: dict[str, Any], body: bytes) -> None:
        """Take in one message of the rank; raises Forged where it's of no known form."""
        match header.get("is"), sorted(header.keys() - {"is"}), self.state:
            case "ready", [], "starting":
                self.state = "ready"
            case "finished", [], "running":
                self.state, self.output = "finished", body
            case "needs", ["op"], "running":
                self.needs = text_of(header["op"], 100)
            case "look", ["label"], "running":
                self.look_at = text_of(header["label"], MOST_CHARS_OF_A_LABEL) or " "
            case "failed", ["chain", "stage"], _:
                self.failure = _failure(header)
                self.state = "failed"
            case _:
                raise Forged("it sent an unknown message")

    def look(self) -> None:
        """Note down what memory it has in use now, where anybody can tell, and let it go on."""
        label, self.look_at = self.look_at, ""
        self.looks += 1
        if self.looks > MOST_LOOKS:
            self.seen_bytes = {}  # not all of them: as good as none
        else:
            self._wait_for_its_threads()
            if (now_bytes := resident.private_bytes(self.pid)) is not None:
                least, most = self.seen_bytes.get(label, (now_bytes, now_bytes))
                self.seen_bytes[label] = Seen(min(least, now_bytes), max(most, now_bytes))
        with contextlib.suppress(OSError):  # it died, or asks and asks and does not listen
            self.control.send(messages.pack({"is": "seen"}), socket.MSG_DONTWAIT)

    def _wait_for_its_threads(self) -> None:
        """Gloo's let go of a collective's tensors some time after it is done.

        A thread of the student's own that never rests is waited for once.
        """
        until = time.monotonic() + MOST_WAIT_S
        rests = 0
        while self.comes_to_rest and rests < 2:
            rests = 0 if thread.is_busy(self.pid) else rests + 1
            self.comes_to_rest = time.monotonic() < until
            time.sleep(0.0005)

    def fail_in_output(self, error: Exception) -> None:
        """Its output could not be taken."""
        if isinstance(error, Forged):
            self.forged = str(error)
        chain = [{"kind": type(error).__name__, "message": str(error), "frames": []}]
        self.state, self.failure = "failed", {"stage": "output", "chain": chain}


def _failure(header: dict[str, Any]) -> dict[str, Any]:
    """What a rank said of its exception, in just the form that explain.py relies on.

    Raises Forged for another form.
    """
    try:
        chain = [
            {
                "kind": text_of(cause["kind"], 200),
                "message": text_of(cause["message"], MOST_CHARS),
                "frames": [
                    [text_of(name, 500), int(line), text_of(fn, 200)]
                    for name, line, fn in cause["frames"][-MOST_FRAMES:]
                ],
            }
            for cause in header["chain"][:MOST_CAUSES]
        ]
        stage = text_of(header["stage"], 20)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Forged("it sent an unknown message") from error
    if not chain:
        raise Forged("it sent an unknown message")
    return {"stage": stage, "chain": chain}


def text_of(value: Any, most_chars: int) -> str:
    """A string that can be shown and written, whatever a rank sent in its place."""
    return str(value)[:most_chars].encode(errors="replace").decode()
