"""What a student's own check shows about a failing case, besides its diagnosis."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.verdict import CaseResult
from shardlab.ranks.trust import Trust

pytestmark = pytest.mark.ranks
REDUCE_SCATTER = exercises.load("ring_all_reduce.reduce_scatter")


def sends_a_part(tensor: Any, bounds: Any) -> Any:
    print("on", dist.get_rank())
    size, rank = dist.get_world_size(), dist.get_rank()
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(size - 1):
        sending = dist.isend(chunks[rank - step - 1][:2], (rank + 1) % size)
        received = torch.empty(2)
        dist.recv(received, (rank - 1) % size)
        sending.wait()
        chunks[rank - step - 2][:2] += 3 * received
    return chunks[rank]


def first_case(answer: object, trust: Trust) -> CaseResult:
    return decide(REDUCE_SCATTER, cloudpickle.dumps(answer), 2026, trust=trust).cases[0]


def test_an_unnamed_mistake_is_compared_with_the_solutions_calls() -> None:
    result = first_case(sends_a_part, Trust.OWN)
    assert result.diagnosis.startswith("rank 0 has wrong values")
    assert result.calls_differ.startswith("rank 0, call 1: sends float32[2], 8 B to rank 1 [")
    assert result.calls_differ.endswith("; the course's solution sends 12 B to rank 1 there.")
    assert result.printed.splitlines() == [f"rank {rank} printed: on {rank}" for rank in range(4)]


def test_a_grader_shows_neither() -> None:
    result = first_case(sends_a_part, Trust.UNTRUSTED)
    assert result.calls_differ == result.printed == ""
