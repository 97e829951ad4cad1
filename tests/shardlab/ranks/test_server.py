"""What the rank server imports before it forks."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from shardlab.ranks import server


def test_a_module_that_cannot_be_imported_does_not_prevent_other_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    server.preload_ahead("no_such_module", "colorsys")
    assert "colorsys" in sys.modules


@pytest.mark.parametrize(("load", "waits_s"), [(0.0, [0.01, 0]), (99.0, [0.01, 0.02, 0])])
def test_preloading_waits_longer_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, load: float, waits_s: list[float]
) -> None:
    waited, done = list[float](), list[str]()
    monkeypatch.setattr(server, "IDLE_S", 0.01)
    monkeypatch.setattr(server, "IDLE_ON_A_BUSY_MACHINE_S", 0.02)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        served = server.Server(theirs, "torch")
        select = served.selector.select
        monkeypatch.setattr(served, "_watch_children", lambda: None)
        monkeypatch.setattr(
            served.selector, "select", lambda wait_s: (waited.append(wait_s), select(wait_s))[1]
        )
        served.idle_work = [
            ("training", lambda: done.append("first")),
            ("training", ours.close),  # ends the server
        ]
        served.serve(os.getppid())
    assert done == ["first"]
    assert waited[: len(waits_s)] == waits_s


def test_the_heap_is_collapsed_once_after_many_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    collapsed: list[int] = []
    served = server.Server(None, "torch")
    for fork in range(3 * server.FORKS_BEFORE_COLLAPSE):
        monkeypatch.setattr(server, "collapse_heap", lambda fork=fork: collapsed.append(fork))
        served.count_forks(1)
    assert collapsed == [server.FORKS_BEFORE_COLLAPSE - 1]
