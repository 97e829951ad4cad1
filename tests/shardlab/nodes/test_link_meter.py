"""When the links are read, and which readings are kept."""

from __future__ import annotations

import itertools

import pytest

from shardlab.nodes import link_meter
from shardlab.nodes.link_meter import LinkMeter


class Cluster:
    """A node that sends 100 bytes between readings, and another one that receives them."""

    def __init__(self) -> None:
        self.counts = itertools.count(7)

    def link_bytes(self) -> list[tuple[int, int]]:
        sent = 100 * next(self.counts)
        return [(sent, 0), (0, sent)]


class Clock:
    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_it_is_read_when_due() -> None:
    clock = Clock()
    meter = LinkMeter(Cluster(), 4.0, clock)  # type: ignore[arg-type]
    for wait_s in (0.03, 0.001, 0.03):
        clock.now_s += wait_s
        meter.read_if_due()
    links = meter.links(1e6)
    assert links.time_s == pytest.approx([1.0, 1.03, 1.061])
    assert links.sent_bytes.tolist() == [[0, 0], [100, 0], [200, 0]]
    assert links.received_bytes.tolist() == [[0, 0], [0, 100], [0, 200]]
    assert links.sent_bits_per_s[:, 0] == pytest.approx([800 / 0.03, 800 / 0.031])
    sent, received = links.utilization(1.015, 1.03)
    assert sent == pytest.approx([50 * 8 / 0.015 / 1e6, 0])
    assert received == pytest.approx([0, 50 * 8 / 0.015 / 1e6])


def test_a_reading_during_a_pause_is_repeated() -> None:
    clock, pauses = Clock(), [0.0, 0.0, 0.0, 0.3, 0.0, 0.0]

    def paused() -> float:
        clock.now_s += pauses.pop(0)
        return clock.now_s

    meter = LinkMeter(Cluster(), 5.0, paused)  # type: ignore[arg-type]
    meter.read()
    assert meter.links(None).time_s == pytest.approx([0.0, 0.3])
    assert meter.links(None).sent_bytes[:, 0].tolist() == [0, 200]


def test_the_last_reading_replaces_one_just_before_it() -> None:
    clock = Clock()
    meter = LinkMeter(Cluster(), 5.0, clock)  # type: ignore[arg-type]
    for wait_s in (0.03, 0.001):
        clock.now_s += wait_s
        meter.read()
    assert meter.links(None).time_s == pytest.approx([0.0, 0.031])
    assert meter.links(None).sent_bytes[:, 0].tolist() == [0, 200]


def test_long_runs_are_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_meter, "MAX_READINGS", 8)
    clock = Clock()
    meter = LinkMeter(Cluster(), 5.0, clock)  # type: ignore[arg-type]
    for _ in range(1000):
        clock.now_s += link_meter.READ_S * 1.01
        meter.read_if_due()
    links = meter.links(None)
    assert 4 <= len(links.time_s) <= 8
    assert links.time_s[0] == 0
    assert links.time_s[-1] > 10
    meter.read()
    assert meter.links(None).time_s[-1] == pytest.approx(clock.now_s - 5)
