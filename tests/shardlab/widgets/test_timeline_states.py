"""The timeline's lane of states and its critical path."""

from __future__ import annotations

import time
from xml.etree import ElementTree

import pytest

from shardlab.display.palette import STATES, WAIT
from shardlab.recorded_runs import bottlenecks
from shardlab.run import MeasuredBlock, Run, Span, StepTime, critical_path
from shardlab.widgets import timeline
from shardlab.widgets.timeline_states import LOOKS, TICK_S, merged
from tests.shardlab.run.test_step_time import blocking, run_of, step
from tests.shardlab.widgets.synthetic import (
    dense,
    make_run,
    many_spans,
    on_nodes,
    ring_all_reduce,
    traced,
)
from tests.shardlab.widgets.test_timeline import hung

NOT_THERE = {"state": 0, "state_height": 0, "states": None}


@pytest.mark.parametrize("run", [ring_all_reduce(4), dense(3), hung()])
def test_a_run_without_spans_and_loader_has_no_lane(run: Run) -> None:
    scene = timeline(run).scene
    assert {key: scene[key] for key in NOT_THERE} == NOT_THERE
    assert scene["height"] == scene["plot"]["bottom"] + 48


def test_every_run_has_a_lane_if_asked() -> None:
    scene = timeline(ring_all_reduce(4), by="records").scene
    assert scene["states"]["source"] == "states by records of calls"
    assert scene["height"] == scene["plot"]["bottom"] + 48 + 18
    with pytest.raises(ValueError, match=r"with profile\(\)"):
        timeline(ring_all_reduce(4), by="profiler")


def test_a_lane_comes_from_the_profiler_or_else_from_records() -> None:
    run = traced()
    assert timeline(run).scene["states"]["source"] == "states by torch.profiler"
    run.spans = []
    assert timeline(run).scene["states"]["source"] == "states by records of calls"


def test_a_rank_that_never_goes_on_waits_until_the_right_edge() -> None:
    calls = [blocking("all_reduce", 0, 2, None), blocking("all_gather", 1, 10, None)]
    widget = timeline(run_of(calls, *step(1)), by="records")
    lanes = [unpacked(packed) for packed in widget.scene["states"]["ranks"]]
    assert lanes[0] == [("waiting", pytest.approx(2), pytest.approx(18))]
    assert lanes[1][1] == ("waiting", pytest.approx(10), pytest.approx(18))
    assert widget.scene["end_s"] == pytest.approx(18)
    assert "never ended" in widget.summary()


def unpacked(packed: list) -> list[tuple[str, float, float]]:  # type: ignore[type-arg]
    at_s, lengths, codes = packed
    found = []
    for length, code in zip(lengths, codes, strict=True):
        found.append(([*LOOKS][int(code)], at_s, at_s + TICK_S * length))
        at_s += TICK_S * length
    return found


def test_the_browser_gets_each_ranks_states() -> None:
    widget = timeline(traced())
    for packed, states in zip(widget.scene["states"]["ranks"], widget._lane.states, strict=True):
        for (name, start_s, end_s), state in zip(unpacked(packed), states, strict=True):
            assert name == state.name
            assert (start_s, end_s) == pytest.approx((state.start_s, state.end_s), abs=1e-6)


def test_lanes_are_above_the_calls_and_below_the_rank_before() -> None:
    for run in (traced(), traced(64, 1), many_calls_at_once()):
        widget = timeline(run)
        scene, layout = widget.scene, widget._layout
        _, top, _, height = layout.box(widget._calls[0])
        assert scene["plot"]["top"] < layout.top_of_states(0)
        assert layout.top_of_states(0) + layout.state_height <= top
        assert top + height <= scene["plot"]["top"] + scene["row"]
        assert layout.state_height >= (3 if run.world_size > 4 else 13)


def many_calls_at_once() -> Run:
    calls = [blocking("all_reduce", rank, 2, 8) for rank in (0, 1) for _ in range(4)]
    return run_of(calls, *step(2), spans=[Span(0, "aten::mm", "compute", 0.0, 9.0)])


def test_a_label_chooses_the_view_the_sums_and_the_path() -> None:
    run = two_steps()
    everything, second = timeline(run), timeline(run, label="second")
    assert everything.scene["view"] == (0, everything.scene["end_s"])
    assert second.scene["view"] == pytest.approx((19.9, 30.1))  # 1 % of room on both sides
    assert second.scene["end_s"] == everything.scene["end_s"]
    assert second.scene["states"]["ranks"] == everything.scene["states"]["ranks"]
    path = critical_path(run, "second", by="profiler")
    assert sum(end - start for _, start, end in second.scene["states"]["path"]) == pytest.approx(
        StepTime.of(path).total_s
    )
    assert "in second: rank 0: compute 50 %" in second.alternative()
    assert "Critical path of 10.0 s in second" in second.alternative()
    assert second.summary().endswith(", shown: second")
    with pytest.raises(KeyError, match="no measured block is labeled 'third'"):
        timeline(run, label="third")


def test_the_static_picture_shows_the_passes_of_the_label() -> None:
    layout = timeline(two_steps(), label="second")._layout
    width = layout.right - layout.left
    assert layout.x(20) - layout.left == pytest.approx(layout.right - layout.x(30))
    assert layout.x(30) - layout.x(20) > 0.97 * width
    assert layout.x(3) == layout.left
    svg = timeline(two_steps(), label="second").static_svg()
    ElementTree.fromstring(svg)
    assert ">second<" in svg
    assert ">first<" not in svg
    assert ">20 s<" in svg
    assert ">0 s<" not in svg


def two_steps() -> Run:
    """Two ranks; the first step is from 0 to 10 s, the second from 20 to 30."""
    calls, spans, blocks = [], [], []
    for rank in (0, 1):
        for label, at in (("first", 0.0), ("second", 20.0)):
            blocks.append(MeasuredBlock(label, rank, at, at + 10, (0, 0)))
            calls.append(blocking("all_reduce", rank, at + 5, at + 10))
            spans.append(Span(rank, "aten::mm", "compute", at, at + 5))
            spans.append(Span(rank, "gloo:all_reduce", "communication", at + 5, at + 10))
    return run_of(calls, *blocks, spans=spans)


def test_recorded_steps_say_that_they_slept() -> None:
    widget = timeline(bottlenecks.as_run(bottlenecks.load()["A"]))
    assert "torch.profiler" not in widget.alternative()
    assert "states by measured blocks; compute and loader are sleeps" in widget.summary()


def test_the_static_picture_has_all_states_and_their_legend() -> None:
    svg = timeline(traced()).static_svg()
    ElementTree.fromstring(svg)
    for name in LOOKS:  # "other", too: where the lane is empty
        assert f">{name}<" in svg
    for color in (*STATES.values(), WAIT, f"url(#shardlab-hatch-{STATES['compute'].lstrip('#')})"):
        assert svg.count(f'"{color}"') >= 2
    # On nodes, rank names need room: the legend must still fit.
    layout = timeline(on_nodes(traced(), 2))._layout
    words = layout.legend_of_states[0] + sum(30 + 6.4 * len(name) for name in LOOKS)
    assert words < 800


def test_the_alternative_names_shares_and_the_critical_path() -> None:
    words = timeline(on_nodes(traced(), 2)).alternative()
    assert "States by torch.profiler: rank 0 on node 0: compute 2" in words
    assert "Critical path of 35.0 ms, changes rank once: rank 3 on node 1 " in words
    assert timeline(make_run(2, []), by="records").scene["states"]["path_words"].startswith("No ")


def test_the_path_has_one_stretch_for_each_stay_on_a_rank() -> None:
    path = timeline(traced()).scene["states"]["path"]
    assert [rank for rank, *_ in path] == [3, 0]
    assert path[0][2] == path[1][1]


def test_states_narrower_than_a_pixel_become_one_per_pixel() -> None:
    thin = [(k / 10, (k + 1) / 10, "waiting" if k % 10 < 3 else "compute") for k in range(40)]
    assert [*merged(thin)] == [(0, 4, "compute")]
    assert [*merged([(0, 0.4, "compute"), (0.4, 5, "loader"), (5, 6, "loader")])] == [
        (0, 0.4, "compute"),
        (0.4, 6, "loader"),
    ]
    assert [*merged([])] == []


def test_times_begin_with_the_first_span() -> None:
    spans = [Span(0, "aten::mm", "compute", 7.0, 8.0)]
    calls = [blocking("all_reduce", rank, 9, 10) for rank in (0, 1)]
    widget = timeline(run_of(calls, spans=spans))
    assert widget.scene["states"]["ranks"][0][0] == 0
    [call, _] = widget._calls
    assert (call.start_s, call.wait_start_s, call.end_s) == (2, 2, 3)


def test_64_ranks_of_2000_spans_fit_into_a_notebook() -> None:
    """The time, which depends on the machine's load, is only reported."""
    began_s = time.perf_counter()
    widget = timeline(many_spans(64, 2000))
    made_s = time.perf_counter()
    svg = widget.static_svg()
    print(f"\nmade in {made_s - began_s:.1f} s, drawn in {time.perf_counter() - made_s:.1f} s")
    assert len(svg) < 3_000_000
    assert sum(len(codes) for *_, codes in widget.scene["states"]["ranks"]) > 128_000
