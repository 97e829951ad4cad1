from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab03_ring_all_reduce.hidden import shared
from autograder.exercises.lab03_ring_all_reduce.shared import chunks_of, ring_case

LIMITS, facts = shared.limits(not_sent=(0, 1)), shared.bounds
CASES = (
    ring_case(5, 75_001, "float64", op="mean"),
    with_random_delays(ring_case(4, 50, "int64", op="sum")),
    ring_case(5, 3, op="sum", called_before=True),
    ring_case(3, 1, op="mean"),
    ring_case(4, 300_002, "bfloat16", op="mean"),
)
BOUNDARIES = shared.HALVES_BOUNDARIES | {
    "divides": "4 ranks, 12 elements, mean",
    "does not divide": "3 ranks, 10 elements, sum by default",
}


Tensors = dict[str, torch.Tensor]


def total(case: Case, inputs: Any) -> Tensors:
    return {"tensor": torch.stack(inputs).sum(dim=0)}


def mean(case: Case, inputs: Any) -> Tensors:
    return {"tensor": (torch.stack(inputs).sum(dim=0) / case.world_size).to(inputs[0].dtype)}


def reference(case: Case, inputs: Any) -> Tensors:
    return (mean if case.params["op"] == "mean" else total)(case, inputs)


def divided_late(case: Case, inputs: Any) -> list[Plain] | None:
    if case.params["op"] != "mean":
        return None
    whole, averaged = (chunks_of(case, by(case, inputs)["tensor"]) for by in (total, mean))
    chunks = [
        [(averaged if chunk == rank else whole)[chunk] for chunk in range(case.world_size)]
        for rank in range(case.world_size)
    ]
    return [{"tensor": torch.cat(own)} for own in chunks]


MISTAKES = {
    "returns the sum, not the mean: divide by world_size, in place": total,
    "returns the mean, not the sum: divide for op='mean' only": mean,
    "divides its own chunk after all_gather: divide it before, or all of tensor": divided_late,
}
