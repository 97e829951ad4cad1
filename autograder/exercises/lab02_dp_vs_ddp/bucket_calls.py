"""What the recorded calls show about an answer's buckets: start times, bytes, mistakes."""

from typing import Any

import torch

from autograder.exercise import Attempt, Case, Finding, equal
from autograder.exercise.signs import MistakeText, on_each_rank, raises
from autograder.exercises.lab02_dp_vs_ddp.shared import (
    build,
    parameter_bytes,
    steps_in,
    trainable,
)
from shardlab.errors import DeadlockError, RunTimeout
from shardlab.run import Call, Run

GRADIENT, BACKWARD = "gradient", "backward"  # labels in the log
BARRIER_DTYPE = torch.uint8  # of the drive's own collectives; no gradient has it


def collectives(run: Run, rank: int) -> list[Call]:
    """The student's, in the order in which they started."""
    ours = str(BARRIER_DTYPE).removeprefix("torch.")
    calls = (call for call in run.calls if call.rank == rank and call.op == "all_reduce")
    return [call for call in calls if call.dtype != ours]


def spans(run: Run, rank: int, label: str) -> list[tuple[float, float]]:
    blocks = (block for block in run.traffic.blocks if block.rank == rank and block.label == label)
    return [(block.start_s, block.end_s) for block in blocks]


def started_early(run: Run) -> list[int]:
    """By rank: how many collectives started before the last gradient of their backward."""
    early = [0] * run.world_size
    for rank in range(run.world_size):
        ready = [at for at, _ in spans(run, rank, GRADIENT)]
        for start_s, end_s in spans(run, rank, BACKWARD):
            last_s = max((at for at in ready if start_s <= at <= end_s), default=0.0)
            early[rank] += sum(start_s <= call.start_s < last_s for call in collectives(run, rank))
    return early


def sizes_by_step(run: Run | None, rank: int) -> list[list[int]]:
    """Bytes of a rank's collectives, by step; the start of a backward ends the previous step."""
    if run is None:
        return []
    starts = [start_s for start_s, _ in spans(run, rank, BACKWARD)]
    steps: list[list[int]] = [[] for _ in starts or [0]]
    for call in collectives(run, rank):
        step = sum(call.start_s >= start_s for start_s in starts)
        steps[max(step - 1, 0)].append(call.bytes)
    return steps


def waits_in_a_hook(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, DeadlockError) or any(
        row.state != "waiting" or not row.call.startswith("all_reduce (collective")
        for row in error.table
    ):
        return None
    return Finding(
        "rank 0",
        "waits for its collective inside a hook, so backward pauses until every other rank "
        "joins: start it with async_op=True and wait in finish()",
        error.table[0].source,
    )


def never_full(attempt: Attempt) -> Finding | None:
    """Of buckets filled with all parameters, only those without a frozen one were launched."""
    launched = sorted(attempt.case.params["buckets_without_frozen"])
    if not launched or isinstance(attempt.error, DeadlockError):
        return None
    for rank in range(attempt.case.world_size):
        steps = sizes_by_step(attempt.run, rank)
        if steps and sorted(steps[0]) == launched:
            return Finding(
                f"rank {rank}",
                "waits for the gradient of a frozen parameter, which never comes, and so never "
                "launches its bucket: leave out parameters that do not require a gradient",
                attempt.error.headline if attempt.error else "",
            )
    return None


no_gradient_yet = raises(
    "'NoneType' object has no attribute '(flatten|view|reshape|numel|ravel|clone|detach|shape)",
    "reads a .grad that is still None: does each hook know its own bucket (use partial), and does "
    "it run when .grad is ready (register_post_accumulate_grad_hook)?",
    quoted=True,
)


def works_once(attempt: Attempt) -> Finding | None:
    """The first step is right, the second lacks collectives, whether or not it ends in an error."""
    wanted = attempt.case.params["buckets"]
    for rank in range(attempt.case.world_size):
        steps = sizes_by_step(attempt.run, rank)
        entered_the_next = len(steps) > 1 and not isinstance(attempt.error, RunTimeout)
        if entered_the_next and sorted(steps[0]) == sorted(wanted) and len(steps[1]) < len(wanted):
            return Finding(
                f"rank {rank}",
                "works only in the first step: finish() has to reset the buckets for the next "
                "backward",
                f"{len(steps[1])} collectives in the second step, not {len(wanted)}",
            )
    return None


@on_each_rank
def wrong_buckets(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """By the bytes of the first step's collectives."""
    got, wanted = sizes_by_step(attempt.run, rank)[0], attempt.case.params["buckets"]
    if sorted(got) == sorted(wanted):
        return None
    return describe(got, attempt.case), f"bytes of its collectives: {got}, expected {wanted}"


def describe(got: list[int], case: Case) -> str:
    params, trained_bytes = case.params, sum(case.params["buckets"])
    one_each = [parameter.nbytes for parameter in trainable(build(case))]
    if not got:
        return "starts no collective: are the hooks registered, and does a full bucket start one?"
    if sorted(got) == sorted(one_each):
        return "makes one collective for each parameter: send a bucket's gradients in one tensor"
    if sum(got) == parameter_bytes(case, by_name=True, trained=True) > trained_bytes:
        return "counts a tied parameter twice: module.parameters() yields it once, its layers twice"
    if sum(got) == parameter_bytes(case) > trained_bytes:
        return "puts frozen parameters into its buckets: they have no gradient to send"
    if sum(got) != trained_bytes:
        return "reduces more or fewer bytes than the trainable parameters have"
    if len(got) == 1:
        return (
            "puts everything into one bucket, so nothing can start early: compare the bytes of a "
            "bucket with the cap"
        )
    if sorted(got) == sorted(params["forward_buckets"]):
        return "fills its buckets in forward order: begin with the last, whose gradients come first"
    if any(size > params["cap_bytes"] and size not in one_each for size in got):
        return "overfills a bucket: close it before a parameter that would exceed the cap"
    return "does not fill its buckets as in the spec: each takes what still fits under the cap"


@on_each_rank
def right_in_wrong_places(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    wanted, got = attempt.expected[rank]["step 0"], output["step 0"]
    if equal(wanted["gradients"], got["gradients"]):
        return None
    if not equal(wanted["summary"], got["summary"]):
        return None
    return (
        "copies means back to the wrong parameters: split a bucket in the order in which it was "
        "concatenated"
    )


@on_each_rank
def starts_late(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    run, least = attempt.run, steps_in(attempt.case) * (len(attempt.case.params["buckets"]) - 1)
    if run is None or (early := started_early(run)[rank]) >= least:
        return None
    if collectives(run, rank) and not early:
        return (
            "starts its collectives when backward has finished, so nothing overlaps: start each in "
            "the hook that completes its bucket"
        )
    return (
        "starts some buckets late: every bucket but the last gradient's is complete before that "
        "gradient arrives",
        f"{early} of {least} collectives before the last gradient",
    )
