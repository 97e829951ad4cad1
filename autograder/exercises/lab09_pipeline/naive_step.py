"""One batch through the stages and back; one rank computes at a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autograder.exercise import NAMED_MISTAKES, Case, OnRanks, Plain
from autograder.exercises.lab09_pipeline import shared
from autograder.exercises.lab09_pipeline.shared import (
    Plan,
    Stage,
    contents,
    gradients_of,
    shape_of,
)


def naive_case(ranks: int, samples: int, width: int, tokens: int = 0) -> Case:
    """``tokens``: if not 0, each sample is a sequence of this length."""
    sequences = f" of {tokens} tokens" if tokens else ""
    name = f"{ranks} rank{'s' * (ranks > 1)}, a batch of {samples}{sequences}, width {width}"
    shape = [samples, tokens, width] if tokens else [samples, width]
    return Case(name, ranks, {"micro_batches": 1, "shape": shape})


def drive(subject: Any, given: Any, case: Case) -> Plain:
    stage = Stage(*given["weights"][0])
    x, target = (None if end is None else end[0] for end in (given["inputs"], given["targets"]))
    computed: list[Tensor] = []
    stage.bias.register_hook(computed.append)
    before = contents(stage)
    loss = subject(stage, x, target, shape_of(case))
    return {
        "loss": loss,
        "gradients": [gradients_of(stage)],
        "had_gradients": [bool(computed)],
        "changed": ["parameters"] * (contents(stage) != before),
    }


def in_turn(case: Case) -> Plan:
    return [[["F", rank, 0], ["B", rank, 0]] for rank in range(case.world_size)]


def one_each_way(case: Case) -> list[int]:
    """Messages by rank: activations to the next rank, their gradient to the previous one."""
    last = case.world_size - 1
    return [(rank < last) + (rank > 0) for rank in range(case.world_size)]


EXERCISE = OnRanks(
    points=3,
    cases=(naive_case(1, 4, 4), naive_case(4, 2, 6)),
    inputs=shared.draw_model,
    drive=drive,
    tolerance=shared.TOLERANCE,
    budgets=(
        shared.sends("sends one tensor to each neighbor", one_each_way),
        shared.waits_for_messages,
    ),
    allows=shared.P2P_ONLY,
    rules=(shared.changes_arguments,),
    signs=(
        shared.message_never_arrives(in_turn),
        shared.sends_none,
        shared.no_gradients,
        NAMED_MISTAKES,
        shared.unwaited,
    ),
)
