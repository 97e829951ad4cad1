from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab05_fsdp import nested_model
from autograder.exercises.lab05_fsdp.accumulate import BYTES, LEARNING_RATE, MEMORY, case_of
from autograder.exercises.lab05_fsdp.nested_model import SAMPLES, loss_of, shards_by_rank

BLOCK = [(8, 7), (7, 8)]


def large(blocks: int) -> dict[str, Any]:
    parts = [[(256, 1024), (1024, 256)]] * blocks + [(256, 16)]
    return {"vocabulary": 64, "width": 256, "parts": parts}


CASES = (
    case_of(
        "3 ranks, 4 micro-batches, both in turn",
        3,
        {"vocabulary": 3, "width": 8, "parts": [BLOCK] * 3 + [(8, 2)]},
        4,
        BYTES,
        MEMORY,
        BYTES,
    ),
    with_random_delays(
        case_of(
            "2 ranks, one micro-batch",
            2,
            {"vocabulary": 12, "width": 8, "parts": [BLOCK, (8, 1)]},
            1,
            BYTES,
        )
    ),
    case_of(
        "4 ranks, one unit, fewer rows than ranks",
        4,
        {"vocabulary": 3, "width": 8, "parts": [(8, 3)]},
        5,
        BYTES,
    ),
    case_of("3 ranks, 10.6 MB, the least memory", 3, large(5), 2, MEMORY),
    case_of("2 ranks, 4.3 MB, the fewest bytes", 2, large(2), 3, BYTES),
)
BOUNDARIES = {
    "divides": "2 ranks, 3 micro-batches, both in turn",
    "does not divide": "2 ranks, 3 micro-batches, the least memory",
    "one rank": "not tested: one rank gathers nothing, and its shard is the whole gradient",
    "more ranks than elements": "2 ranks, 3 micro-batches, the least memory",
    "one micro-batch": "2 ranks, one micro-batch",
    "one unit": "4 ranks, one unit, fewer rows than ranks",
    "bytes after memory": "3 ranks, 4 micro-batches, both in turn",
    "memory after bytes": "2 ranks, 3 micro-batches, both in turn",
}
EQUIVALENT_ANSWERS: tuple[EquivalentAnswer, ...] = ()

# all ranks' gradients of the micro-batches [N][M][parameter]  ->  the gradient, by parameter
Rule = Callable[[Sequence[Sequence[Sequence[Tensor]]]], list[Tensor]]


def mean(gradients: Any, factor: Callable[[int, int], float] = lambda n, m: 1 / (n * m)) -> Any:
    """``factor``: of the sum over N ranks and M micro-batches."""
    n, m = len(gradients), len(gradients[0])
    each = zip(*[own for of_rank in gradients for own in of_rank], strict=True)
    return [torch.stack(own).sum(0) * factor(n, m) for own in each]


def of_micro_batches(which: slice, gradients: Any) -> Any:
    """The mean over all of them, with the others 0."""
    m = len(gradients[0])
    return [each * len(range(m)[which]) / m for each in mean([own[which] for own in gradients])]


def mean_of(which: slice, gradients: Any) -> Any:
    return mean([own[which] for own in gradients])


def reference(case: Case, inputs: Any, rule: Rule = mean) -> list[Plain]:
    """One process that adds up the gradients of all ranks' micro-batches."""
    model = nested_model.nested_model(case.params, inputs[0]["parameters"])
    parameters, count = list(model.parameters()), case.params["micro_batches"]
    steps = []
    for step in range(len(case.params["saves"])):
        of_step = slice(step * count, (step + 1) * count)
        gradients = rule(
            [
                [torch.autograd.grad(loss_of(model, each), parameters) for each in own["batches"]]
                for own in [{"batches": given["batches"][of_step]} for given in inputs]
            ]
        )
        steps.append(shards_by_rank(gradients, case.world_size))
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(LEARNING_RATE * gradient)
    order = [f"forward of {SAMPLES} samples", "backward"] * count
    orders = [order] * len(steps)
    found = {"order": orders, "changed": [False] * len(steps)}
    return [found | {"gradients": list(own)} for own in zip(*steps, strict=True)]


def by(rule: Rule) -> Callable[[Case, Any], list[Plain]]:
    return partial(reference, rule=rule)


MISTAKES = {
    "adds the losses of the micro-batches up: divide each by their number": by(
        partial(mean, factor=lambda n, m: 1 / n)
    ),
    "divides by the number of micro-batches twice: once is enough": by(
        partial(mean, factor=lambda n, m: 1 / (n * m * m))
    ),
    "divides by 2 in every step, len(micro_batch): their number is len(micro_batches)": by(
        partial(mean, factor=lambda n, m: 1 / (2 * n))
    ),
    "divides by the number of ranks, too: fully_shard already averages over them": by(
        partial(mean, factor=lambda n, m: 1 / (n * n * m))
    ),
    "has the gradient of the last micro-batch only: gradients add up in .grad": (
        by(partial(of_micro_batches, slice(-1, None))),
        by(partial(mean_of, slice(-1, None))),
    ),
    "has the gradient of the first micro-batch only": (
        by(partial(of_micro_batches, slice(1))),
        by(partial(mean_of, slice(1))),
    ),
    "leaves the last micro-batch out": (
        by(partial(of_micro_batches, slice(-1))),
        by(partial(mean_of, slice(-1))),
    ),
}
