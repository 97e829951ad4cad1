"""What the recorded calls show about an answer's buckets: start times, bytes, mistakes."""

from bisect import bisect_left
from collections import Counter

import torch

from autograder.exercise import Attempt, Case, Finding
from autograder.exercise.signs import MistakeText, is_over, on_each_rank, raises
from shardlab.errors import DeadlockError
from shardlab.run import Call, Run

GRADIENT, BACKWARD, SECOND = "gradient", "backward", "second model"  # labels in the log
BEFORE = "gradients before all-reduces"  # heading of a budget
BARRIER_DTYPE = torch.uint8  # of the drive's own collectives; no gradient has it


def collectives(run: Run, rank: int) -> list[Call]:
    """The student's for the first model, in the order in which they started."""
    second = spans(run, rank, SECOND)
    return [
        call
        for call in run.calls_of(rank)
        if call.op == "all_reduce" and is_students(call)
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
        for call in run.calls_of(rank)
        if call.end_s is None and call.waited and is_students(call)
    ]


def in_backward(run: Run | None, rank: int) -> bool:
    """Whether a gradient has arrived since the last backward that ended."""
    arrived = max((at for at, _ in spans(run, rank, GRADIENT)), default=0.0)
    return arrived > max((end_s for _, end_s in spans(run, rank, BACKWARD)), default=0.0)


uses_none = raises(
    "'NoneType' object has no attribute '(flatten|view|reshape|numel|ravel|clone|detach|shape)",
    "uses a .grad that is still None: a bucket may start only when each of its gradients is there, "
    "and they arrive in any order, so count them, and reset the counts in finish(). Other causes: "
    "hooks that are registered again in each step; register_hook, which runs before .grad is set; "
    "a lambda made in a loop, which sees the loop's last bucket",
    quoted=True,
)


@on_each_rank
def wrong_buckets(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    wanted = case.params["buckets"]
    for step, calls in enumerate(calls_by_step(attempt.run, rank)):
        got = [call.bytes for call in calls]
        if sorted(got) == sorted(wanted):
            continue
        mistake = (
            "does not fill its buckets as in the spec: take all trainable parameters in reverse "
            "order, a tied one once; a bucket takes what fits, up to the cap inclusive"
        )
        if not Counter(got) - Counter(wanted):
            mistake = (
                "starts no all-reduce for some of its buckets: does finish() reset all that the "
                "next backward needs, and are parameters left out that do not require a gradient?"
            )
        if got == [sum(wanted)]:
            mistake = (
                "puts all gradients into one bucket: compare their bytes (nbytes), not their "
                "numbers of elements, with cap_bytes"
            )
        if sorted(got) == sorted(case.params["buckets below the cap"]):
            mistake = "begins a new bucket where one would have exactly cap_bytes: that fits"
        return mistake, f"bytes of its collectives in step {step}: {got}, expected {wanted}"
    return None


@on_each_rank
def starts_late(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    """Where the budget shows that it does: the first call that does not start at its moment."""
    if attempt.run is None or rank not in is_over(attempt, BEFORE):
        return None
    buckets, known = case.params["buckets"], moments(attempt.run, rank)
    by_step = calls_by_step(attempt.run, rank)
    for step, calls in enumerate(by_step):
        each_step = len(known) // len(by_step)
        for call in calls:
            of_size = zip(buckets, case.params["complete_after"], strict=True)
            due = max(after for size, after in of_size if size == call.bytes)
            arrived = bisect_left(known, call.start_s) - step * each_step
            if arrived > due:
                return (
                    "starts an all-reduce too late: start it in the hook of the gradient that "
                    "completes its bucket, even if an earlier bucket is not complete",
                    f"in step {step}: its bucket was complete after {due} gradients, and {arrived} "
                    f"of {each_step - 1} had arrived; {call.source}",
                )
    return None
