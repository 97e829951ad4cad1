"""`with profile():` puts torch.profiler's operators and communication on the clock of the calls."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shardlab import Run, launch, measure, profile
from shardlab.run import Span

pytestmark = pytest.mark.ranks

WIDTH = 256


def step() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters())
    with profile(), measure("step"):
        model(torch.ones(8, WIDTH)).sum().backward()
        dist.all_reduce(torch.ones(1 << 16))
        optimizer.step()


@pytest.fixture(scope="module")
def run() -> Run:
    return launch(step, world_size=2, quiet=True, timeout_s=120)


def spans_of(run: Run, rank: int, kind: str) -> list[Span]:
    return [span for span in run.spans if (span.rank, span.kind) == (rank, kind)]


@pytest.mark.parametrize("rank", [0, 1])
def test_each_collective_was_seen_by_both(run: Run, rank: int) -> None:
    """gloo starts when a thread of its own takes the work, so within the call."""
    calls = run.calls_in("step", rank)
    seen = spans_of(run, rank, "communication")
    assert [span.name for span in seen] == [f"gloo:{call.op}" for call in calls]
    assert len(seen) == 2  # the bucket of gradients, and our own
    slack_s = 1e-3  # between two readings of a clock, on a busy machine
    for call, span in zip(calls, seen, strict=True):
        assert call.start_s - slack_s <= span.start_s < span.end_s <= call.end_s + slack_s


@pytest.mark.parametrize("rank", [0, 1])
def test_operators_are_outermost_and_start_no_communication(run: Run, rank: int) -> None:
    [block] = [block for block in run.traffic["step"].blocks if block.rank == rank]
    operators = spans_of(run, rank, "compute")
    names = [span.name for span in operators]
    assert "aten::linear" in names  # and not the aten::addmm within
    assert "aten::addmm" not in names
    assert "autograd::engine::evaluate_function: AddmmBackward0" in names
    assert not [name for name in names if "c10d" in name or "Optimizer" in name]
    for one, after in pairwise(operators):
        assert block.start_s <= one.start_s <= one.end_s <= after.start_s + 1e-6


class ReducedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        gradient = gradient * 2
        dist.all_reduce(gradient)
        return gradient


def test_an_operator_that_communicates_is_only_what_it_computes() -> None:
    def backward() -> None:
        x = torch.ones(1 << 18, requires_grad=True)
        with profile():
            ReducedBackward.apply(x).sum().backward()

    run = launch(backward, world_size=2, quiet=True, timeout_s=120)
    for rank in (0, 1):
        operators = spans_of(run, rank, "compute")
        names = [span.name for span in operators]
        assert "aten::mul" in names  # and not the backward pass of ReducedBackward around it
        [call] = run.calls_of(rank)
        middle_s = (call.start_s + call.end_s) / 2
        assert not any(span.start_s < middle_s < span.end_s for span in operators)


def test_the_profiler_prints_nothing(run: Run) -> None:
    assert run.stderr == ["", ""]


def test_only_ranks_that_ask_are_profiled() -> None:
    def on_one() -> None:
        x = torch.ones(8)
        if dist.get_rank() == 1:
            with profile():
                x = x + x
        x.sum()

    run = launch(on_one, world_size=2, quiet=True, timeout_s=120)
    assert [(span.rank, span.name) for span in run.spans] == [(1, "aten::add")]


def test_outside_of_a_rank_the_block_just_runs() -> None:
    with profile():
        assert torch.ones(2).sum() == 2
