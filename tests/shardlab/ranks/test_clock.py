"""A run's time on a shared machine."""

from __future__ import annotations

import os

import pytest

from shardlab.linux import thread
from shardlab.ranks import clock
from shardlab.ranks.clock import Clock
from shardlab.ranks.trust import Trust


class Machine:
    """What Linux reports about two ranks, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited_s: dict[int, dict[str, float]] = {1: {"1": 0.0}, 2: {"2": 0.0}}
        self.cpu_s = 0.0
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        monkeypatch.setattr(thread, "parent", lambda pid: 0)
        monkeypatch.setattr(thread, "descendants", lambda pid: {1, 2})
        monkeypatch.setattr(thread, "cpu_s", lambda pid: (self.cpu_s / 2 if pid else 0.0, 0.0))
        monkeypatch.setattr(
            thread,
            "waited_ns_by_thread",
            lambda pid: {number: int(s * 1e9) for number, s in self.waited_s.get(pid, {}).items()},
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def started_clock(trust: Trust) -> Clock:
    running = Clock(timeout_s=20, trust=trust)
    running.start(100.0, [1, 2])
    running.update(100.6)
    return running


def test_time_of_trusted_code_is_wall_time(machine: Machine) -> None:
    own = started_clock(Trust.OWN)
    machine.waited_s[1]["1"] = 15.0
    own.update(119.0)
    assert not own.is_over(119.0)
    assert own.is_over(121.0)
    assert not own.is_over(121.0, paused_s=5.0)
    assert not own.is_machine_too_busy(1000.0)


def test_the_longest_wait_of_any_thread_does_not_count(machine: Machine) -> None:
    machine.waited_s[2]["2"] = 5.0  # before the run began
    untrusted = started_clock(Trust.UNTRUSTED)
    machine.waited_s[1]["1"] = 3.0
    machine.waited_s[2] = {"2": 9.0, "7": 8.0}
    untrusted.update(128.0)
    assert untrusted.waited_s == pytest.approx(8.0)
    assert not untrusted.is_over(127.0)
    assert untrusted.is_over(129.0)
    machine.waited_s = {}  # both threads have ended, but their waits are remembered
    untrusted.update(129.0)
    assert untrusted.waited_s == pytest.approx(8.0)


def test_processor_time_limits_a_run_that_makes_its_own_threads_wait(machine: Machine) -> None:
    untrusted = started_clock(Trust.UNTRUSTED)
    machine.waited_s[1]["1"] = 100.0
    machine.cpu_s = 39.0  # two ranks may use 20 s each
    untrusted.update(121.0)
    assert not untrusted.is_over(121.0)
    machine.cpu_s = 41.0
    untrusted.update(121.0 + 1.1 * clock.CPU_CHECK_S)
    assert untrusted.is_over(123.0)


def test_after_ten_times_the_limit_the_machine_is_too_busy(machine: Machine) -> None:
    untrusted = started_clock(Trust.UNTRUSTED)
    machine.waited_s[1]["1"] = 199.0
    untrusted.update(299.0)
    assert not untrusted.is_machine_too_busy(299.0)
    assert untrusted.is_machine_too_busy(301.0)


def test_without_data_from_linux_wall_time_counts(machine: Machine) -> None:
    machine.waited_s = {}
    untrusted = started_clock(Trust.UNTRUSTED)
    untrusted.update(121.0)
    assert untrusted.is_over(121.0)


def test_this_process_can_be_inspected() -> None:
    own = os.getpid()
    assert (thread.run_ns(own) or 0) > 0
    assert thread.waited_ns(own) is not None
    assert str(own) in thread.waited_ns_by_thread(own)
    assert thread.is_busy(own)
    assert thread.parent(own) == os.getppid()
    assert sum(thread.cpu_s(own)) > 0
    assert own in thread.descendants(os.getppid())
    assert not thread.has_ended(own)
    for gone in (None, 2**30):
        assert thread.run_ns(gone) is thread.waited_ns(gone) is thread.parent(gone) is None
        assert thread.waited_ns_by_thread(gone) == {}
        assert thread.descendants(gone) == set()
        assert not thread.is_busy(gone)
        assert thread.has_ended(gone)
