"""Lab 05: references against plain training, the minimum number of units, other right answers."""

from __future__ import annotations

from itertools import combinations

import cloudpickle
import pytest
import torch

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab05_fsdp import accumulate, nested_model, wrap
from autograder.exercises.lab05_fsdp.hidden import accumulate as hidden_accumulate
from autograder.exercises.lab05_fsdp.hidden import wrap as hidden_wrap
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "05_fsdp"
SEED = 11
BY_ANSWER = {exercise.answer: exercise for exercise in exercises.of_lab(LAB)}
WRAP, ACCUMULATE = BY_ANSWER["wrap"], BY_ANSWER["accumulate"]


def whole_batch(batches):
    return [torch.cat(side) for side in zip(*batches, strict=True)]


def points_of(exercise, source):
    subject = planted.subjects(LAB, planted.solution(LAB) | {exercise.answer: source})
    return decide(exercise, cloudpickle.dumps(subject[exercise.answer]), SEED).points


# ---- references ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WRAP.cases, ids=lambda case: case.name)
def test_the_reference_of_wrap_trains_on_all_batches_together(case):
    inputs = inputs_of(WRAP, case)
    model = nested_model.nested_model(case.params, inputs[0]["parameters"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(wrap.STEPS):
        optimizer.zero_grad()
        batch = whole_batch([given["batches"][step] for given in inputs])
        shared.loss_of(model, batch).backward()
        optimizer.step()
    expected = WRAP.expect(case, inputs)
    for name, parameter in model.named_parameters():
        joined = torch.cat([own["shards"][name] for own in expected])
        torch.testing.assert_close(joined, parameter.detach(), rtol=2e-6, atol=2e-6)


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


# ---- wrap: what its budgets allow ---------------------------------------------------------------


def own_bytes(module):
    return 4 * sum(each.numel() for each in module.parameters(recurse=False))


def unit_sizes(model, chosen):
    """Bytes of each chosen unit, and of the root."""
    sizes = []

    def rest(module):
        total = own_bytes(module) + sum(rest(child) for child in module.children())
        if module in chosen or module is model:
            sizes.append(total)
            return 0
        return total

    rest(model)
    return sizes


@pytest.mark.parametrize("case", WRAP.cases, ids=lambda case: case.name)
def test_no_smaller_set_of_units_fits(case):
    """Tries every smaller set; the reference is greedy and splits off the largest child first."""
    model, limit = nested_model.on_meta(case), case.params["unit_bytes"]
    modules = [each for each in model.modules() if each is not model]
    assert max(map(own_bytes, modules)) <= limit, "a layer cannot be split"
    least = hidden_wrap.units_in(case)
    for fewer in range(least - 1):
        for chosen in combinations(modules, fewer):
            assert max(unit_sizes(model, set(chosen))) > limit
    if least < 6:  # otherwise there are too many sets
        assert any(
            max(unit_sizes(model, set(chosen))) <= limit
            for chosen in combinations(modules, least - 1)
        )


@pytest.mark.parametrize("case", WRAP.cases, ids=lambda case: case.name)
def test_the_budgets_exclude_simple_choices(case):
    model, limit = nested_model.on_meta(case), case.params["unit_bytes"]
    least = hidden_wrap.units_in(case)
    assert (max(unit_sizes(model, set())) > limit) == (least > 1), "one unit"
    layers = [each for each in model.modules() if own_bytes(each) and not [*each.children()]]
    assert len(layers) > least, "a unit for each layer has more messages"
    blocks = {each for each in model if isinstance(each, nested_model.Block)}
    sizes = unit_sizes(model, blocks)
    is_right = max(sizes) <= limit and len(sizes) == least
    assert is_right == (case is WRAP.cases[0]), "a unit for each block fits the first case only"


def test_levels_counts_nested_units():
    assert wrap.levels([(1, 2)]) == 2
    assert wrap.levels([(1, 2), [(1, 2)], [[(2, 1)]]]) == 4


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

PLANS_FIRST = """
def wrap(model, unit_bytes):
    rest, units = {}, []
    for module in reversed(list(model.modules())):
        left = sorted((rest[child], i, child) for i, child in enumerate(module.children()))
        own = sum(4 * p.numel() for p in module.parameters(recurse=False))
        while own + sum(size for size, _, _ in left) > unit_bytes:
            units.append(left.pop()[2])
        rest[module] = own + sum(size for size, _, _ in left)
    for unit in units:
        fully_shard(unit)
    fully_shard(model)
    return torch.optim.SGD(list(model.parameters()), 0.1, foreach=False)
"""
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
    ("exercise", "source"),
    [
        pytest.param(WRAP, PLANS_FIRST, id="plans first"),
        pytest.param(ACCUMULATE, DIVIDES_AT_THE_END, id="divides at the end"),
        pytest.param(ACCUMULATE, ROOT_STAYS_WHOLE, id="the root stays whole after forward"),
    ],
)
def test_another_right_answer_earns_full_marks(exercise, source):
    assert points_of(exercise, source) == exercise.points
