from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab04_zero.shared import loss_of
from autograder.exercises.lab05_fsdp import nested_model
from autograder.exercises.lab05_fsdp.nested_model import SAMPLES, shards_by_rank, steps
from autograder.exercises.lab06_fsdp_in_practice.accumulate import (
    BYTES,
    LEARNING_RATE,
    MEMORY,
    case_of,
)

BLOCK = [(8, 7), (7, 8)]


def large(blocks: int) -> dict[str, Any]:
    parts = [[(256, 1024), (1024, 256)]] * blocks + [(256, 16)]
    return {"vocabulary": 64, "width": 256, "parts": parts}


def small(vocabulary: int, *parts: Any) -> dict[str, Any]:
    return {"vocabulary": vocabulary, "width": 8, "parts": list(parts)}


CASES = (
    case_of(
        "3 ranks, 4 micro-batches, both in turn",
        3,
        small(3, BLOCK, BLOCK, BLOCK, (8, 2)),
        4,
        *(BYTES, MEMORY, BYTES),
    ),
    with_random_delays(case_of("2 ranks, one micro-batch", 2, small(12, BLOCK, (8, 1)), 1, BYTES)),
    case_of("4 ranks, one unit, fewer rows than ranks", 4, small(3, (8, 3)), 5, BYTES),
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

# all ranks' gradients of the micro-batches [N][M][parameter]  ->  the gradient, by parameter
Rule = Callable[[Sequence[Sequence[Sequence[Tensor]]]], list[Tensor]]


def mean(gradients: Any, factor: Callable[[int, int], float] = lambda n, m: 1 / (n * m)) -> Any:
    """``factor``: of the sum over N ranks and M micro-batches."""
    n, m = len(gradients), len(gradients[0])
    each = zip(*[own for of_rank in gradients for own in of_rank], strict=True)
    return [torch.stack(own).sum(0) * factor(n, m) for own in each]


def of_the_last(gradients: Any, factor: Callable[[int, int], float]) -> Any:
    n, m = len(gradients), len(gradients[0])
    return mean([own[-1:] for own in gradients], lambda *_: factor(n, m))


def reference(case: Case, inputs: Any, rule: Rule = mean) -> list[Plain]:
    """One process that adds up the gradients of all ranks' micro-batches."""
    model = nested_model.nested_model(case.params, inputs[0]["parameters"])
    names, parameters = zip(*model.named_parameters(), strict=True)
    count, by_step = case.params["micro_batches"], []
    for step in range(len(case.params["saves"])):
        of_step = slice(step * count, (step + 1) * count)
        gradients = rule(
            [
                [torch.autograd.grad(loss_of(model, each), parameters) for each in batches]
                for batches in (given["batches"][of_step] for given in inputs)
            ]
        )
        whole = dict(zip(names, gradients, strict=True))
        by_step.append(shards_by_rank(whole, case.world_size))
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(LEARNING_RATE * gradient)
    order = [f"forward of {SAMPLES} samples", "backward"] * count
    found = {"order": [order] * len(by_step), "changed": [False] * len(by_step)}
    return [found | {"gradients": steps(own)} for own in zip(*by_step, strict=True)]


def by(
    factor: Callable[[int, int], float], rule: Callable[..., Any] = mean
) -> Callable[[Case, Any], list[Plain]]:
    return partial(reference, rule=partial(rule, factor=factor))


MISTAKES = {
    "adds the losses of the micro-batches up: divide each by their number": by(lambda n, m: 1 / n),
    "divides by another number than len(micro_batches), once: fully_shard already averages over "
    "the ranks": (
        by(lambda n, m: 1 / (n * m * m)),
        by(lambda n, m: 1 / (n * n * m)),
        by(lambda n, m: 1 / (2 * n)),  # len(micro_batch)
    ),
    "has the gradient of the last micro-batch only: gradients add up in .grad": (
        by(lambda n, m: 1 / n, of_the_last),
        by(lambda n, m: 1 / (n * m), of_the_last),
    ),
}
