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
    exit_code: int | None = None
    max_rss_bytes: int = 0
    out: Printed = field(default_factory=Printed)
    err: Printed = field(default_factory=Printed)
    run_ns: int | None = None
    still_since_s: float = 0.0

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

    def failed_output(self, error: Exception, now: float) -> dict[str, Any]:
        """The failure of a rank whose output could not be taken."""
        chain = [{"kind": type(error).__name__, "message": str(error), "frames": []}]
        return {"is": "failed", "stage": "output", "at": now, "chain": chain}
