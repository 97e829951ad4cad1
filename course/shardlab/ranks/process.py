"""One rank as the kernel knows it: its lines of communication and what has been heard of it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Any

from shardlab.ranks import thread
from shardlab.ranks.messages import Inbox
from shardlab.ranks.stream import Printed
from shardlab.trace.log import Reader

MAX_OUTPUT_BYTES = 4 << 30


@dataclass
class RankProcess:
    rank: int
    control: socket.socket
    log: Reader
    stack_fd: int
    inbox: Inbox = field(default_factory=lambda: Inbox(MAX_OUTPUT_BYTES))
    pid: int | None = None
    state: str = "starting"  # then ready, running, and finished, failed or dead
    output: bytes = b""
    failure: dict[str, Any] | None = None  # what it said of its exception
    needs: str = ""  # the op of DeepSpeed's that it waits for (builds.py)
    exit_code: int | None = None
    max_rss_bytes: int = 0
    out: Printed = field(default_factory=Printed)
    err: Printed = field(default_factory=Printed)
    run_ns: int | None = None
    still_since_s: float = 0.0
    busy_s: float = 0.0  # when it was last seen at work

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "failed", "dead")

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

    def hear(self, header: dict[str, Any], body: bytes, now: float) -> None:
        """Take in one message of the rank; where it's of no known form, the rank has failed."""
        kind = header.get("is")
        if kind == "ready":
            self.state = "ready"
        elif kind == "finished":
            self.state, self.output = "finished", body
        elif kind == "needs" and self.state == "running":
            self.needs = str(header.get("op"))
        else:
            self.state, self.failure = "failed", _failure(header, now)

    def fail_in_output(self, error: Exception, now: float) -> None:
        """Its output could not be taken."""
        chain = [{"kind": type(error).__name__, "message": str(error), "frames": []}]
        self.state, self.failure = "failed", {"stage": "output", "at": now, "chain": chain}


def _failure(header: dict[str, Any], now: float) -> dict[str, Any]:
    """What a rank said of its exception, in just the form that explain.py relies on."""
    try:
        chain = [
            {
                "kind": str(cause["kind"]),
                "message": str(cause["message"]),
                "frames": [[str(name), int(line), str(fn)] for name, line, fn in cause["frames"]],
            }
            for cause in header["chain"]
        ]
        return {"stage": str(header["stage"]), "at": float(header["at"]), "chain": [*chain[:5]]}
    except (KeyError, TypeError, ValueError):
        chain = [{"kind": "ValueError", "message": "it sent an unknown message", "frames": []}]
        return {"stage": "run", "at": now, "chain": chain}
