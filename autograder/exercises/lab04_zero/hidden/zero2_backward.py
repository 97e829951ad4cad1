from functools import partial
from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab04_zero.hidden import shared
from autograder.exercises.lab04_zero.shared import loss_of, mlp
from autograder.exercises.lab04_zero.zero2_backward import buckets_of

facts = shared.bounds
CASES = (
    shaken(Case("5 ranks, 3 small layers", 5, {"widths": [4, 7, 9, 2]})),
    Case("6 ranks, one small bucket", 6, {"widths": [5, 3]}),
    Case("4 ranks, 24 layers of 363", 4, {"widths": [363] * 25}, weight=2),
)
BOUNDARIES = shared.NOT_ASKED | {
    "divides": "6 ranks, one small bucket",
    "does not divide": "4 ranks, 3 small layers",
    "one bucket": "6 ranks, one small bucket",
}


def by_rank(case: Case, inputs: Any, rule: shared.Rule = shared.mean) -> list[Any]:
    """Each rank's slices of the buckets, combined from all ranks' gradients by ``rule``."""
    buckets = []
    for given in inputs:
        model = mlp([tensor.clone() for tensor in given["layers"]])
        loss = loss_of(model, given["batches"][0])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        buckets.append(buckets_of(gradients, case))
    return shared.slices_by_rank(buckets, case, rule)


def reference(case: Case, inputs: Any) -> list[Plain]:
    return [{**slices, "gradients left": False} for slices in by_rank(case, inputs)]


def of_another(step: int, case: Case, inputs: Any) -> list[Plain]:
    """Rank r returns the slices of rank r + step."""
    right = by_rank(case, inputs)
    return [right[(rank + step) % len(right)] for rank in range(len(right))]


MISTAKES = {
    "returns another rank's slices: rank r has slice r": (
        lambda case, inputs: by_rank(case, inputs)[:1] * case.world_size,
        *(partial(of_another, step) for step in range(1, 6)),
    ),
    **shared.by_wrong_rules(by_rank),
    "leaves whole gradients behind: set .grad to None once its bucket is reduced": (
        lambda case, inputs: {"gradients left": True}
    ),
}
EQUAL_ANSWERS = (EqualAnswer("handle.remove()", "pass", "no other backward pass follows"),)
