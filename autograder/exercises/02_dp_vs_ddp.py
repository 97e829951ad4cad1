"""Lab 02: data parallelism through a hub, by all-reduce, and with buckets that overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercise.kept_back import by_case, kept_back
from autograder.exercises import bucket_mistakes, buckets
from autograder.exercises.data_parallel import (
    LR,
    STEPS,
    FirstStep,
    buffer_bytes,
    build_with,
    bytes_by_name,
    draw_equal,
    draw_unequal,
    flat_gradients,
    flat_parameters,
    handed_in_bytes,
    known_mistake,
    one_process,
    parameter_bytes,
    step_cases,
    wrong_from_the_second_step,
)
from autograder.exercises.data_parallel_bytes import HUB_BYTES, RING_BYTES
from autograder.exercises.hub import HUB_STEP
from shardlab.errors import RunTimeout

# ---- ddp_step -----------------------------------------------------------------------------------


def drive_ddp_step(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    model = build_with(case, given["state"])
    gradients, parameters = [], []
    for step, (inputs, targets) in enumerate(given["batches"]):
        subject(model, inputs, targets, LR, step)
        gradient = flat_gradients(model)
        gradients.append(None if gradient is None else gradient.clone())
        parameters.append(flat_parameters(model).clone())
    return {"parameters": parameters, "gradients": gradients}


def expect_ddp_step(case: Case, inputs: Any) -> list[Plain]:
    trained = one_process(case, inputs)
    wanted = {"parameters": trained.parameters, "gradients": trained.gradients}
    return [wanted] * case.world_size


def broadcast_peers(rank: int, world_size: int) -> int:
    """How many ranks this one sends to in gloo's broadcast from rank 0, a binomial tree.

    4 ranks: 0 -> 1, 0 -> 2, 1 -> 3
    """
    return sum(rank < reach and rank + reach < world_size for reach in (1, 2, 4, 8, 16, 32))


@kept_back(by_case)
def ring_share(case: Case) -> float:
    """2(N-1)/N·Ψ for all steps."""
    n = case.world_size
    return STEPS * 2 * (n - 1) / n * parameter_bytes(case)


def ddp_limit(case: Case) -> list[float]:
    start_bytes = parameter_bytes(case) + buffer_bytes(case)
    return [
        1.05 * (ring_share(case) + broadcast_peers(rank, case.world_size) * start_bytes)
        for rank in range(case.world_size)
    ]


def reduces_parameters(first: FirstStep, rank: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
    n, own, mean = first.world_size, first.own[rank], first.mean
    name = "all-reduces the parameters, not the gradients: its .grad is still that of its own batch"
    yield name, {"parameters": first.stepped(mean), "gradients": own}
    yield name, {"parameters": n * first.weights - LR * first.sum, "gradients": own}
    yield name, {"parameters": n * first.weights - LR * own, "gradients": own}


def ddp_mistakes(first: FirstStep, rank: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
    n, own, mean = first.world_size, first.own[rank], first.mean
    yield from reduces_parameters(first, rank)
    yield (
        "takes the step with its own gradient alone: the reduced one never gets into .grad",
        {"parameters": first.stepped(own), "gradients": own},
    )
    yield (
        "takes the step with the sum of the gradients, not their mean: divide by world_size",
        {"parameters": first.stepped(first.sum)},
    )
    yield (
        "averages twice: the sum is divided by world_size once",
        {"parameters": first.stepped(mean / n)},
    )
    yield (
        "takes the step uphill: a step subtracts lr * gradient",
        {"parameters": first.stepped(-mean)},
    )
    yield (
        "takes the step before the gradients are averaged",
        {"parameters": first.stepped(own), "gradients": mean},
    )
    yield (
        "has the right step, but .grad holds the sum: let it hold the mean that the step used",
        {"parameters": first.stepped(mean), "gradients": first.sum},
    )
    yield (
        "never takes the step: the parameters have to change in place",
        {"parameters": first.weights},
    )
    apart = [first.gradient(r, weights_of=r, buffers_of=r) for r in range(n)]
    yield (
        "forgets the broadcast at the start: the ranks begin with different weights, and equal "
        "gradients keep them different",
        {"parameters": first.stepped(torch.stack(apart).mean(dim=0), first.weights_of(rank))},
    )
    own_buffers = [first.gradient(r, weights_of=0, buffers_of=r) for r in range(n)]
    yield (
        "forgets the buffers: the broadcast at the start has to bring model.buffers(), too",
        {"parameters": first.stepped(torch.stack(own_buffers).mean(dim=0))},
    )


def wrong_step(attempt: Attempt) -> Finding | None:
    return known_mistake(attempt, ddp_mistakes)


def no_gradient_left(attempt: Attempt) -> Finding | None:
    for rank, output in enumerate(attempt.outputs if attempt.error is None else []):
        if None in output["gradients"]:
            return Finding(
                f"rank {rank}",
                "leaves .grad empty: let it hold the mean gradient that the step used",
            )
    return None


def each_its_own_source(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, RunTimeout):
        return None
    waiting = [row for row in error.table if row.call.startswith("broadcast")]
    if len(waiting) < 2:
        return None
    return Finding(
        "the ranks",
        "wait in a broadcast that has no one source: src is the same rank everywhere",
        waiting[0].source,
        anyone="the ranks",
    )


def broadcasts_too_much(attempt: Attempt) -> Finding | None:
    case = attempt.case
    buffers = buffer_bytes(case)
    enough = parameter_bytes(case) + buffers
    for rank in range(case.world_size):
        bytes_in = handed_in_bytes(attempt, "broadcast", rank)
        if attempt.error is not None or bytes_in <= enough:
            continue
        if bytes_in == bytes_by_name(case) + buffers:
            mistake = (
                "broadcasts a tied parameter under each of its names: state_dict() lists it "
                "twice, parameters() once"
            )
        else:
            mistake = (
                "broadcasts more than once: after the start equal steps keep the weights equal"
            )
        return Finding(f"rank {rank}", mistake, f"{bytes_in:,} bytes, {enough:,} are enough")
    return None


DDP_STEP = Exercise(
    name="dp_vs_ddp.ddp_step",
    points=5,
    cases=step_cases(),
    draw=draw_unequal,
    drive=drive_ddp_step,
    expect=expect_ddp_step,
    budgets=(
        Budget(
            "sends ≤ 1.05 × ideal bytes per rank",
            limit=ddp_limit,
            used=lambda run: run.traffic.sent_by_rank.tolist(),
            least=lambda case: [0.95 * ring_share(case)] * case.world_size,
        ),
    ),
    allows=frozenset({"broadcast", "all_reduce"}),
    diagnoses=(
        each_its_own_source,
        no_gradient_left,
        wrong_step,
        wrong_from_the_second_step,
        broadcasts_too_much,
    ),
)


# ---- BucketedDDP: buckets.py, bucket_mistakes.py -------------------------------------------------

BUCKETED_DDP = Exercise(
    name="dp_vs_ddp.BucketedDDP",
    points=10,
    cases=buckets.cases(),
    draw=draw_equal,
    drive=buckets.drive_bucketed,
    expect=buckets.expect_bucketed,
    budgets=(
        buckets.BYTES,
        buckets.ONE_FOR_EACH_BUCKET,
        buckets.BEFORE_THE_LAST_GRADIENT,
        buckets.THE_LARGEST_BUCKET,
        buckets.THE_FIRST_BUCKET,
    ),
    allows=frozenset({"all_reduce"}),
    diagnoses=(
        bucket_mistakes.waits_in_a_hook,
        bucket_mistakes.never_full,
        bucket_mistakes.works_once,
        bucket_mistakes.wrong_buckets,
        bucket_mistakes.wrong_gradients,
        bucket_mistakes.copies_in_another_order,
        bucket_mistakes.only_in_finish,
        bucket_mistakes.some_start_late,
    ),
)


EXERCISES = (HUB_STEP, HUB_BYTES, DDP_STEP, RING_BYTES, BUCKETED_DDP)
