"""Layouts that gloo would move wrongly are refused; all others give right results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from shardlab.ranks.rank_set import RankSet
from shardlab.trace.layouts import refuse_layouts
from tests.shardlab.failing import fails

Layout = Callable[[torch.Tensor], torch.Tensor]


def with_gaps(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values, -values], dim=-1)[..., 0]


def transposed(values: torch.Tensor) -> torch.Tensor:
    return values.t().contiguous().t()


@pytest.mark.parametrize(
    ("operator", "args", "is_refused"),
    [
        ("allreduce_", ([with_gaps(torch.ones(3))],), True),
        ("allreduce_", ([torch.ones(1).expand(3)],), True),
        ("allreduce_", ([transposed(torch.ones(2, 3))],), False),
        ("allreduce_", ([torch.eye(3).to_sparse()],), False),
        ("scatter_", ([torch.ones(2, 3)], [[transposed(torch.ones(2, 3))]]), True),
        ("allgather_", ([[with_gaps(torch.ones(3))]], [with_gaps(torch.ones(3))]), False),
    ],
)
def test_layouts(operator: str, args: tuple[object, ...], is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(ValueError, match=r"NCCL refuses it. Pass view.contiguous\(\)"):
            refuse_layouts(operator, operator, args)
    else:
        refuse_layouts(operator, operator, args)


def exchanged(op: str, to_input: Layout, to_output: Layout) -> torch.Tensor:
    """What a collective leaves on this rank, from an input and in an output of these layouts."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = to_input(torch.arange(6.0).view(2, 3) * (rank + 1) + rank)
    out, outs = to_output(torch.zeros(2, 3)), [to_output(torch.zeros(2, 3)) for _ in range(size)]
    if op in ("all_reduce", "broadcast", "reduce"):
        given = {"broadcast": {"src": 1}, "reduce": {"dst": 0}}.get(op, {})
        getattr(dist, op)(mine, **given)
        return mine if op != "reduce" or rank == 0 else out
    if op == "all_gather":
        dist.all_gather(outs, mine)
    elif op == "gather":
        dist.gather(mine, outs if rank == 0 else None)
    elif op == "reduce_scatter":
        dist.reduce_scatter(out, [mine] * size)
    elif op == "scatter":
        dist.scatter(out, [mine] * size if rank == 0 else None)
    elif op == "all_to_all":
        dist.all_to_all(outs, [mine] * size)
    return torch.stack([out, *outs])


@pytest.mark.ranks
def test_a_collective_is_right_or_refused() -> None:
    """Refused in the wrong place, a layout would be an error though it works."""
    ops = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "reduce_scatter")

    def work() -> list[str]:
        wrong = []
        for op in (*ops, "scatter", "all_to_all"):
            right = exchanged(op, torch.clone, torch.clone)
            inputs = [] if op == "scatter" else [(with_gaps, torch.clone)]  # only rank 0 has one
            for layouts in (*inputs, (torch.clone, with_gaps)):
                try:
                    is_right = torch.equal(exchanged(op, *layouts), right)
                except ValueError:
                    continue
                if not is_right:
                    wrong.append(f"{op} {layouts}")
        return wrong

    with RankSet(2, quiet=True) as ranks:
        assert ranks.run(work).outputs == [[], []]


@pytest.mark.ranks
def test_the_line_is_named() -> None:
    def work() -> None:
        weights = torch.ones(4, 3)
        dist.all_reduce(weights[:, 0])

    error = fails(work)
    assert "all_reduce got a view with gaps, float32[4] with strides [3]" in error.headline
    assert "dist.all_reduce(weights[:, 0])" in error.headline


@pytest.mark.parametrize("operator", ["allgather_", "gather_"])
def test_a_list_that_repeats_one_tensor_is_refused(operator: str) -> None:
    given = torch.ones(2)
    with pytest.raises(ValueError, match=r"\[tensor\] \* n repeats one tensor"):
        refuse_layouts(operator, operator, ([[torch.empty(2)] * 3], [given]))
    halves = torch.empty(4).chunk(2)
    refuse_layouts(operator, operator, ([[*halves]], [given]))
