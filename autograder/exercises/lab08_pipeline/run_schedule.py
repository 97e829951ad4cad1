"""A function that executes a schedule on real ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, OnRanks, Plain, equal
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab08_pipeline import shared
from autograder.exercises.lab08_pipeline.shared import Plan, Stage, gradients_of
from shardlab.simulate.pipeline import gpipe, interleaved_one_f_one_b, one_f_one_b


def run_case(name: str, schedule: Sequence[Sequence[Sequence[Any]]]) -> Case:
    plan: Plan = [[list(action) for action in actions] for actions in schedule]
    ranks = len(plan)
    params = {
        "plan": plan,
        "chunks": (1 + max(stage for actions in plan for _, stage, _ in actions)) // ranks,
        "micro_batches": 1 + max(k for _, _, k in plan[0]),
        "samples": 2,
        "width": 4,
    }
    return Case(name, ranks, params)


def all_forwards_first(*devices: tuple[list[int], list[int]]) -> Plan:
    """``devices``: for each, the order of its forwards and that of its backwards; any is legal."""
    return [
        [[kind, stage, k] for kind, order in zip("FB", orders, strict=True) for k in order]
        for stage, orders in enumerate(devices)
    ]


class RecordingStage(Stage):
    """A stage that records its forwards, and its backwards as their gradients arrive."""

    number: int
    upcoming: list[int]  # micro-batches, in the order of their forwards
    executed: list[Any]

    def forward(self, x: Tensor) -> Tensor:
        k = self.upcoming.pop(0) if self.upcoming else -1
        self.executed.append(["F", self.number, k])
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda _: self.executed.append(["B", self.number, k]))
        return y


def drive(subject: Any, given: Any, case: Case) -> Plain:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    plan = [[tuple(action) for action in actions] for actions in case.params["plan"]]
    executed: list[Any] = []
    stages = {}
    for chunk, weights in enumerate(given["weights"]):
        number = rank + chunk * ranks
        stages[number] = stage = RecordingStage(*weights)
        stage.upcoming = [k for kind, s, k in plan[rank] if (kind, s) == ("F", number)]
        stage.number, stage.executed = number, executed
    ends = (None if end is None else list(end) for end in (given["inputs"], given["targets"]))
    loss = subject(plan, stages, *ends, (case.params["samples"], case.params["width"]))
    return {
        "loss": loss,
        "executed": executed,
        "gradients": [gradients_of(stage) for stage in stages.values()],
    }


def tensors_sent(case: Case) -> list[int]:
    """By rank: every activation except the last stage's, every gradient except the first's."""
    plan: Plan = case.params["plan"]
    ends = [["F", len(plan) * case.params["chunks"] - 1], ["B", 0]]
    return [sum(action[:2] not in ends for action in actions) for actions in plan]


def waits_in_send(attempt: Attempt) -> Finding | None:
    for row in shared.waiting_in(attempt):
        if row.call.startswith("send"):
            return Finding(
                f"rank {row.rank}",
                "waits in send for a rank that is not receiving: send with isend, go on, and wait "
                "for all sends at the end",
                row.source,
            )
    return None


@on_each_rank
def wrong_order(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    wanted, executed = attempt.expected[rank]["executed"], output["executed"]
    if executed == wanted or all(kind == "F" for kind, *_ in executed):
        return None  # without any backward: see shared.no_gradients
    pairs = enumerate(zip(executed, wanted, strict=False))
    different = [f"action {i} is {a}, it should be {b}" for i, (a, b) in pairs if a != b]
    mistake = "does not follow the schedule: run the actions of schedule[rank] in order"
    return mistake, different[0] if different else ""


@on_each_rank
def confuses_messages(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Wrong gradients, and no message has a tag."""
    right = equal(attempt.expected[rank]["gradients"], output["gradients"], shared.NEAR)
    calls = attempt.run.calls if attempt.run else []
    if right or attempt.case.world_size == 1 or any(call.tag for call in calls):
        return None
    return "confuses messages: two ranks exchange several at a time, so give each its own tag"


EXERCISE = OnRanks(
    points=6,
    cases=(
        run_case("GPipe, 2 ranks, 3 micro-batches", gpipe(2, 3)),
        run_case("1F1B, 4 ranks, 5 micro-batches", one_f_one_b(4, 5)),
        run_case("2 ranks of 2 chunks, 4 micro-batches", interleaved_one_f_one_b(2, 4, 2)),
        run_case(
            "2 ranks, micro-batches in other orders",
            all_forwards_first(([0, 1, 2], [1, 2, 0]), ([2, 0, 1], [2, 1, 0])),
        ),
    ),
    inputs=shared.draw_model,
    drive=drive,
    tolerance=shared.NEAR,
    budgets=(shared.sends("sends each activation and each gradient once", tensors_sent),),
    allows=shared.P2P_ONLY,
    signs=(
        shared.all_wait_in_recv,
        waits_in_send,
        shared.no_input_gradient,
        wrong_order,
        shared.no_gradients,
        NAMED_MISTAKES,
        confuses_messages,
    ),
)
