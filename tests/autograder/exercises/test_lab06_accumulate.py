"""Lab 06: accumulate against plain training, what its budgets exclude, other right answers."""

from __future__ import annotations

import pytest
import torch

from autograder import exercises
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab05_fsdp import nested_model
from autograder.exercises.lab06_fsdp_in_practice import accumulate
from autograder.exercises.lab06_fsdp_in_practice.hidden import accumulate as hidden_accumulate
from tests.submissions.deciding import inputs_of, points_of

LAB = "06_fsdp_in_practice"
BY_ANSWER = {exercise.answer: exercise for exercise in exercises.of_lab(LAB)}
ACCUMULATE = BY_ANSWER["accumulate"]


def whole_batch(batches):
    return [torch.cat(side) for side in zip(*batches, strict=True)]


# ---- references ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ACCUMULATE.cases, ids=lambda case: case.name)
def test_the_reference_of_accumulate_is_the_gradient_of_all_micro_batches_together(case):
    inputs = inputs_of(ACCUMULATE, case)
    model = nested_model.nested_model(case.params, inputs[0]["parameters"])
    count = case.params["micro_batches"]
    of_first_step = [each for given in inputs for each in given["batches"][:count]]
    shared.loss_of(model, whole_batch(of_first_step)).backward()
    expected = ACCUMULATE.expect(case, inputs)
    for name, parameter in model.named_parameters():
        joined = torch.cat([own["gradients"]["step 0"][name] for own in expected])
        torch.testing.assert_close(joined, parameter.grad, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("case", ACCUMULATE.cases, ids=lambda case: case.name)
def test_wrong_gradients_are_far_from_right_ones_and_from_each_other(case):
    """By more than the order of additions; with one or two micro-batches, some are right."""
    inputs = inputs_of(ACCUMULATE, case)
    right = flat_of(hidden_accumulate.reference(case, inputs))
    reversed_order = [{**given, "batches": given["batches"]} for given in inputs[::-1]]
    again = hidden_accumulate.reference(case, reversed_order)
    assert (flat_of(again) - right).abs().max() < shared.TOLERANCE / 5
    count, n = case.params["micro_batches"], case.world_size
    assert count != n, "otherwise dividing by one is dividing by the other"
    if count > 2:
        wrong = [flat_of(w(case, inputs)) for w in each_mistake()]
        assert all((each - right).abs().max() > 20 * shared.TOLERANCE for each in wrong)


def each_mistake():
    for wrong in hidden_accumulate.MISTAKES.values():
        yield from wrong if isinstance(wrong, tuple) else (wrong,)


def flat_of(outputs):
    by_step = (step for own in outputs for step in own["gradients"].values())
    return torch.cat([each.flatten() for step in by_step for each in step.values()])


# ---- accumulate: what its budgets allow ---------------------------------------------------------


@pytest.mark.parametrize("case", ACCUMULATE.cases, ids=lambda case: case.name)
def test_the_budgets_of_memory_exclude_whole_gradients_and_whole_parameters(case):
    if not accumulate.steps_of(case, accumulate.MEMORY):
        return
    whole, n = sum(accumulate.unit_bytes(case)), case.world_size
    shards = accumulate.shards(case)
    assert shards == 2 * whole / n
    assert whole / n + whole > 1.05 * shards, "whole gradients between micro-batches"
    # Units that do not reshard after forward, and shards of parameters and gradients.
    assert shards + whole > 1.05 * accumulate.shards_and_units(case), "whole parameters"


# ---- other right answers ------------------------------------------------------------------------

DIVIDES_AT_THE_END = """
def accumulate(model, micro_batches, loss_of, save):
    from torch.distributed.fsdp import FSDPModule

    units = [each for each in model.modules() if isinstance(each, FSDPModule)]

    def switch(on):
        for unit in units:
            unit.set_requires_gradient_sync(on, recurse=False)
            unit.set_reshard_after_backward(on, recurse=False)

    for unit in units:
        unit.set_reshard_after_forward(save == "memory", recurse=False)
    switch(save == "memory")
    *first, last = micro_batches
    for each in first:
        loss_of(model, each).backward()
    switch(True)
    loss_of(model, last).backward()
    for parameter in model.parameters():
        parameter.grad /= len(micro_batches)
"""
ROOT_STAYS_WHOLE = """
def accumulate(model, micro_batches, loss_of, save):
    weight = torch.tensor(1 / len(micro_batches))
    if save == "memory":
        for part in model:
            if hasattr(part, "set_reshard_after_forward"):
                part.set_reshard_after_forward(True)
        for each in micro_batches:
            loss_of(model, each).backward(weight)
        return
    model.set_reshard_after_forward(False)
    model.set_reshard_after_backward(False)
    model.set_requires_gradient_sync(False)
    for each in micro_batches[:-1]:
        loss_of(model, each).backward(weight)
    model.set_reshard_after_backward(True)
    model.set_requires_gradient_sync(True)
    loss_of(model, micro_batches[-1]).backward(weight)
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(DIVIDES_AT_THE_END, id="divides at the end"),
        pytest.param(ROOT_STAYS_WHOLE, id="the root stays whole after forward"),
    ],
)
def test_another_right_answer_earns_full_marks(source):
    assert points_of(LAB, ACCUMULATE, source) == ACCUMULATE.points
