from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import shaken
from autograder.exercises.lab03_ring_all_reduce.hidden import shared
from autograder.exercises.lab03_ring_all_reduce.shared import ring_case

LIMITS, facts = shared.limits(halves=2), shared.bounds
CASES = (
    ring_case(5, 75_001, "float64", op="mean"),
    shaken(ring_case(6, 50, "int64", op="sum")),
    ring_case(5, 3, op="sum"),
    ring_case(3, 1, op="mean"),
    ring_case(4, 300_002, "bfloat16", op="sum"),
)
BOUNDARIES = shared.HALVES_BOUNDARIES | {"divides": "4 ranks, 12 elements, mean"}


def reference(case: Case, inputs: Any) -> Plain:
    return {"tensor": mean(case, inputs) if case.params["op"] == "mean" else total(inputs)}


def total(inputs: Any) -> torch.Tensor:
    return torch.stack(inputs).sum(dim=0)


def mean(case: Case, inputs: Any) -> torch.Tensor:
    return total(inputs) / case.world_size


def always_the_sum(case: Case, inputs: Any) -> Plain:
    return {"tensor": total(inputs)}


def always_the_mean(case: Case, inputs: Any) -> Plain:
    return {"tensor": mean(case, inputs).to(inputs[0].dtype)}


MISTAKES = {
    "returned the sum, not the mean: divide by world_size": always_the_sum,
    "returned the mean, not the sum: divide for op='mean' only": always_the_mean,
}
