from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.exercise import Case, Limit
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab02_dp_vs_ddp import shared as public
from autograder.exercises.lab02_dp_vs_ddp.bucket_calls import SECOND
from autograder.exercises.lab02_dp_vs_ddp.bucketed_ddp import (
    FACTORS,
    ON_THE_WIRE,
    SQUARE,
    UNKNOWN,
)
from autograder.exercises.lab02_dp_vs_ddp.hidden import ring_bytes, shared
from autograder.exercises.lab02_dp_vs_ddp.hidden.shared import first_step, own

HANDSHAKES_BYTES = 4096  # the counts include those of the drive's own group
TIED_AND_FROZEN = {
    "widths": [160, *SQUARE],
    "tied": [0, 2],
    "frozen": 3,
    "used": [3, 2, 0, 1, 4],
    "cap_bytes": 103_500,
    SECOND: 10**9,
}
CASES = (
    with_random_delays(Case("3 ranks, a GPT", 3, {"gpt": shared.SMALL_GPT, "cap_bytes": 150_000})),
    Case("5 ranks, tied and frozen", 5, TIED_AND_FROZEN),
)
BOUNDARIES = shared.BOUNDARIES | {
    "a tied parameter": "4 ranks, two layers tied",
    "a frozen parameter": "2 ranks, a frozen layer, two models",
    "two instances": "2 ranks, a frozen layer, two models",
    "gradients in another order": "4 ranks, two layers tied",
    "buckets complete in another order": "4 ranks, two layers tied",
    "a first bucket above 1 MiB": "2 ranks, a frozen layer, two models",
    "a parameter above the cap": "2 ranks, an MLP",
    "the last parameter above the cap": "2 ranks, a frozen layer, two models",
    "one bucket": "5 ranks, tied and frozen",
    "exactly the cap": "2 ranks, an MLP",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "size = [], 0", "size = [], 1", "the first parameter begins a bucket in any case"
    ),
    EquivalentAnswer(", strict=True", "", "a bucket has as many parts as parameters"),
    EquivalentAnswer("strict=True", "strict=False", "as above"),
    EquivalentAnswer(
        "flat /= dist.get_world_size()", "flat *= 1 / dist.get_world_size()", "rounding"
    ),
    EquivalentAnswer(
        "parameter.grad.copy_(part.view_as(parameter))",
        "parameter.grad = part.view_as(parameter)",
        "a view of the reduced bucket is the mean as well",
    ),
)


def filled(parameters: Iterable[nn.Parameter], cap_bytes: int) -> list[list[nn.Parameter]]:
    """The buckets, filled in the given order; a parameter above the cap has its own."""
    buckets: list[list[nn.Parameter]] = []
    for parameter in parameters:
        if not buckets or bytes_of(buckets[-1]) + parameter.nbytes > cap_bytes:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


def bytes_of(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def bucket_bytes(parameters: Iterable[nn.Parameter], cap_bytes: int) -> list[int]:
    return [bytes_of(bucket) for bucket in filled(parameters, cap_bytes)]


def reference(case: Case, inputs: Any) -> dict[str, Any]:
    """SGD with the mean of each rank's own gradients, the first layer's times its factors."""

    def take_step(model: nn.Module, parts: list[Any], step: int) -> None:
        gradients = []
        for batch, factors in parts:
            shared.take_gradient(model, batch, factors)
            gradients.append([parameter.grad for parameter in public.trainable(model)])
        for parameter, *each in zip(public.trainable(model), *gradients, strict=True):
            parameter.grad = torch.stack(each).mean(dim=0)
        public.sgd_step(model)

    by_rank = [zip(given["batches"], given[FACTORS], strict=True) for given in inputs]
    steps = [list(parts) for parts in zip(*by_rank, strict=True)]
    given = {"state": inputs[0]["state"], "batches": steps}
    output = public.take_steps(case, given, take_step)
    if SECOND in inputs[0]:
        output[SECOND] = torch.stack([given[SECOND] for given in inputs]).mean(dim=0)
    return output


def facts(case: Case) -> dict[str, Any]:
    parameters = public.trainable(public.build(case))[::-1]
    return {
        "buckets": bucket_bytes(parameters, case.params["cap_bytes"]),
        "buckets below the cap": bucket_bytes(parameters, case.params["cap_bytes"] - 1),
        "complete_after": complete_after(case),
    }


def complete_after(case: Case) -> list[int]:
    """How many gradients have arrived when each bucket is complete."""
    model, arrived = public.build(case), list[int]()
    for parameter in public.trainable(model):
        parameter.register_post_accumulate_grad_hook(lambda p: arrived.append(id(p)))
    shared.take_gradient(model, public.draw_batch(case, np.random.default_rng(0)))
    buckets = filled(public.trainable(model)[::-1], case.params["cap_bytes"])
    return [max(arrived.index(id(p)) + 1 for p in bucket) for bucket in buckets]


def sent(case: Case) -> Limit:
    psi = public.steps_in(case) * public.parameter_bytes(case, trained=True)
    return Limit.around(ring_bytes.right(psi, case.world_size)[0][0], 0.05)


def sent_early(case: Case) -> Limit:
    """By the late rank, at each step's pause: all of the steps before, and this one's buckets that
    are complete."""
    model = public.build(case)
    last = {id(parameter) for parameter in public.first_trainable(model).parameters()}
    buckets = filled(public.trainable(model)[::-1], case.params["cap_bytes"])
    complete_bytes = sum(bytes_of(each) for each in buckets if last.isdisjoint(map(id, each)))
    each_step = sum(map(bytes_of, buckets))
    psi = sum(step * each_step + complete_bytes for step in range(public.steps_in(case)))
    least = 0.99 * ring_bytes.right(psi, case.world_size)[0][0] - HANDSHAKES_BYTES
    others = case.world_size - 1
    return Limit([UNKNOWN] * case.world_size, [0] * others + [max(0, least)])


LIMITS = {public.WITHIN_FIVE_PERCENT.label: sent, ON_THE_WIRE.label: sent_early}
MISTAKES = {
    "leaves its own gradients in .grad: finish() has to copy the reduced buckets back": first_step(
        gradients=own
    ),
    "ends with the sum of the gradients, not their mean: divide by world_size": first_step(
        gradients=lambda f, _: f.sum
    ),
    shared.N_MINUS_1: first_step(gradients=lambda f, _: f.sum / (f.n - 1)),
    shared.ONE_NUMBER: shared.by_one_number(
        lambda gradient: first_step(gradients=lambda f, _: gradient(f))
    ),
}
