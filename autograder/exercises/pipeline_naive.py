"""Lab 08: one batch through the stages and back, one rank at work at a time."""

from __future__ import annotations

from typing import Any

import torch

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercises.outputs import finished
from autograder.exercises.pipeline import (
    NEAR,
    P2P_ONLY,
    Stage,
    all_wait_in_recv,
    draw_model,
    gradients_by_rank,
    gradients_of,
    loss_of_all,
    no_gradients,
    no_input_gradient,
    sends,
    wrong_pass,
)
from autograder.guest.library import borrowed, on_its_own


def naive_case(ranks: int, samples: int, width: int, hidden: bool = False) -> Case:
    name = f"{ranks} rank{'s' * (ranks > 1)}, a batch of {samples}, width {width}"
    params = {"micro_batches": 1, "samples": samples, "width": width}
    return Case(name, ranks, params, hidden)


def drive_naive(subject: Any, given: Any, case: Case) -> Plain:
    stage = Stage(*given["weights"][0])
    x, target = (None if end is None else end[0] for end in (given["inputs"], given["targets"]))
    with on_its_own():
        loss = subject(stage, x, target, (case.params["samples"], case.params["width"]))
    if isinstance(loss, torch.Tensor):
        loss = loss.detach()
    return {"loss": loss, "gradients": [gradients_of(stage)]}


def expect_naive(case: Case, inputs: Any) -> list[Plain]:
    expected: list[Plain] = [
        {"gradients": gradients} for gradients in gradients_by_rank(case, inputs)
    ]
    expected[-1]["loss"] = loss_of_all(inputs)
    return expected


def one_each_way(case: Case) -> list[int]:
    """To the next rank its activations, to the one before their gradient."""
    last = case.world_size - 1
    return [(rank < last) + (rank > 0) for rank in range(case.world_size)]


def no_loss(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        if "loss" in attempt.expected[rank] and output["loss"] is None:
            return Finding("the last rank", "returned no loss", anyone="the last rank")
    return None


NAIVE_STEP = Exercise(
    name="pipeline.naive_step",
    points=3,
    cases=(
        naive_case(2, 3, 4),
        naive_case(4, 2, 6),
        naive_case(3, 5, 3, hidden=True),
        naive_case(1, 4, 4, hidden=True),
    ),
    draw=draw_model,
    drive=drive_naive,
    expect=expect_naive,
    tolerance=NEAR,
    budgets=(sends("sends one tensor to each neighbour", one_each_way),),
    allows=P2P_ONLY,
    diagnoses=(
        borrowed,
        all_wait_in_recv,
        no_input_gradient,
        no_gradients,
        wrong_pass,
        no_loss,
    ),
)
