"""What the recorded calls show about an answer's buckets: start times, bytes, mistakes."""

import re
from bisect import bisect_left
from collections import Counter
from typing import Any

import torch

from autograder.exercise import Attempt, Case, Finding, equal
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab02_dp_vs_ddp.shared import build, trainable
from shardlab.errors import DeadlockError, RankError
from shardlab.run import Call, Run

GRADIENT, BACKWARD, SECOND = "gradient", "backward", "second model"  # labels in the log
BARRIER_DTYPE = torch.uint8  # of the drive's own collectives; no gradient has it
NONE_AS_TENSOR = (
    "'NoneType' object has no attribute '(flatten|view|reshape|numel|ravel|clone|detach|shape)"
)


def collectives(run: Run, rank: int) -> list[Call]:
    """The student's for the first model, in the order in which they started."""
    second = spans(run, rank, SECOND)
    return [
        call
        for call in run.calls
        if call.rank == rank and call.op == "all_reduce" and is_students(call)
        if not any(start <= call.start_s <= end for start, end in second)
    ]


def is_students(call: Call) -> bool:
    return call.dtype != str(BARRIER_DTYPE).removeprefix("torch.")


def spans(run: Run | None, rank: int, label: str) -> list[tuple[float, float]]:
    if run is None:
        return []
    blocks = (block for block in run.traffic.blocks if block.rank == rank and block.label == label)
    return [(block.start_s, block.end_s) for block in blocks]


def moments(run: Run, rank: int) -> list[float]:
    """Of each gradient that arrived and each backward that ended."""
    arrived = [at for at, _ in spans(run, rank, GRADIENT)]
    return sorted(arrived + [end_s for _, end_s in spans(run, rank, BACKWARD)])


def moments_before(run: Run) -> list[int]:
    """By rank: how many moments there were before each collective started, added up.

    Further moments, which student code could mark as well, only make it more.
    """
    found = []
    for rank in range(run.world_size):
        known = moments(run, rank)
        found.append(sum(bisect_left(known, call.start_s) for call in collectives(run, rank)))
    return found


def calls_by_step(run: Run | None, rank: int) -> list[list[Call]]:
    """A rank's collectives; the start of a backward ends the previous step."""
    if run is None:
        return []
    starts = [start_s for start_s, _ in spans(run, rank, BACKWARD)]
    steps: list[list[Call]] = [[] for _ in starts or [0]]
    for call in collectives(run, rank):
        step = sum(call.start_s >= start_s for start_s in starts)
        steps[max(step - 1, 0)].append(call)
    return steps


def sizes_by_step(run: Run | None, rank: int) -> list[list[int]]:
    return [[call.bytes for call in calls] for calls in calls_by_step(run, rank)]


def waits_in_backward(attempt: Attempt) -> Finding | None:
    for rank, call in awaited(attempt):
        if call.op == "all_reduce" and in_backward(attempt.run, rank):
            return Finding(
                f"rank {rank}",
                "waits for an all-reduce before its backward has ended: start it with "
                "async_op=True and wait in finish()",
                call.source,
            )
    return None


def waits_for_the_second_model(attempt: Attempt) -> Finding | None:
    """In finish(), because until that has returned no rank waits for the second model."""
    for rank, call in awaited(attempt):
        if any(start <= call.start_s <= end for start, end in spans(attempt.run, rank, SECOND)):
            return Finding(
                f"rank {rank}",
                "waits in finish() for an all-reduce of another model, which another BucketedDDP "
                "started: keep what is in flight in the instance (self), not in the class or a "
                "global variable",
                call.source,
            )
    return None


def awaited(attempt: Attempt) -> list[tuple[int, Call]]:
    """(rank, call) of each rank that waits for a collective of the student's, in a hang."""
    run, error = attempt.run, attempt.error
    if run is None or not isinstance(error, DeadlockError):
        return []
    waiting = [row.rank for row in error.table if row.state == "waiting"]
    return [
        (rank, call)
        for rank in waiting
        for call in run.calls
        if call.rank == rank and call.end_s is None and call.waited and is_students(call)
    ]


def in_backward(run: Run | None, rank: int) -> bool:
    """Whether a gradient has arrived since the last backward that ended."""
    arrived = max((at for at, _ in spans(run, rank, GRADIENT)), default=0.0)
    return arrived > max((end_s for _, end_s in spans(run, rank, BACKWARD)), default=0.0)


def uses_none(attempt: Attempt) -> Finding | None:
    """A rank failed in backward, which marks each gradient that has arrived."""
    error, run = attempt.error, attempt.run
    if not isinstance(error, RankError) or not re.search(NONE_AS_TENSOR, error.message):
        return None
    arrived, each_step = len(spans(run, error.rank, GRADIENT)), len(trainable(build(attempt.case)))
    if arrived % each_step == 0:
        return None
    evidence = f"{error.message}; {error.source}"
    if arrived > each_step:
        mistake = (
            "uses None as a tensor while gradients are still missing, but not in its first step: "
            "does finish() reset all counts, and are hooks registered only once, in __init__?"
        )
        return Finding(f"rank {error.rank}", mistake, evidence)
    return Finding(
        f"rank {error.rank}",
        "uses None as a tensor while gradients are still missing: a bucket may start only when "
        "each of its gradients is in .grad, and they arrive in any order, so does it count them? "
        "Other causes: a hook of register_hook, which runs before .grad is set, or a lambda made "
        "in a loop, which sees the loop's last bucket",
        evidence,
    )


@on_each_rank
def fewer_in_the_second_step(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    wanted, steps = case.params["buckets"], sizes_by_step(attempt.run, rank)
    if sorted(steps[0]) != sorted(wanted) or len(steps[1]) >= len(wanted):
        return None
    return (
        "starts fewer all-reduces in its second step than in its first: does finish() reset all "
        "that the next backward needs?",
        f"{len(steps[1])}, not {len(wanted)}",
    )


@on_each_rank
def wrong_buckets(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    """By the bytes of the first step's collectives."""
    got, wanted = sizes_by_step(attempt.run, rank)[0], case.params["buckets"]
    if sorted(got) == sorted(wanted):
        return None
    return describe(got, case), f"bytes of its collectives: {got}, expected {wanted}"


def describe(got: list[int], case: Case) -> str:
    """The mistakes whose buckets these are, or else what can be seen of them."""
    mistakes = case.params["wrong_buckets"].items()
    if made_by := [mistake for mistake, sizes in mistakes if sorted(got) == sorted(sizes)]:
        return "; or ".join(made_by)
    wanted = case.params["buckets"]
    if not got:
        return "starts no all-reduce: are the hooks registered, and does a full bucket start one?"
    if not Counter(got) - Counter(wanted):
        return "starts no all-reduce for some of its buckets"
    if sum(got) != sum(wanted):
        more = "more" if sum(got) > sum(wanted) else "fewer"
        return f"reduces {more} bytes than the trainable parameters have"
    one_each = [parameter.nbytes for parameter in trainable(build(case))]
    if any(size > case.params["cap_bytes"] and size not in one_each for size in got):
        return "overfills a bucket: close it before a parameter that would exceed the cap"
    return "does not fill its buckets as in the spec: each takes what fits, up to the cap inclusive"


@on_each_rank
def right_in_wrong_places(output: Any, expected: Any) -> MistakeText:
    wanted, got = expected["step 0"], output["step 0"]
    if equal(wanted["gradients"], got["gradients"]):
        return None
    if not equal(wanted["summary"], got["summary"]):
        return None
    return (
        "has the right means in the wrong places: copy each part of a bucket back to the parameter "
        "that it came from, with its elements in the same order"
    )


@on_each_rank
def starts_late(rank: int, attempt: Attempt) -> MistakeText:
    """The first all-reduce that starts after the gradient that follows those of its bucket."""
    run, case = attempt.run, attempt.case
    if run is None:
        return None
    known, each_step = moments(run, rank), len(trainable(build(case))) + 1
    in_time = sorted(zip(case.params["buckets"], case.params["complete_after"], strict=True))
    for step, calls in enumerate(calls_by_step(run, rank)):
        by_size = sorted(calls, key=lambda call: (call.bytes, call.start_s))
        for call, (size, after) in zip(by_size, in_time, strict=False):
            arrived = bisect_left(known, call.start_s) - step * each_step
            if call.bytes == size and arrived > after:
                when = f"{arrived} gradients" if arrived < each_step else "the end of backward"
                return (
                    "starts an all-reduce later than in the hook that completes its bucket",
                    f"step {step}: {size:,} B, complete after {after} gradients, start after "
                    f"{when}; {call.source}",
                )
    return None
