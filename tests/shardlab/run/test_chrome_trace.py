"""A saved trace holds all calls, in the form that readers of the Trace Event Format expect."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shardlab.run import MeasuredBlock, Run, chrome_trace
from tests.shardlab.widgets.synthetic import collective, make_run, p2p, ring_all_reduce, traced

ROUNDING_US = 2e-3


def saved(run: Run, path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run.save_trace(path).read_text())["traceEvents"]
    return found


def of_kind(events: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] in kinds]


def calls_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [event for event in of_kind(events, "X") if event["cat"] == "calls"]
    return sorted(found, key=lambda event: event["ts"])


@pytest.fixture
def ring(tmp_path: Path) -> list[dict[str, Any]]:
    return saved(ring_all_reduce(4), tmp_path / "trace.json")


def test_every_call_is_a_slice_of_its_rank(ring: list[dict[str, Any]]) -> None:
    calls = sorted(ring_all_reduce(4).calls, key=lambda call: call.start_s)
    first_s = calls[0].start_s
    slices = calls_of(ring)
    assert len(slices) == len(calls)
    for call, event in zip(calls, slices, strict=True):
        assert event["ts"] == pytest.approx(1e6 * (call.start_s - first_s), abs=ROUNDING_US)
    assert {(event["pid"], event["name"]) for event in slices} == {
        (call.rank, call.op) for call in calls
    }
    assert (
        slices[0]["args"] | {"bytes": calls[0].bytes, "line": calls[0].source} == slices[0]["args"]
    )


def test_slices_of_a_thread_do_not_overlap(ring: list[dict[str, Any]]) -> None:
    """Readers take a slice that begins within another as a part of it."""
    by_thread: dict[int, list[dict[str, Any]]] = {}
    for event in calls_of(ring):
        by_thread.setdefault(event["tid"], []).append(event)
    assert len(by_thread) == 8  # each rank sends while it receives
    for slices in by_thread.values():
        assert len({event["pid"] for event in slices}) == 1
        for one, after in pairwise(slices):
            assert one["ts"] + one["dur"] <= after["ts"] + ROUNDING_US


def test_arrows_lead_from_each_send_to_its_receive(ring: list[dict[str, Any]]) -> None:
    starts = {event["id"]: event for event in of_kind(ring, "s")}
    ends = {event["id"]: event for event in of_kind(ring, "f")}
    slices = calls_of(ring)
    assert len(starts) == sum(event["name"] == "send" for event in slices)
    assert starts.keys() == ends.keys()

    def around(event: dict[str, Any]) -> dict[str, Any]:
        [found] = [
            each
            for each in slices
            if each["tid"] == event["tid"]
            and each["ts"] <= event["ts"] <= each["ts"] + each["dur"] + ROUNDING_US
        ][-1:]
        return found

    for number, start in starts.items():
        send, receive = around(start), around(ends[number])
        assert (send["name"], receive["name"]) == ("send", "recv")
        assert (send["args"]["peer"], receive["args"]["peer"]) == (receive["pid"], send["pid"])
        assert start["ts"] <= ends[number]["ts"]


def test_a_call_that_never_ended_has_no_end(tmp_path: Path) -> None:
    calls = [
        collective("all_reduce", 0, 2, start_s=1.0, end_s=None),
        p2p("recv", 1, 0, 8, start_s=1.5, end_s=None),
    ]
    events = saved(make_run(2, calls), tmp_path / "hang.json")
    assert [(event["name"], event["ts"]) for event in of_kind(events, "B")] == [
        ("all_reduce", 0.0),
        ("recv", 5e5),
    ]
    assert not of_kind(events, "X", "s", "f", "E")


def test_blocks_have_a_thread_of_their_own_and_names_say_the_node(tmp_path: Path) -> None:
    blocks = (MeasuredBlock("step", 1, 2.0, 3.0, (10, 0)),)
    run = make_run(2, [collective("all_reduce", 1, 2, start_s=2.2, end_s=2.4)], blocks=blocks)
    run.traffic = replace(run.traffic, nodes=(0, 1))
    events = saved(run, tmp_path / "trace.json")
    step, call = of_kind(events, "X")
    assert (step["name"], step["ts"], step["dur"]) == ("step", 0.0, 1e6)
    assert step["tid"] != call["tid"]
    names = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    assert names == {0: "rank 0 (node 0)", 1: "rank 1 (node 1)"}


def test_states_are_on_a_thread_of_their_own(tmp_path: Path) -> None:
    run = traced()
    events = saved(run, tmp_path / "trace.json")
    states = [event for event in of_kind(events, "X") if event["cat"] == "states"]
    assert len({event["tid"] for event in states}) == 4
    assert len({event["tid"] for event in of_kind(events, "X")} - {e["tid"] for e in states}) == 16
    of_rank_0 = run.states(by="profiler")[0]
    expected = sum(s.end_s - s.start_s for s in of_rank_0 if s.name != "other")
    assert sum(e["dur"] for e in states if e["pid"] == 0) == pytest.approx(1e6 * expected, rel=1e-6)
    late = next(event for event in states if event["name"] == "waiting")
    assert late["args"] == {"call": "all_reduce", "line": "cell 6, line 2"}


def test_a_run_without_calls_is_a_trace_of_names(tmp_path: Path) -> None:
    assert len(of_kind(saved(make_run(3, []), tmp_path / "empty.json"), "M")) == 6


def test_a_full_disk_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text("what was there")
    write = Path.write_text

    def half(self: Path, text: str) -> int:
        write(self, text[: len(text) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left"):
        chrome_trace.save({"traceEvents": []}, path)
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]
