"""Lab 08: what carries a schedule out on real ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercises.outputs import finished
from autograder.exercises.pipeline import (
    NEAR,
    P2P_ONLY,
    Plan,
    Stage,
    all_wait_in_recv,
    differs,
    draw_model,
    gradients_by_rank,
    gradients_of,
    loss_of_all,
    no_gradients,
    no_input_gradient,
    scaled,
    sends,
    wrong_pass,
)
from autograder.guest.library import borrowed, on_its_own
from shardlab.errors import DeadlockError
from shardlab.simulate.pipeline import (
    Action,
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
)


def run_case(name: str, schedule: Schedule, hidden: bool = False) -> Case:
    plan: Plan = [[list(action) for action in actions] for actions in schedule]
    ranks = len(plan)
    params = {
        "plan": plan,
        "chunks": (1 + max(stage for actions in plan for _, stage, _ in actions)) // ranks,
        "micro_batches": 1 + max(k for _, _, k in plan[0]),
        "samples": 2,
        "width": 4,
    }
    return Case(name, ranks, params, hidden)


def all_forwards_first(*devices: tuple[list[int], list[int]]) -> Schedule:
    """For each device the order of its forwards and that of its backwards: any is legal."""
    return [
        [
            Action(kind, stage, k)
            for kind, order in (("F", forwards), ("B", backwards))
            for k in order
        ]
        for stage, (forwards, backwards) in enumerate(devices)
    ]


class Watched(Stage):
    """A stage that notes what is done with it, and when its gradient is made."""

    def __init__(
        self, weight: Tensor, bias: Tensor, number: int, upcoming: list[int], did: list[Any]
    ) -> None:
        super().__init__(weight, bias)
        self.number, self.upcoming, self.did = number, upcoming, did

    def forward(self, x: Tensor) -> Tensor:
        k = self.upcoming.pop(0) if self.upcoming else -1
        self.did.append(["F", self.number, k])
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda _: self.did.append(["B", self.number, k]))
        return y


def drive_run(subject: Any, given: Any, case: Case) -> Plain:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    plan = [[tuple(action) for action in actions] for actions in case.params["plan"]]
    did: list[Any] = []
    stages = {}
    for chunk, weights in enumerate(given["weights"]):
        number = rank + chunk * ranks
        upcoming = [k for kind, stage, k in plan[rank] if (kind, stage) == ("F", number)]
        weight, bias = weights
        stages[number] = Watched(weight, bias, number, upcoming, did)
    ends = (None if end is None else list(end) for end in (given["inputs"], given["targets"]))
    with on_its_own():
        loss = subject(plan, stages, *ends, (case.params["samples"], case.params["width"]))
    return {
        "loss": loss.detach() if isinstance(loss, Tensor) else loss,
        "did": did,
        "gradients": [gradients_of(stage) for stage in stages.values()],
    }


def expect_run(case: Case, inputs: Any) -> list[Plain]:
    by_rank = zip(case.params["plan"], gradients_by_rank(case, inputs), strict=True)
    expected: list[Plain] = [{"did": plan, "gradients": grads} for plan, grads in by_rank]
    expected[-1]["loss"] = loss_of_all(inputs)
    return expected


def across(case: Case) -> list[int]:
    """By rank: each activation but the last stage's, each gradient but the first's."""
    plan: Plan = case.params["plan"]
    ends = [["F", len(plan) * case.params["chunks"] - 1], ["B", 0]]
    return [sum(action[:2] not in ends for action in actions) for actions in plan]


# ---- mistakes by their names --------------------------------------------------------------------


def waits_in_send(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, DeadlockError):
        return None
    for row in error.table:
        if row.state == "waiting" and row.call.startswith("send"):
            return Finding(
                f"rank {row.rank}",
                "waits in send for a rank that is not there to receive: start sends with isend, go "
                "on, and wait for them at the end",
                row.source,
            )
    return None


def other_order(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        wanted, did = attempt.expected[rank]["did"], output["did"]
        if did == wanted:
            continue
        if [each for each in did if each[0] == "F"] == did:
            return None  # no backward at all: said better elsewhere
        at = next((i for i, pair in enumerate(zip(did, wanted, strict=False)) if unlike(pair)), -1)
        evidence = f"action {at} is {did[at]}, it should be {wanted[at]}" if at >= 0 else ""
        return Finding(
            f"rank {rank}",
            "does not follow the schedule: do the actions of schedule[rank], one after the other",
            evidence,
        )
    return None


def unlike(pair: tuple[Any, Any]) -> bool:
    one, other = pair
    return bool(one != other)


def only_the_last(attempt: Attempt) -> Finding | None:
    """Gradients of the micro-batch whose backward came last, alone."""
    if attempt.error or not differs(attempt):
        return None
    m = attempt.case.params["micro_batches"]
    if m == 1:
        return None
    last = {
        stage: k
        for plan in attempt.case.params["plan"]
        for kind, stage, k in plan
        if kind == "B"  # of each stage the one that overwrites all others
    }
    alone = {k: gradients_by_rank(attempt.case, only(k, attempt.inputs)) for k in last.values()}
    ranks = attempt.case.world_size
    for factor in (1, 1 / m):
        part = [
            [
                [factor * grad for grad in alone[last[rank + ranks * chunk]][rank][chunk]]
                for chunk in range(attempt.case.params["chunks"])
            ]
            for rank in range(ranks)
        ]
        if all(equal(part[rank], out["gradients"], NEAR) for rank, out in finished(attempt)):
            mistake = "keeps the last micro-batch's gradients alone: add them up in .grad"
            return Finding("every rank", mistake, anyone="every rank")
    return None


def only(k: int, inputs: Any) -> list[Any]:
    """The same ranks with one micro-batch."""
    alone = [dict(given) for given in inputs]
    alone[0]["inputs"] = alone[0]["inputs"][k : k + 1]
    alone[-1]["targets"] = alone[-1]["targets"][k : k + 1]
    return alone


def mixed_up(attempt: Attempt) -> Finding | None:
    """Wrong gradients where all messages look alike."""
    if attempt.error or attempt.run is None or not differs(attempt):
        return None
    if attempt.case.world_size > 1 and not any(call.tag for call in attempt.run.calls):
        return Finding(
            "every rank",
            "mixes messages up: two ranks exchange several at a time, so give each its own tag",
            anyone="every rank",
        )
    return None


def micro_batches_of(case: Case) -> float:
    return float(case.params["micro_batches"])


RUN_SCHEDULE = Exercise(
    name="pipeline.run_schedule",
    points=6,
    cases=(
        run_case("GPipe, 2 ranks, 3 micro-batches", gpipe(2, 3)),
        run_case("1F1B, 4 ranks, 5 micro-batches", one_f_one_b(4, 5)),
        run_case("2 ranks of 2 chunks, 4 micro-batches", interleaved_one_f_one_b(2, 4, 2)),
        run_case(
            "2 ranks, micro-batches in other orders",
            all_forwards_first(([0, 1, 2], [1, 2, 0]), ([2, 0, 1], [2, 1, 0])),
        ),
        run_case("1 rank, 3 micro-batches", one_f_one_b(1, 3), hidden=True),
        run_case(
            "2 ranks, in yet other orders",
            all_forwards_first(
                ([0, 1, 2, 3], [2, 0, 3, 1]),
                ([3, 1, 0, 2], [1, 3, 2, 0]),
            ),
            hidden=True,
        ),
    ),
    draw=draw_model,
    drive=drive_run,
    expect=expect_run,
    tolerance=NEAR,
    budgets=(sends("sends each activation and each gradient once", across),),
    allows=P2P_ONLY,
    diagnoses=(
        borrowed,
        all_wait_in_recv,
        waits_in_send,
        no_input_gradient,
        other_order,
        no_gradients,
        scaled(micro_batches_of, "adds the micro-batches' losses up: divide each by their number"),
        only_the_last,
        wrong_pass,
        mixed_up,
    ),
)
