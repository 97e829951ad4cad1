from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab04_zero.hidden import shared
from autograder.exercises.lab04_zero.shared import buckets_of, loss_of, mlp
from autograder.exercises.lab04_zero.zero2_backward import AFTERWARDS

facts = shared.bounds
CASES = (
    with_random_delays(Case("5 ranks, 3 small layers", 5, {"widths": [4, 7, 9, 2]})),
    Case("3 ranks, one small bucket", 3, {"widths": [5, 3]}),
    Case("4 ranks, 24 layers of 363", 4, {"widths": [363] * 25}, weight=2),
)
BOUNDARIES = shared.NOT_ASKED | {
    "divides": "4 ranks, 8 layers of 256 KiB",
    "does not divide": "4 ranks, 3 small layers, 2 steps",
    "one bucket": "3 ranks, one small bucket",
}


def by_rank(
    case: Case,
    inputs: Any,
    rule: shared.Rule = shared.mean,
    ordered: Callable[[list[int]], list[int]] = list,
) -> list[Any]:
    """Each rank's slices of the buckets, combined from all ranks' gradients by ``rule``.

    ``ordered``: a bucket's gradients, by their numbers, as they are flattened.
    """
    model = mlp([tensor.clone() for tensor in inputs[0]["layers"]])
    parameters = list(model.parameters())
    indices = [*map(ordered, buckets_of(range(len(parameters)), case))]
    steps = []
    for step in range(len(inputs[0]["batches"])):
        losses = [loss_of(model, given["batches"][step]) for given in inputs]
        gradients = [torch.autograd.grad(loss, parameters) for loss in losses]
        buckets = [[[each[i] for i in bucket] for bucket in indices] for each in gradients]
        steps.append(shared.slices_by_rank(buckets, case, rule))
    return [{"slices": [own["slices"] for own in ranks]} for ranks in zip(*steps, strict=True)]


def reference(case: Case, inputs: Any) -> list[Plain]:
    steps = len(inputs[0]["batches"])
    afterwards: dict[str, Plain] = {name: [False] * steps for name in AFTERWARDS}
    afterwards |= {"hooks left": [0] * steps, "backward passes": [1] * steps}
    return [afterwards | slices for slices in by_rank(case, inputs)]


def of_another(rank_of: Callable[[int], int], case: Case, inputs: Any) -> list[Plain]:
    """Rank r returns the slices of rank ``rank_of(r)``."""
    right = by_rank(case, inputs)
    return [right[rank_of(rank) % len(right)] for rank in range(len(right))]


def reversed_list(case: Case, inputs: Any) -> list[Plain]:
    steps = [own["slices"] for own in by_rank(case, inputs)]
    return [{"slices": [slices[::-1] for slices in own]} for own in steps]


MISTAKES = {
    "returns another rank's slices: rank r has slice r": (
        lambda case, inputs: by_rank(case, inputs)[:1] * case.world_size,
        partial(of_another, lambda rank: -1 - rank),
        *(partial(of_another, step.__add__) for step in range(1, 6)),
    ),
    "flattens a bucket's gradients in another order than its parameters, for example as they "
    "become ready: the order is the bucket's": (
        partial(by_rank, ordered=partial(sorted, reverse=True)),  # a bias comes before its weight
        partial(by_rank, ordered=lambda bucket: bucket[::-1]),
    ),
    "returns the slices in reverse: slice i belongs to bucket i": reversed_list,
    **shared.by_wrong_rules(by_rank),
}
