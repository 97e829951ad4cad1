"""Lab 05: gather_and_free against plain training, named mistakes, other right answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import cloudpickle
import pytest
import torch
from torch import nn

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import RankPool, Trials
from autograder.exercises.lab04_zero.hidden import shared as rules
from autograder.exercises.lab05_fsdp import gather_and_free
from autograder.exercises.lab05_fsdp.hidden import gather_and_free as hidden_gather
from shardlab.ranks.trust import Trust
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "05_fsdp"
SEED = 11
BY_ANSWER = {exercise.answer: exercise for exercise in exercises.of_lab(LAB)}


def result_of(exercise, case, source):
    answers = planted.solution(LAB) | {exercise.answer: source}
    subject = planted.subjects(LAB, answers)[exercise.answer]
    with RankPool() as ranks:
        ranks.expect(exercise, [case])
        return Trials(exercise, cloudpickle.dumps(subject), SEED, ranks).run(case)[1].result


def changed(answer, *changes):
    source = planted.solution(LAB)[answer]
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


# ---- gather_and_free -----------------------------------------------------------------------------

GATHER_AND_FREE = BY_ANSWER["gather_and_free"]
SMALL, ONE_UNIT, LARGE = GATHER_AND_FREE.cases[:3]
CASES = [pytest.param(case, id=case.name) for case in GATHER_AND_FREE.cases]


@pytest.mark.parametrize("case", CASES)
def test_the_reference_is_sgd_on_all_batches_together(case):
    inputs = inputs_of(GATHER_AND_FREE, case)
    model = nn.Sequential(
        *gather_and_free.blocks_of([tensor.clone() for tensor in inputs[0]["layers"]])
    )
    sgd = torch.optim.SGD(model.parameters(), lr=gather_and_free.LR)
    n = case.world_size
    expected = GATHER_AND_FREE.expect(case, inputs)
    for step in range(case.params["batches"]):
        batches = [given["batches"][step] for given in inputs]
        x, targets = (torch.cat(side) for side in zip(*batches, strict=True))
        y = model(x)
        gather_and_free.loss_of(y, targets).backward()
        tolerances = {"rtol": GATHER_AND_FREE.tolerance / 2, "atol": GATHER_AND_FREE.tolerance / 2}
        for rank, outputs in enumerate(y.detach().chunk(n)):
            torch.testing.assert_close(expected[rank]["y"][f"step {step}"], outputs, **tolerances)
            gradients = expected[rank]["gradients"][f"step {step}"].values()
            for block, got in zip(model, gradients, strict=True):
                flat = rules.flatten([each.grad for each in block.parameters()], n)
                torch.testing.assert_close(got, flat.chunk(n)[rank], **tolerances)
        sgd.step()
        sgd.zero_grad()


@pytest.mark.parametrize("case", CASES)
def test_rounding_stays_far_below_the_tolerance_and_wrong_rules_far_above(case):
    inputs = inputs_of(GATHER_AND_FREE, case)

    def by(rule):
        return flat(hidden_gather.train(case, inputs, rule))

    right = by(rules.mean)
    reordered = by(lambda gradients: gradients.flip(0).sum(0) / len(gradients))
    assert difference(right, reordered) < GATHER_AND_FREE.tolerance / 5
    halved = by(lambda gradients: gradients.half().float().mean(0))
    assert difference(right, halved) > 2 * GATHER_AND_FREE.tolerance
    wrong = rules.WRONG_RULES.values()
    for one, other in combinations([right, *map(by, wrong)], 2):
        assert difference(one, other) > 20 * GATHER_AND_FREE.tolerance


def flat(nested):
    if isinstance(nested, torch.Tensor):
        return nested.flatten()
    return torch.cat([flat(each) for each in getattr(nested, "values", lambda: nested)()])


def difference(one, other):
    """The largest difference, absolute for small numbers and relative for large ones."""
    return float(((one - other).abs() / one.abs().clamp(min=1)).max())


@pytest.mark.parametrize("case", CASES)
def test_bytes_of_a_call_show_which_unit_it_gathers(case):
    slices = [size // case.world_size for size in gather_and_free.unit_bytes(case)]
    assert len(set(slices)) == len(slices)


def test_layers_are_released_with_their_list():
    layers = inputs_of(GATHER_AND_FREE, SMALL)[0]["layers"]
    first = layers[0].data_ptr()
    blocks = gather_and_free.blocks_of(layers)
    assert layers == []
    assert blocks[0][0].weight.data_ptr() == first


WRAPS_FORWARD = """
class Before(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, function):
        ctx.function = function
        return y.view_as(y)

    @staticmethod
    def backward(ctx, y_grad):
        ctx.function()
        return y_grad, None


def gather_and_free(modules):
    units = [Unit(module) for module in modules]

    def make_ready(k, after):
        if not units[k].has_memory:
            units[k].start_gather()
        units[k].wait()
        if after in range(len(units)) and not units[after].has_memory:
            units[after].start_gather()

    def install(k, unit, compute):
        def forward(x):
            make_ready(k, k + 1)
            y = compute(x)
            unit.free()
            return Before.apply(y, lambda: make_ready(k, k - 1))

        def exchange():
            mean = reduce_scatter(unit.take_gradients()).div_(dist.get_world_size())
            unit.own.grad = mean
            unit.free()

        unit.module.forward = forward
        unit.when_gradients_are_complete(exchange)

    for k, unit in enumerate(units):
        install(k, unit, unit.module.forward)
    return tuple(unit.own for unit in units)
"""
GATHERS_A_LIST = """
def start_gather(unit):
    unit.whole.untyped_storage().resize_(unit.whole.nbytes)
    parts = list(unit.whole.chunk(dist.get_world_size()))
    unit.gathering = dist.all_gather(parts, unit.own, async_op=True)
""" + changed("gather_and_free", ("units[k].start_gather()", "start_gather(units[k])"))
FREES = "        units[k].free()\n        output."
KEEPS_THE_LAST = changed(
    "gather_and_free",
    (FREES, "        if k < len(units) - 1:\n            units[k].free()\n        output."),
)
WITH_A_HOOK_OF_THE_MODULE = changed(
    "gather_and_free",
    (
        "        output.register_hook(partial(before, k, k - 1))\n",
        "",
    ),
    (
        "        unit.when_gradients",
        "        unit.module.register_full_backward_pre_hook(partial(before, k, k - 1))\n"
        "        unit.when_gradients",
    ),
)


# Starts the exchange immediately, and waits for it after the next unit.
WAITS_LATER = changed(
    "gather_and_free",
    (
        "        units[k].own.grad = reduce_scatter(flat) / dist.get_world_size()\n",
        """
        received = torch.empty_like(flat)
        exchange = dist.all_to_all_single(received, flat, async_op=True)
        pending.append((k, flat, received, exchange))
        while len(pending) > (1 if k else 0):
            j, _, received, exchange = pending.pop(0)
            exchange.wait()
            units[j].own.grad = received.view(dist.get_world_size(), -1).mean(dim=0)
""",
    ),
    ("    units = [", "    pending = []\n    units = ["),
)


@pytest.mark.ranks
@pytest.mark.parametrize(
    "source",
    [
        WRAPS_FORWARD,
        GATHERS_A_LIST,
        KEEPS_THE_LAST,
        WITH_A_HOOK_OF_THE_MODULE,
        WAITS_LATER,
    ],
)
def test_other_right_answers_pass(source):
    for case in (SMALL, LARGE):
        result = result_of(GATHER_AND_FREE, case, source)
        assert result.passed, result.diagnosis


COPIES = changed(
    "gather_and_free",
    ("    def fetch(k):", "    slices = [unit.own.clone() for unit in units]\n\n    def fetch(k):"),
    ("units[k].own.grad =", "slices[k].grad ="),
    ("return [unit.own for unit in units]", "return slices"),
)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("source", "says"),
    [
        (COPIES, "return each unit's own, no copy"),
        (
            changed("gather_and_free", ("[unit.own for", "[unit.own.clone() for")),
            "returns a slice that has no .grad",
        ),
        (changed("gather_and_free", ("[unit.own for", "[unit.whole for")), "should return one"),
        (
            changed(
                "gather_and_free",
                ("        output.register_hook(", "        return output.register_hook("),
            ),
            "has a hook that returns a value",
        ),
        (
            changed("gather_and_free", ("partial(before, k, k - 1)", "partial(before, k, -1)")),
            "does not prefetch in backward",
        ),
        (
            changed(
                "gather_and_free", ("take_gradients()\n        units[k].free()", "take_gradients()")
            ),
            "has more than two units in memory in backward",
        ),
        (
            changed(
                "gather_and_free",
                ("units[k].take_gradients()", "flatten([p.grad for p in units[k].parameters], 4)"),
            ),
            "in 'gradients'",
        ),
    ],
)
def test_further_mistakes_are_named(source, says):
    result = result_of(GATHER_AND_FREE, SMALL, source)
    assert not result.passed
    assert says in result.diagnosis


@pytest.mark.ranks
def test_calls_of_the_solution_are_not_shown_because_right_ones_differ():
    source = KEEPS_THE_LAST.replace("/ dist.get_world_size()", "/ 3.5")
    subject = planted.subjects(LAB, planted.solution(LAB) | {"gather_and_free": source})
    exercise = replace(GATHER_AND_FREE, cases=(SMALL,))
    blob = cloudpickle.dumps(subject["gather_and_free"])
    (result,) = decide(exercise, blob, SEED, trust=Trust.OWN).cases
    assert "wrong values" in result.diagnosis
    assert not result.calls_differ
