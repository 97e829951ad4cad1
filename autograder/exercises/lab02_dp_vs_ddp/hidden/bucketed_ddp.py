from collections.abc import Iterable
from typing import Any

from torch import nn

from autograder.exercise import Case, Limit
from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab02_dp_vs_ddp import shared as public
from autograder.exercises.lab02_dp_vs_ddp.bucketed_ddp import SQUARE
from autograder.exercises.lab02_dp_vs_ddp.hidden import ring_bytes, shared
from autograder.exercises.lab02_dp_vs_ddp.hidden.shared import first_step, own

TIED_AND_FROZEN = {"widths": [160, *SQUARE], "tied": [1, 2], "frozen": 0, "cap_bytes": 103_800}
CASES = (
    shaken(Case("3 ranks, a GPT", 3, {"gpt": shared.SMALL_GPT, "cap_bytes": 200_000})),
    Case("5 ranks, tied and frozen", 5, TIED_AND_FROZEN),
)
BOUNDARIES = shared.BOUNDARIES | {
    "a tied parameter": "4 ranks, two layers tied",
    "a frozen parameter": "3 ranks, a frozen layer",
    "a parameter above the cap": "2 ranks, an MLP",
    "exactly the cap": "2 ranks, an MLP",
}
EQUAL_ANSWERS = (
    EqualAnswer("size = [], 0", "size = [], 1", "the first parameter begins a bucket in any case"),
    EqualAnswer(", strict=True", "", "a bucket has as many parts as parameters"),
    EqualAnswer("strict=True", "strict=False", "as above"),
    EqualAnswer("flat /= dist.get_world_size()", "flat *= 1 / dist.get_world_size()", "rounding"),
    EqualAnswer(
        "parameter.grad.copy_(part.view_as(parameter))",
        "parameter.grad = part.view_as(parameter)",
        "a view of the reduced bucket is the mean as well",
    ),
)
reference = shared.one_process


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


def facts(case: Case) -> dict[str, Any]:
    model, cap_bytes = public.build(case), case.params["cap_bytes"]
    parameters, all_parameters = public.trainable(model), list(model.parameters())
    without_frozen = [
        bytes_of(bucket)
        for bucket in filled(all_parameters[::-1], cap_bytes)
        if all(parameter.requires_grad for parameter in bucket)
    ]
    return {
        "buckets": bucket_bytes(parameters[::-1], cap_bytes),
        "forward_buckets": bucket_bytes(parameters, cap_bytes),
        "buckets_without_frozen": without_frozen if len(parameters) < len(all_parameters) else [],
    }


def sent(case: Case) -> Limit:
    psi = public.steps_in(case) * public.parameter_bytes(case, trained=True)
    return Limit.around(ring_bytes.right(psi, case.world_size)[0][0], 0.05)


LIMITS = {public.WITHIN_FIVE_PERCENT.label: sent}
MISTAKES = {
    "leaves its own gradients in .grad: finish() has to copy the reduced buckets back": first_step(
        gradients=own
    ),
    "ends with its own gradient divided by N: finish() has to wait for the buckets before it "
    "copies them back": first_step(gradients=lambda f, rank: f.own[rank] / f.n),
    "ends with the sum of the gradients, not their mean: divide by world_size": first_step(
        gradients=lambda f, _: f.sum
    ),
    "averages twice: divide the sum by world_size once": first_step(
        gradients=lambda f, _: f.mean / f.n
    ),
    "divides by the number of buckets: divide the sum by world_size": first_step(
        gradients=lambda f, _: f.sum / len(f.case.params["buckets"])
    ),
    "divides by world_size and by the number of buckets: the mean over ranks is all": first_step(
        gradients=lambda f, _: f.mean / len(f.case.params["buckets"])
    ),
}
