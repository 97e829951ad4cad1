"""What the rank server imports before it forks."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from shardlab.ranks import server


def test_a_module_that_cannot_be_imported_does_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    server.preload_ahead("no_such_module", "colorsys")
    assert "colorsys" in sys.modules


def test_it_imports_ahead_only_while_the_machine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    loads = iter([99.0, 99.0, 0.0, 99.0, 0.0])

    def load() -> tuple[float, float, float]:
        done.append("busy" if (now := next(loads)) else "idle")
        return now, now, now

    monkeypatch.setattr(server, "IDLE_S", 0.01)
    monkeypatch.setattr(os, "getloadavg", load)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        served = server.Server(theirs, "torch")
        monkeypatch.setattr(served, "_watch_children", lambda: None)
        served.idle_work = [
            ("training", lambda: done.append("first")),
            ("training", ours.close),  # so that it ends
        ]
        served.serve(os.getppid())
    assert done == ["busy", "busy", "idle", "first", "busy", "idle"]


def test_forks_become_cheap_once_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    collapsed: list[int] = []
    served = server.Server(None, "torch")
    for fork in range(3 * server.FORKS_BEFORE_COLLAPSE):
        monkeypatch.setattr(server, "collapse_heap", lambda fork=fork: collapsed.append(fork))
        served.count_forks(1)
    assert collapsed == [server.FORKS_BEFORE_COLLAPSE - 1]
