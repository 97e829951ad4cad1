from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab04_zero.hidden import shared
from autograder.exercises.lab04_zero.shared import buckets_of
from autograder.exercises.lab05_fsdp.gather_and_free import LR, blocks_of, case_of, loss_of
from autograder.exercises.lab05_fsdp.nested_model import steps

CASES = (
    with_random_delays(case_of("5 ranks, 3 units", 5, 1, [1, 4, 2], weight=0.5, batches=2)),
    case_of("3 ranks, 10 units of 1 MiB", 3, 512, [*range(250, 260)], weight=1.5, batches=1),
)
BOUNDARIES = {
    "divides": "4 ranks, 12 units of 128 KiB",
    "does not divide": "4 ranks, 3 units, 2 batches",
    "one unit": "5 ranks, one unit of 4 elements",
    "one rank": "not tested: one rank has everything",
    "more ranks than elements": "5 ranks, one unit of 4 elements",
}


def train(case: Case, inputs: Any, rule: shared.Rule = shared.mean, lr: float = LR) -> list[Plain]:
    """One process has the whole model, and computes each rank's batch in turn."""
    blocks = blocks_of([tensor.clone() for tensor in inputs[0]["layers"]])
    model = nn.Sequential(*blocks)
    found: list[Any] = [{"gradients": [], "y": []} for _ in inputs]
    for batches in zip(*(given["batches"] for given in inputs), strict=True):
        of_ranks = []
        for own, (x, targets) in zip(found, batches, strict=True):
            y = model(x)
            own["y"].append(y.detach())
            gradients = torch.autograd.grad(loss_of(y, targets), list(model.parameters()))
            of_ranks.append(buckets_of(gradients, case))
        combined = [each["slices"] for each in shared.slices_by_rank(of_ranks, case, rule)]
        for own, slices in zip(found, combined, strict=True):
            own["gradients"].append({f"unit {k}": each for k, each in enumerate(slices)})
        for block, *slices in zip(blocks, *combined, strict=True):
            whole = shared.flatten(list(block.parameters()))
            gradient = torch.cat(slices)[: len(whole)]
            vector_to_parameters(whole - lr * gradient, block.parameters())
    return [{key: steps(values) for key, values in own.items()} for own in found]


reference = train


def others_divided(gradients: torch.Tensor) -> torch.Tensor:
    own = shared.by_owner(gradients)
    return own + (gradients.sum(dim=0) - own) / len(gradients)


MISTAKES = shared.by_wrong_rules(train) | {
    "divides only the other ranks' gradients by world_size: the mean divides the whole sum": (
        partial(train, rule=others_divided)
    ),
    "computes with the same parameters in each step: the optimizer updates the slices that it is "
    "given, so return each unit's own, no copy": partial(train, lr=0.0),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "        units[k].free()\n        output.",
        "        if k < len(units) - 1:\n            units[k].free()\n        output.",
        "the last unit may stay whole: backward needs it first",
    ),
    EquivalentAnswer(
        "        flat = units[k].take_gradients()\n        units[k].free()\n",
        "        units[k].free()\n        flat = units[k].take_gradients()\n",
        "the gradients are complete, so the unit's parameters are no longer needed",
    ),
)
