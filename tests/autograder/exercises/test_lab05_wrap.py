"""Lab 05: wrap against plain training, the minimum number of units; the figures of the question."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from autograder import exercises
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab05_fsdp import nested_model, wrap
from autograder.exercises.lab05_fsdp.hidden import wrap as hidden_wrap
from shardlab import launch
from shardlab.estimate import memory
from tests.submissions.deciding import inputs_of, points_of

LAB = "05_fsdp"
BY_ANSWER = {exercise.answer: exercise for exercise in exercises.of_lab(LAB)}
WRAP = BY_ANSWER["wrap"]


def whole_batch(batches):
    return [torch.cat(side) for side in zip(*batches, strict=True)]


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


# ---- another right answer -----------------------------------------------------------------------

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


@pytest.mark.ranks
def test_a_plan_made_before_sharding_earns_full_marks():
    assert points_of(LAB, WRAP, PLANS_FIRST) == WRAP.points


# ---- the question -------------------------------------------------------------------------------


def big_layer():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(512, 512, bias=False), torch.nn.Linear(512, 4))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model(torch.randn(2, 512)).float().square().mean().backward()


@pytest.mark.ranks
def test_the_figures_of_the_question():
    """24B on 8 ranks; while a unit's gradient is reduced, memory holds it in bf16 and an fp32
    copy, but not its parameters: 2 + 4 bytes for each parameter of the unit."""
    states = memory.model_states(40 * 0.5e9 + 4e9, stage=3, world_size=8)
    assert states.device_bytes == 48e9
    assert states.device_bytes + (2 + 4) * 4e9 == 72e9
    run = launch(big_layer, world_size=4, memory=True, device="cpu")
    backward = next(phase for phase in run.memory[0].phases if phase.name == "backward")
    live = {name: size / 512**2 for name, size in backward.at_peak.items()}
    shard = 4 / 4  # fp32 bytes of a rank's slice, for each parameter
    assert live["parameters"] == pytest.approx(shard, rel=0.05)  # nothing is whole
    assert live["gradients"] - shard == pytest.approx(2, rel=0.05)
    assert live["buckets"] == pytest.approx(4, rel=0.05)
