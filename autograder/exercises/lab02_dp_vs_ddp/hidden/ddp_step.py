from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autograder.exercise import Case, Limit, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab02_dp_vs_ddp.hidden import pairs, shared
from autograder.exercises.lab02_dp_vs_ddp.hidden.shared import Vector, first_step, own
from autograder.exercises.lab02_dp_vs_ddp.shared import (
    LR,
    STEPS,
    WITHIN_FIVE_PERCENT,
    buffer_bytes,
    parameter_bytes,
)

CASES, BOUNDARIES, reference = shared.STEP_CASES, shared.STEP_BOUNDARIES, shared.one_process
EQUAL_ANSWERS = (
    EqualAnswer(
        "dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size()",
        "dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)",
        "the collective takes the mean",
    ),
    EqualAnswer("model.zero_grad()", "model.zero_grad(set_to_none=False)", "backward adds to 0"),
)


def broadcast_peers(rank: int, world_size: int) -> int:
    """How many ranks this one sends to in gloo's broadcast from rank 0, a binomial tree.

    4 ranks: 0 -> 1, 0 -> 2, 1 -> 3
    """
    return sum(rank < reach and rank + reach < world_size for reach in (1, 2, 4, 8, 16, 32))


def sent(case: Case) -> Limit:
    start_bytes = parameter_bytes(case) + buffer_bytes(case)
    ring = pairs.ring_pairs(STEPS * parameter_bytes(case), case.world_size)
    most = [
        1.05 * (each + broadcast_peers(rank, case.world_size) * start_bytes)
        for rank, (each, _) in enumerate(ring)
    ]
    return Limit(most, 0.95 * ring[0][0])


LIMITS = {WITHIN_FIVE_PERCENT.label: sent}


def step_by(gradient: Vector, **vectors: Vector) -> Callable[[Case, Any], list[Plain]]:
    return first_step(
        parameters=lambda first, rank: first.weights - LR * gradient(first, rank), **vectors
    )


MISTAKES = {
    "all-reduces the parameters, not the gradients: its .grad is still that of its own batch": (
        step_by(lambda first, _: first.mean, gradients=own),
        first_step(
            parameters=lambda first, _: first.n * first.weights - LR * first.sum, gradients=own
        ),
        first_step(
            parameters=lambda first, rank: first.n * first.weights - LR * first.own[rank],
            gradients=own,
        ),
    ),
    "takes the step with its own gradient alone: the reduced one never gets into .grad": step_by(
        own, gradients=own
    ),
    "takes the step with the sum of the gradients, not their mean: divide by world_size": step_by(
        lambda first, _: first.sum
    ),
    "averages twice: the sum is divided by world_size once": step_by(
        lambda first, _: first.mean / first.n
    ),
    "takes the step uphill: a step subtracts lr * gradient": step_by(lambda first, _: -first.mean),
    "takes the step before the gradients are averaged": step_by(
        own, gradients=lambda first, _: first.mean
    ),
    "has the right step, but .grad holds the sum: let it hold the mean that the step used": step_by(
        lambda first, _: first.mean, gradients=lambda first, _: first.sum
    ),
    "never takes the step: the parameters have to change in place": first_step(
        parameters=lambda first, _: first.weights
    ),
    "forgets the broadcast at the start: the ranks begin with different weights, and equal "
    "gradients keep them different": first_step(
        parameters=lambda first, rank: first.weights_of(rank) - LR * first.mean_apart()
    ),
    "forgets the buffers: the broadcast at the start has to bring model.buffers(), too": step_by(
        lambda first, _: first.mean_apart(same_weights=True)
    ),
}
