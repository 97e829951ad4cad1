"""What a student's own check shows about a failing case, besides its diagnosis."""

from __future__ import annotations

import re
from typing import Any

import cloudpickle
import pytest
import torch.distributed as dist

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.verdict import CaseResult
from shardlab.ranks.trust import Trust

pytestmark = pytest.mark.ranks
DDP_STEP = exercises.load("dp_vs_ddp.ddp_step")


def ddp_step(model: Any, inputs: Any, targets: Any, lr: float, step: int) -> None:
    """All-reduces in float64, and takes too large a step."""
    if step == 0:
        print("on", dist.get_rank())
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, 0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        wide = parameter.grad.double()
        dist.all_reduce(wide)
        parameter.grad = (1.5 * wide / dist.get_world_size()).float()
        parameter.data -= lr * parameter.grad


def first_case(answer: object, trust: Trust) -> CaseResult:
    return decide(DDP_STEP, cloudpickle.dumps(answer), 2026, trust=trust).cases[0]


def test_an_unnamed_mistake_is_compared_with_the_solutions_calls() -> None:
    result = first_case(ddp_step, Trust.OWN)
    assert result.diagnosis.startswith("rank 0 has wrong values")
    assert re.match(
        r"rank 0, call \d+: calls all_reduce with float64\[256, 128\], 262,144 B \[.*; "
        r"the course's solution calls all_reduce with 131,072 B there\.",
        result.calls_differ,
    )
    # This case restarts training once, so each rank runs step 0 twice.
    assert result.printed.splitlines() == [
        f"rank {rank} printed: on {rank}" for rank in (0, 0, 1, 1)
    ]


def test_a_grader_shows_neither_calls_nor_printed_text() -> None:
    result = first_case(ddp_step, Trust.UNTRUSTED)
    assert result.calls_differ == result.printed == ""
