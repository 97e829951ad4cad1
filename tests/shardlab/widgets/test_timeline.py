from dataclasses import replace
from xml.etree import ElementTree

import pytest

from shardlab.display.palette import ERROR, WAIT
from shardlab.errors import DeadlockError, LaunchError, RankError, Waiting
from shardlab.run import MeasuredBlock
from shardlab.widgets import timeline
from shardlab.widgets.time_axis import tick_labels, time_ticks
from shardlab.widgets.timeline_layout import assign_lanes
from shardlab.widgets.waiting import WaitEdge, waits_of
from tests.shardlab.widgets.synthetic import (
    collective,
    dense,
    make_run,
    on_nodes,
    p2p,
    ring_all_reduce,
)


def hung(n: int = 4) -> DeadlockError:
    """All ranks receive from their left neighbor and none sends."""
    calls = [
        p2p("recv", r, (r - 1) % n, 8, start_s=0.001, end_s=None, world_size=n) for r in range(n)
    ]
    table = tuple(Waiting(r, "waiting", "recv", ((r - 1) % n,), "cell 5, line 3") for r in range(n))
    error = DeadlockError("deadlock: all wait", table=table, cycle=(0, *range(n - 1, 0, -1)))
    error.run = make_run(n, calls)
    return error


def test_concurrent_sends_and_receives_have_separate_lanes() -> None:
    lane_of, lanes = assign_lanes(ring_all_reduce(4).calls)
    assert lanes == 2
    assert {(call.op, lane) for call, lane in lane_of.items()} == {("send", 0), ("recv", 1)}


def test_calls_one_after_the_other_share_a_lane() -> None:
    calls = [
        collective("all_reduce", r, 4, start_s=k, end_s=k + 0.5) for r in range(4) for k in (0, 1)
    ]
    assert assign_lanes(calls)[1] == 1


def test_times_begin_at_0() -> None:
    calls = [collective("all_reduce", r, 2, start_s=5 + r, end_s=7) for r in range(2)]
    widget = timeline(make_run(2, calls))
    assert widget.scene["start_s"] == 0
    assert [call.start_s for call in widget._calls] == [0, 1]
    assert ">0.0 s<" in widget.static_svg()


def test_each_pass_of_a_measured_block_has_its_own_line_and_a_name_where_it_fits() -> None:
    blocks = tuple(
        MeasuredBlock(label, rank, start, start + length, (0, 0))
        for rank in range(2)
        for label, length, starts in (("step", 4.0, (0, 5)), ("loss", 0.1, (3, 8)))
        for start in starts
    )
    calls = [collective("all_reduce", r, 2, start_s=9, end_s=10) for r in range(2)]
    widget = timeline(make_run(2, calls, blocks=blocks))
    drawn = [mark for mark in widget._layout.bands(blocks) if getattr(mark, "height", 0) == 3]
    assert len(drawn) == 4
    svg = widget.static_svg()
    assert [svg.count(f">{name}<") for name in ("step", "loss")] == [2, 1]
    assert {(rank, label, which) for rank, label, *_, which in widget.scene["blocks"]} == {
        (rank, label, which) for rank in (0, 1) for label in ("step", "loss") for which in (0, 1)
    }


def test_bars_start_and_end_with_their_calls() -> None:
    widget = timeline(ring_all_reduce(4))
    scene, layout = widget.scene, widget._layout
    call = widget._calls[0]
    left, top, width, _ = layout.box(call)
    assert left == pytest.approx(layout.x(call.start_s))
    assert left + width == pytest.approx(layout.x(call.end_s))
    assert scene["plot"]["top"] <= top < scene["plot"]["top"] + scene["row"]


def test_a_call_that_never_ended_reaches_the_right_edge() -> None:
    widget = timeline(hung())
    left, _, width, _ = widget._layout.box(widget._calls[0])
    assert left + width == pytest.approx(widget.scene["plot"]["right"])
    assert "url(#shardlab-hatch" in widget.static_svg()


def test_a_hang_is_drawn_as_arrows_between_waiting_ranks() -> None:
    widget = timeline(hung())
    assert widget.scene["headline"] == "deadlock: all wait"
    assert sorted(widget.scene["waits"]) == [[0, 3, True], [1, 0, True], [2, 1, True], [3, 2, True]]
    arrows = [mark for mark in widget.scene["arrows"] if mark.get("stroke") == ERROR]
    assert len(arrows) == 4


def test_waits_outside_the_cycle_are_gray() -> None:
    error = hung(3)
    error.table = (*error.table, Waiting(3, "waiting", "recv", (0,), ""))
    error.run = make_run(4, error.run.calls)
    waits = timeline(error).scene["waits"]
    assert [3, 0, False] in waits
    strokes = [mark["stroke"] for mark in timeline(error).scene["arrows"] if "stroke" in mark]
    assert strokes == [WAIT, ERROR, ERROR, ERROR]


def test_without_a_table_waits_come_from_pending_calls() -> None:
    calls = [
        p2p("recv", 0, 1, 8, start_s=0, end_s=None),
        collective("all_reduce", 1, 3, start_s=0, end_s=None),
        collective("all_reduce", 2, 3, start_s=0, end_s=None, seq=7),  # another all_reduce
    ]
    assert waits_of(None, calls) == [
        WaitEdge(0, 1, False),
        WaitEdge(1, 0, False),
        WaitEdge(1, 2, False),
        WaitEdge(2, 0, False),
        WaitEdge(2, 1, False),
    ]


def test_a_rank_that_finished_is_labeled() -> None:
    error = DeadlockError(
        "rank 1 never entered",
        table=(Waiting(0, "waiting", "all_reduce", (1,), ""), Waiting(1, "finished", "", (), "")),
    )
    error.run = make_run(2, [collective("all_reduce", 0, 2, start_s=0, end_s=None)])
    texts = [mark.get("text") for mark in timeline(error).scene["background"]]
    assert "finished" in texts


def test_an_error_without_a_run_raises() -> None:
    with pytest.raises(ValueError, match="no rank started"):
        timeline(LaunchError("no memory"))


def test_other_errors_show_their_headline() -> None:
    error = RankError("rank 2 failed", rank=2, kind="ValueError")
    error.run = ring_all_reduce(4)
    assert "rank 2 failed" in timeline(error).static_svg()


def test_source_lines_are_escaped() -> None:
    error = hung()
    error.headline = "<img src=x onerror=alert(1)>"
    error.run.calls = [replace(call, source="<b>cell</b>") for call in error.run.calls]
    svg = timeline(error).static_svg()
    ElementTree.fromstring(svg)
    assert "<img" not in svg
    assert "<b>" not in svg


@pytest.mark.parametrize("run", [ring_all_reduce(4), ring_all_reduce(64, 10), dense(3)])
def test_the_static_picture_is_well_formed_and_not_huge(run) -> None:
    svg = timeline(run).static_svg()
    ElementTree.fromstring(svg)
    assert len(svg) < 600_000


def test_ticks_are_round() -> None:
    assert time_ticks(0.0, 0.0061, 6) == pytest.approx([0, 0.002, 0.004, 0.006])
    assert tick_labels([0.0, 0.002], 0.0061) == ["0 ms", "2 ms"]
    assert tick_labels([0.0005, 0.001], 0.0061) == ["0.5 ms", "1.0 ms"]


def test_a_call_waits_until_the_other_end_begins_and_then_transfers() -> None:
    send = p2p("send", 0, 1, 8, start_s=0.001, end_s=0.009)
    receive = p2p("recv", 1, 0, 8, start_s=0.006, end_s=0.010)
    widget = timeline(make_run(2, [send, receive]))
    moved = {call[0]: call[-2] - call[5] for call in widget.scene["calls"]}
    assert moved == {0: pytest.approx(0.005), 1: 0}
    assert [call[-1] for call in widget.scene["calls"]] == [1, 0]
    assert 'opacity="0.35"' in widget.static_svg()


def test_a_message_that_left_before_its_receive_began_did_not_wait() -> None:
    send = p2p("send", 0, 1, 8, start_s=0.001, end_s=0.002)
    receive = p2p("recv", 1, 0, 8, start_s=0.006, end_s=0.007)
    calls = timeline(make_run(2, [send, receive])).scene["calls"]
    assert [call[-2] == call[5] for call in calls] == [True, True]


def test_a_collective_waits_for_the_rank_that_comes_last() -> None:
    calls = [
        collective("all_reduce", r, 3, start_s=s, end_s=0.010)
        for r, s in enumerate((1e-3, 7e-3, 2e-3))
    ]
    rows = timeline(make_run(3, calls)).scene["calls"]
    assert [row[-1] for row in rows] == [1, 1, 1]
    assert [row[-2] - row[5] for row in rows] == pytest.approx([6e-3, 0, 5e-3])


def test_nodes_have_names_and_rules_between_them() -> None:
    error = hung()
    error.run = on_nodes(error.run, 2)
    widget = timeline(error)
    scene = widget.scene
    names = [mark["text"] for mark in scene["background"] if mark["kind"] == "text"]
    assert {"node 0", "node 1"} <= {*names}
    border = scene["plot"]["top"] + 2 * scene["row"]
    rules = [m for m in scene["background"] if m["kind"] == "path" and m["stroke"] == "text"]
    assert [rule["d"].count(f" {border:g}") for rule in rules] == [2]
    assert "rank 2 on node 1 waits for rank 1 on node 0" in widget.alternative()
    assert timeline(on_nodes(ring_all_reduce(4), 1)).scene["nodes"] == []
