"""The kernel's side of compiling DeepSpeed ops (builds.py): request, show progress, answer."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from shardlab.errors import LaunchError
from shardlab.ranks import builds, messages
from shardlab.ranks.client import Channel, memory_file
from shardlab.ranks.process import RankProcess
from shardlab.ranks.stream import Screen

USUALLY = "usually 40 to 90 s on two free cores"


@dataclass
class PendingBuild:
    report_fd: int
    waiting: list[RankProcess] = field(default_factory=list)
    since_s: float = field(default_factory=time.monotonic)


class PendingBuilds:
    """The ops being built for one run, whose clock is paused until they are built."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.builds: dict[str, PendingBuild] = {}  # by op
        self.earlier_s = 0.0
        self.since_s = 0.0

    @property
    def in_progress(self) -> bool:
        return bool(self.builds)

    def paused_s(self, now: float) -> float:
        return self.earlier_s + (now - self.since_s if self.builds else 0.0)

    def request(self, process: RankProcess, channel: Channel) -> None:
        op, process.requested_op = process.requested_op, ""
        if op not in self.builds:
            if not self.builds:
                self.since_s = time.monotonic()
            self.builds[op] = PendingBuild(memory_file("shardlab-build"))
            channel.build(op, self.builds[op].report_fd)
            self.screen.step(f"compiling DeepSpeed's {op} (once per machine): {USUALLY} …")
        self.builds[op].waiting.append(process)

    def show(self, now: float) -> None:
        self.screen.progress(
            f"compiling DeepSpeed's {' and '.join(self.builds)} (once per machine): "
            f"{now - self.since_s:.0f} s, {USUALLY}"
        )

    def handle(self, message: dict[str, Any]) -> None:
        """A message from the rank server about a builder: its pid, a failed start, or its exit.

        Raises LaunchError if the op could not be built.
        """
        if "pid" in message:
            return
        op = message["rank"]
        build = self.builds.pop(op)
        printed = os.pread(build.report_fd, 1 << 20, 0).decode(errors="replace")
        os.close(build.report_fd)
        if not self.builds:
            self.earlier_s += time.monotonic() - self.since_s
            self.screen.progress("")
        code = message.get("exit", 1)
        if code:
            raise LaunchError(*builds.failure_message(op, message.get("failed", printed), code))
        self.screen.step(f"compiled DeepSpeed's {op} in {time.monotonic() - build.since_s:.0f} s")
        for process in build.waiting:
            process.send(messages.pack({"is": "built"}))

    def close(self) -> None:
        for build in self.builds.values():
            os.close(build.report_fd)
        self.builds.clear()
