"""What goes wrong in a resumed training, by its name: by its steps, its loss curve, its bytes."""

from __future__ import annotations

from typing import Any

from autograder.exercise import Attempt, Finding
from autograder.exercise.compare import equal
from autograder.exercises.resumed_lives import last_life

TOLERANCE = 1e-6
LOST = {
    "model": "does not bring the parameters back",
    "optimizer": "loses the optimizer's state: Adam starts with empty averages",
    "scheduler": "loses the scheduler's state: the learning rate starts over",
    "stream": "loses the position in the data: it sees the first batches again",
    "scaler": "loses the loss scale: it starts over, and steps overflow again",
    "torch": "does not restore torch's random state: dropout draws other numbers",
    "python": "does not restore Python's random state: random.random() draws other numbers",
    "both random states": "restores no random state: dropout and random.random() draw other "
    "numbers",
    "rank 0's random states": "gives all ranks the random states of one: each rank has its own",
    "last rank's random states": "gives all ranks the random states of one: each rank has its own",
}


def finding(mistake: str, evidence: str = "") -> Finding:
    return Finding("train_resumable", mistake, evidence, anyone="train_resumable")


def output_of(attempt: Attempt) -> dict[str, Any] | None:
    output = attempt.outputs[0]
    return output if attempt.error is None and isinstance(output, dict) else None


def wrong_steps(attempt: Attempt) -> Finding | None:
    output = output_of(attempt)
    if output is None:
        return None
    wanted, last = attempt.expected[0]["steps"][0], attempt.case.params["steps"]
    for got in output["steps"]:
        if got == wanted:
            continue
        first, due = (got or [last])[0], (wanted or [last])[0]
        evidence = f"{got}, expected {wanted}"
        if first == 0 and due != 0:
            return finding("starts over at step 0: go on from the newest checkpoint", evidence)
        if 0 < abs(first - due) < attempt.case.params["every"]:
            return finding(
                "goes on at the wrong step after a restart: after step s, s + 1 steps are done",
                evidence,
            )
        return finding("runs other steps after a restart than those that are left", evidence)
    return None


def lost_something(attempt: Attempt) -> Finding | None:
    """Names what was not restored by the loss curve that comes of it."""
    output = output_of(attempt)
    if output is None or equal(attempt.expected[0]["losses"], output["losses"], TOLERANCE):
        return None
    for slip, mistake in LOST.items():
        wrong = last_life(attempt.case, attempt.inputs[0], slip)["losses"]
        if equal([wrong] * len(output["losses"]), output["losses"], TOLERANCE):
            return finding(mistake)
    return finding("restores too little: the losses after a restart are not those of a run without")


def not_bit_for_bit(attempt: Attempt) -> Finding | None:
    output = output_of(attempt)
    if output is None or output["bit for bit"]:
        return None
    return finding("comes near the loss curve, but not to the bit: something was rounded or lost")


def saves_too_much(attempt: Attempt) -> Finding | None:
    for spent in attempt.spent:
        if spent.ranks_over:
            return finding(
                "saves what all ranks have alike more than once: let rank 0 write it, and each "
                "rank only what is its own",
                f"{spent.used[0]:,} bytes, {spent.limit[0]:,} are enough",
            )
    return None
