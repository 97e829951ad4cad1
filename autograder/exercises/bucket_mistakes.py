"""Mistakes in BucketedDDP by their names, read from outputs and from recorded calls."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from autograder.exercise import Attempt, Finding
from autograder.exercise.compare import equal
from autograder.exercises.buckets import (
    BACKWARD,
    bucket_bytes,
    buckets_of,
    collectives,
    started_early,
)
from autograder.exercises.data_parallel import STEPS, FirstStep, build, known_mistake, trainable
from shardlab.errors import DeadlockError, LaunchError, RunTimeout
from shardlab.run import Call


def waits_in_a_hook(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, DeadlockError):
        return None
    waiting = [row for row in error.table if row.state == "waiting"]
    if len(waiting) < len(error.table):
        return None
    if any(not row.call.startswith("all_reduce (collective") for row in waiting):
        return None
    return Finding(
        "rank 0",
        "waits for its collective inside a hook, so backward stands still until every other rank "
        "is there: start it with async_op=True and wait in finish()",
        waiting[0].source,
    )


def never_full(attempt: Attempt) -> Finding | None:
    """A bucket that was never launched in a model with a frozen layer."""
    if attempt.case.params.get("frozen") is None or isinstance(attempt.error, DeadlockError):
        return None
    wanted = sum(buckets_of(attempt.case))
    for rank in range(attempt.case.world_size):
        first_step = calls_in_steps(attempt, rank)[:1]
        sent = sum(call.bytes for call in first_step[0]) if first_step else 0
        if sent < wanted and (attempt.error or sent):
            return Finding(
                f"rank {rank}",
                "waits for the gradient of a frozen parameter, which never comes, and so never "
                "launches its bucket: leave out parameters that do not require a gradient",
                str(attempt.error.headline) if isinstance(attempt.error, LaunchError) else "",
            )
    return None


def calls_in_steps(attempt: Attempt, rank: int) -> list[list[Call]]:
    """A rank's collectives by step: each backward's start ends the step before."""
    if attempt.run is None:
        return []
    starts = [
        block.start_s
        for block in attempt.run.traffic.blocks
        if block.rank == rank and block.label == BACKWARD
    ]
    steps: list[list[Call]] = [[] for _ in starts or [0]]
    for call in collectives(attempt.run, rank):
        step = sum(call.start_s >= start for start in starts)
        steps[max(step - 1, 0)].append(call)
    return steps


def wrong_buckets(attempt: Attempt) -> Finding | None:
    """Told by the bytes of the first step's collectives."""
    if attempt.error is not None:
        return None
    case, cap = attempt.case, attempt.case.params["cap_bytes"]
    model = build(case)
    wanted = buckets_of(case)
    for rank in range(case.world_size):
        got = [call.bytes for call in calls_in_steps(attempt, rank)[0]]
        if sorted(got) == sorted(wanted):
            continue
        mistake = name_wrong_buckets(model, got, wanted, cap)
        if mistake:
            evidence = f"bytes of its collectives: {got}, expected {wanted}"
            return Finding(f"rank {rank}", mistake, evidence)
    return None


def name_wrong_buckets(model: nn.Module, got: list[int], wanted: list[int], cap: int) -> str:
    parameters = trainable(model)
    one_each = sorted(parameter.nbytes for parameter in parameters)
    everything = sum(parameter.nbytes for parameter in model.parameters())
    twice = sum(
        parameter.nbytes
        for _, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    )
    if not got:
        return "starts no collective: are the hooks registered, and does a full bucket start one?"
    if sorted(got) == one_each:
        return "makes one collective for each parameter: a bucket's gradients travel in one tensor"
    if sum(got) == twice > sum(wanted):
        return (
            "counts a tied parameter twice: module.parameters() gives it once, going through the "
            "layers gives it once for each"
        )
    if sum(got) == everything > sum(wanted):
        return (
            "puts frozen parameters into its buckets: they have no gradient, and their bytes need "
            "not travel"
        )
    if sum(got) != sum(wanted):
        return "reduces another number of bytes than the trainable parameters have"
    if len(got) == 1:
        return "ignores the cap: one bucket holds everything, so nothing can start early"
    if sorted(got) == sorted(bucket_bytes(parameters, cap)):
        return (
            "fills its buckets in forward order: backward gives the last parameters' gradients "
            "first, so begin with those"
        )
    if any(size > cap and size not in one_each for size in got):
        return "overfills a bucket: close it before a parameter that would take it above the cap"
    return "fills its buckets otherwise than asked: each takes what still fits under the cap"


def only_in_finish(attempt: Attempt) -> Finding | None:
    if attempt.error is not None or attempt.run is None or len(buckets_of(attempt.case)) < 2:
        return None
    for rank in range(attempt.case.world_size):
        if collectives(attempt.run, rank) and not started_early(attempt.run, rank):
            return Finding(
                f"rank {rank}",
                "starts its collectives when backward has ended, so nothing overlaps: start each "
                "in the hook that completes its bucket",
            )
    return None


def some_start_late(attempt: Attempt) -> Finding | None:
    if attempt.error is not None or attempt.run is None:
        return None
    least = STEPS * (len(buckets_of(attempt.case)) - 1)
    for rank in range(attempt.case.world_size):
        early = started_early(attempt.run, rank)
        if early < least:
            return Finding(
                f"rank {rank}",
                "starts some buckets late: a bucket is complete before the last gradient comes, "
                "except the one that holds it",
                f"{early} of {least} collectives before the last gradient",
            )
    return None


def works_once(attempt: Attempt) -> Finding | None:
    """The first step is right, the second lacks collectives, whether or not it ends in an error."""
    for rank in range(attempt.case.world_size):
        wanted = sorted(buckets_of(attempt.case))
        steps = [sorted(call.bytes for call in step) for step in calls_in_steps(attempt, rank)]
        entered_the_next = len(steps) > 1 and not isinstance(attempt.error, RunTimeout)
        if entered_the_next and steps[0] == wanted and len(steps[1]) < len(wanted):
            return Finding(
                f"rank {rank}",
                "works in the first step alone: finish() has to make the buckets ready for the "
                "next backward",
                f"{len(steps[1])} collectives in the second step, not {len(wanted)}",
            )
    return None


def reduces_copies(first: FirstStep, rank: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
    n, mean = first.world_size, first.mean
    yield (
        "leaves its own gradients in .grad: finish() has to copy the reduced buckets back",
        {"gradients": first.own[rank]},
    )
    yield (
        "ends with its own gradient divided by N: finish() has to wait for the buckets before it "
        "copies them back",
        {"gradients": first.own[rank] / n},
    )
    yield (
        "ends with the sum of the gradients, not their mean: divide by world_size",
        {"gradients": first.sum},
    )
    yield "averages twice: the sum is divided by world_size once", {"gradients": mean / n}


def wrong_gradients(attempt: Attempt) -> Finding | None:
    return known_mistake(attempt, reduces_copies)


def copies_in_another_order(attempt: Attempt) -> Finding | None:
    """The right numbers in wrong places."""
    if attempt.error is not None:
        return None
    for rank, output in enumerate(attempt.outputs):
        wanted, got = attempt.expected[rank]["gradients"][0], output["gradients"][0]
        if not equal(wanted, got) and equal(wanted.sort().values, got.sort().values):
            return Finding(
                f"rank {rank}",
                "copies means back to the wrong parameters: take a bucket apart in the order in "
                "which it was put together",
            )
    return None
