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
    as_they_arrive: bool = False,
) -> list[Any]:
    """Each rank's slices of the buckets, combined from all ranks' gradients by ``rule``.

    ``as_they_arrive``: flattened in the order of backward, in which a bias comes before its weight.
    """
    model = mlp([tensor.clone() for tensor in inputs[0]["layers"]])
    parameters = list(model.parameters())
    indices = buckets_of(range(len(parameters)), case)
    if as_they_arrive:
        indices = [sorted(bucket, reverse=True) for bucket in indices]
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


MISTAKES = {
    "flattens a bucket's gradients in another order than its parameters, for example as they "
    "become ready: the order is the bucket's": (partial(by_rank, as_they_arrive=True)),
    **shared.by_wrong_rules(by_rank),
}
