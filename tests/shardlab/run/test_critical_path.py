"""The chain of work that decided when a run ended, on runs made by hand and on real ranks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from shardlab import launch, measure
from shardlab.run import Call, Span, State, StepTime, critical_path
from shardlab.run.critical_path import hops
from tests.shardlab.run.test_step_time import block, blocking, run_of, started, step
from tests.shardlab.widgets.synthetic import make_run, p2p, ring_all_reduce


def shape(path: Iterable[State]) -> list[tuple[int, str, float, float]]:
    return [(state.rank, state.name, state.start_s, state.end_s) for state in path]


def test_it_leads_over_the_rank_that_was_last_to_begin() -> None:
    calls = [
        *(blocking("all_reduce", 0, 2, 5), blocking("all_reduce", 1, 4, 5)),
        *(blocking("all_reduce", 0, 8, 9, seq=1), blocking("all_reduce", 1, 6, 9, seq=1)),
    ]
    run = run_of(calls, *step(0, 1), block("loader", 1, 1, 3))
    path = critical_path(run)
    assert shape(path) == [
        *((1, "compute", 0, 1), (1, "loader", 1, 3), (1, "compute", 3, 4)),
        *((0, "exposed", 4, 5), (0, "compute", 5, 8), (0, "exposed", 8, 9), (0, "compute", 9, 10)),
    ]
    assert [state.call and state.call.seq for state in path] == [None] * 3 + [0, None, 1, None]
    assert hops(path) == [(1, 0, 4)]
    assert StepTime.of(path) == StepTime(compute_s=6, exposed_s=2, loader_s=2)


def test_a_communication_that_ended_before_it_was_waited_for_decides_nothing() -> None:
    tiny_s = 5e-5
    calls = [started(0, 1, 6, 6 + tiny_s), started(1, 3, 6, 6 + tiny_s)]
    path = critical_path(run_of(calls, *step(0)))
    assert {state.rank for state in path} == {0}
    assert StepTime.of(path).total_s == pytest.approx(10)


def test_a_communication_that_is_waited_for_is_followed_to_its_beginning() -> None:
    """What rank 0 computed until 6 did not matter: the communication ended at 8."""
    calls = [started(0, 1, 6, 8), started(1, 3, None, 8)]
    path = critical_path(run_of(calls, *step(0), block("step", 1, 0, 9)))
    assert shape(path) == [
        *((1, "compute", 0, 3), (0, "overlapped", 3, 6), (0, "exposed", 6, 8)),
        (0, "compute", 8, 10),
    ]
    assert [state.call is not None for state in path] == [False, True, True, False]


def test_a_receive_leads_to_its_sender() -> None:
    calls = [
        replace(p2p("recv", 0, 1, 8, start_s=1, end_s=6), wait_start_s=1.0),
        replace(p2p("send", 1, 0, 8, start_s=5, end_s=6), wait_start_s=5.0),
    ]
    path = critical_path(run_of(calls, *step(0), block("step", 1, 0, 7)))
    assert shape(path) == [(1, "compute", 0, 5), (0, "exposed", 5, 6), (0, "compute", 6, 10)]


def test_a_label_cuts_it_to_its_passes() -> None:
    calls = [blocking("all_reduce", 0, 2, 5), blocking("all_reduce", 1, 4, 5)]
    run = run_of(calls, *(block("step", rank, 3, 6) for rank in (0, 1)), block("data", 0, 0, 9))
    assert shape(critical_path(run, "step")) == [
        *((1, "compute", 3, 4), (0, "exposed", 4, 5), (0, "compute", 5, 6)),
    ]


def test_by_the_profiler_it_sees_a_wait_in_cpp() -> None:
    calls = [started(0, 1, None, 9), started(1, 3, None, 9)]
    spans = [
        *(Span(0, "aten::mm", "compute", 0, 2), Span(0, "gloo:all_reduce", "communication", 1, 9)),
        *(Span(1, "aten::mm", "compute", 0, 4), Span(1, "gloo:all_reduce", "communication", 3, 9)),
        Span(0, "aten::add_", "compute", 9, 10),
    ]
    path = critical_path(run_of(calls, spans=spans), by="profiler")
    assert shape(path) == [
        *((1, "compute", 0, 3), (0, "exposed", 3, 9), (0, "compute", 9, 10)),
    ]


def test_of_ranks_that_began_at_the_same_time_it_stays_on_its_own() -> None:
    calls = [blocking("all_reduce", rank, 2, 4) for rank in (0, 1)]
    assert {state.rank for state in critical_path(run_of(calls, *step(0, 1)))} == {0}


def test_a_communication_may_begin_while_its_rank_stands_still_for_another() -> None:
    """gloo begins it in a thread of its own: what held rank 1 up at 5 is what came before."""
    calls = [
        *(started(0, 1.5, None, 8), started(1, 1, None, 7)),
        *(started(0, 2, None, 9, seq=1), started(1, 2, None, 9, seq=1)),
    ]
    of_ranks = {0: [(1.5, 5), (2, 9)], 1: [(1, 7), (5, 9)]}
    spans = [Span(rank, "aten::mm", "compute", 0, 3) for rank in (0, 1)]
    spans += [
        Span(rank, "gloo:all_reduce", "communication", *times)
        for rank, both in of_ranks.items()
        for times in both
    ]
    path = critical_path(
        run_of(calls, spans=[*spans, Span(0, "aten::mm", "compute", 9, 10)]), by="profiler"
    )
    assert all(one.end_s == after.start_s for one, after in pairwise(path))
    assert [(path[0].start_s, path[-1].end_s)] == [(0, 10)]
    assert hops(path) == [(0, 1, 1.5), (1, 0, 5)]
    assert [state.end_s for state in path if state.rank == 1 and state.name == "exposed"] == [5]


def test_a_hang_stays_on_the_rank_that_waits() -> None:
    calls = [blocking("all_reduce", 0, 2, None)]
    path = critical_path(run_of(calls, block("step", 1, 0, 9), block("data", 0, 0, 1)))
    assert shape(path) == [(0, "compute", 0, 2), (0, "waiting", 2, 9)]


def test_a_run_without_records_has_none() -> None:
    assert critical_path(make_run(2, [])) == []


def waiting(calls: Iterable[Call]) -> list[Call]:
    return [replace(call, wait_start_s=call.start_s) for call in calls if call.op == "recv"]


@pytest.mark.parametrize("n", [2, 4, 16])
def test_in_a_ring_it_has_no_gaps(n: int) -> None:
    run = ring_all_reduce(n)
    run.calls = [call for call in run.calls if call.op == "send"] + waiting(run.calls)
    path = critical_path(run)
    assert all(one.end_s == after.start_s for one, after in pairwise(path))
    assert (path[0].start_s, path[-1].end_s) == (0, max(b.end_s for b in run.traffic.blocks))


def late_rank_1() -> None:
    x = torch.ones(1 << 16)
    dist.all_reduce(x)
    with measure("step"):
        for turn in range(4):
            time.sleep(0.1 if dist.get_rank() == turn % 2 else 0)
            dist.all_reduce(x)


@pytest.mark.ranks
def test_on_real_ranks_it_leads_over_each_late_rank() -> None:
    run = launch(late_rank_1, world_size=2, quiet=True, timeout_s=120)
    path = critical_path(run, "step")
    late = [
        state.rank
        for state in path
        if state.name == "compute" and state.end_s - state.start_s > 0.09
    ]
    assert late == [0, 1, 0, 1]
    assert StepTime.of(path).waiting_s == pytest.approx(0, abs=1e-3)
