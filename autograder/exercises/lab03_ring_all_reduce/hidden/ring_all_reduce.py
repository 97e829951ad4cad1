from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import shaken
from autograder.exercises.lab03_ring_all_reduce.hidden import shared
from autograder.exercises.lab03_ring_all_reduce.shared import ring_case

LIMITS, facts = shared.limits(halves=2), shared.bounds
CASES = (
    ring_case(5, 75_001, "float64", op="mean"),
    shaken(ring_case(4, 50, "int64", op="sum")),
    ring_case(5, 3, op="sum", called_before=True),
    ring_case(3, 1, op="mean"),
    ring_case(4, 300_002, "bfloat16", op="sum"),
)
BOUNDARIES = shared.HALVES_BOUNDARIES | {"divides": "4 ranks, 12 elements, mean"}


def total(case: Case, inputs: Any) -> Plain:
    return {"tensor": torch.stack(inputs).sum(dim=0)}


def mean(case: Case, inputs: Any) -> Plain:
    return {"tensor": (torch.stack(inputs).sum(dim=0) / case.world_size).to(inputs[0].dtype)}


def reference(case: Case, inputs: Any) -> Plain:
    return (mean if case.params["op"] == "mean" else total)(case, inputs)


def divided_twice(case: Case, inputs: Any) -> Plain:
    if case.params["op"] != "mean":
        return None
    return {"tensor": mean(case, inputs)["tensor"] / case.world_size}


MISTAKES = {
    "returns the sum, not the mean: divide by world_size, in place": total,
    "returns the mean, not the sum: divide for op='mean' only": mean,
    "divides by world_size twice": divided_twice,
}
