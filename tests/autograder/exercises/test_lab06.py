"""Lab 06: traces against fresh runs and formulas, references, named mistakes."""

from __future__ import annotations

import json

import cloudpickle
import pytest
import torch

from autograder import exercises
from autograder.evaluation.judge import judge
from autograder.evaluation.trial import RankPool, Trials
from autograder.exercise import Attempt
from autograder.exercises.lab06_fsdp_in_practice import stalled
from autograder.exercises.lab06_fsdp_in_practice.hidden import record_traces
from autograder.exercises.lab06_fsdp_in_practice.hidden import stalled as hidden_stalled
from autograder.exercises.lab06_fsdp_in_practice.hidden import which_is_it as hidden_which
from autograder.exercises.lab06_fsdp_in_practice.hidden.record_traces import (
    DDP,
    FSDP,
    HSDP,
    KEPT,
    TP,
    ZERO2,
)
from shardlab.recorded_runs import step_traces
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "06_fsdp_in_practice"
SEED = 11
BY_NAME = {exercise.answer: exercise for exercise in exercises.of_lab(LAB)}
WHICH_IS_IT, STALLED = BY_NAME["which_is_it"], BY_NAME["stalled"]


# ---- which_is_it: the traces ---------------------------------------------------------------------

RECIPES = record_traces.VISIBLE | record_traces.HIDDEN_RECIPES
TRACES = step_traces.load() | hidden_which.RECORDED


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["A", "B", "C", "D", "E", "G"])
def test_a_fresh_run_gives_the_recorded_trace(name):
    method, recorded = TRACES[name]
    recipe = record_traces.VISIBLE[name]
    assert recipe.method == method
    assert record_traces.record(recipe) == recorded


def test_every_recipe_is_recorded_and_no_trace_has_two_methods():
    assert list(TRACES) == list(RECIPES)
    assert {name: recipe.method for name, recipe in RECIPES.items()} == {
        name: method for name, (method, _) in TRACES.items()
    }
    assert len({json.dumps(trace) for _, trace in TRACES.values()}) == len(TRACES)


def sums_of(trace):
    """Bytes of whole tensors, by operation and phase."""
    sums = {}
    for call in trace["calls"]:
        whole = call["bytes"] * (len(call["ranks"]) if call["op"] == "all_gather" else 1)
        key = call["op"], call["phase"]
        sums[key] = sums.get(key, 0) + whole
    return sums


@pytest.mark.parametrize("name", TRACES)
def test_the_bytes_of_a_trace_are_those_of_its_method(name):
    """Rajbhandari et al. 2020, section 7, and for tensor parallelism Narayanan et al. 2021, 3.2."""
    method, trace = TRACES[name]
    recipe, sums, psi = RECIPES[name], sums_of(trace), trace["parameter_bytes"]
    times = recipe.micro_batches
    gathered = psi * times / (2 if recipe.bf16 else 1)
    if method == TP:
        large = [call for call in trace["calls"] if call["phase"] != "step" and call["bytes"] > 100]
        for call in large:
            slices = trace["world_size"] if call["op"] == "all_gather" else 1
            assert call["bytes"] * slices == trace["activation_bytes"]
        calls = 1 if recipe.wide_head else recipe.blocks * (2 if recipe.sequence_parallel else 1)
        assert len(large) == calls * times * (1 if recipe.frozen_below else 2)
        return
    wanted = {
        DDP: {("all_reduce", "backward"): psi},
        ZERO2: {("all_reduce", "backward"): psi * times, ("all_gather", "step"): psi},
    }.get(
        method, {("all_gather", "forward"): gathered, ("reduce_scatter", "backward"): psi * times}
    )
    if method == HSDP:
        wanted["all_reduce", "backward"] = psi * times / recipe.mesh[1]
    if method == FSDP or (method == HSDP and recipe.reshards and not recipe.only_root):
        wanted["all_gather", "backward"] = gathered * (1 - recipe.in_root / recipe.blocks)
    large = {key: size for key, size in sums.items() if size > psi / 10}
    assert large == pytest.approx(wanted, rel=0.05)  # padding
    assert all(large[key] >= 0.9999 * size for key, size in wanted.items())


@pytest.mark.parametrize("name", TRACES)
def test_only_activations_have_the_size_of_activations(name):
    """A rule that looks for that size is right, with the slices of a call's own group."""
    method, trace = TRACES[name]
    size = trace["activation_bytes"]
    gathers = (call for call in trace["calls"] if call["op"] == "all_gather")
    gathered = [call["bytes"] * len(call["ranks"]) for call in gathers]
    found = size in gathered or any(call["bytes"] == size for call in trace["calls"])
    assert found == (method == TP)


@pytest.mark.parametrize("name", ["D", "six methods, at sizes of their own: HSDP"])
def test_a_slice_times_all_ranks_may_have_that_size(name):
    """Where it is not an activation, but a slice of a smaller group."""
    _, trace = TRACES[name]
    whole = {call["bytes"] * trace["world_size"] for call in trace["calls"]}
    assert trace["activation_bytes"] in whole


def diagnosis_of(case, wrong):
    """``wrong``: {right method: answer}"""
    inputs = inputs_of(WHICH_IS_IT, case)
    expected = WHICH_IS_IT.expect(case, inputs)
    answers = [[wrong.get(method, method) for method in expected[0]]]
    attempt = Attempt(case, inputs, expected, answers, None, None)
    return judge(WHICH_IS_IT, attempt).result.diagnosis


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({FSDP: TP, KEPT: TP, HSDP: TP}, "takes FSDP for TP"),
        ({FSDP: TP, KEPT: TP}, "takes FSDP for TP"),
        ({TP: FSDP}, "misses TP"),
        ({TP: KEPT}, "misses TP"),
        ({HSDP: FSDP}, "misses HSDP's all-reduce"),
        ({HSDP: KEPT}, "misses HSDP's all-reduce"),
        ({ZERO2: KEPT}, "takes ZeRO-2 for FSDP"),
        ({DDP: FSDP}, "takes DDP for another method"),
        ({FSDP: KEPT}, "takes FSDP for FSDP without resharding"),
        ({FSDP: HSDP}, "takes FSDP for HSDP"),
        ({FSDP: "fsdp"}, "should return one of 'DDP'"),
        ({FSDP: None}, "should return one of 'DDP'"),
        ({ZERO2: DDP}, "'DDP', expected 'ZeRO-2'"),
        ({FSDP: TP, TP: ZERO2}, "which_is_it(trace A) has the wrong value"),  # nothing is guessed
    ],
)
def test_each_confusion_is_named(wrong, says):
    assert says in diagnosis_of(WHICH_IS_IT.cases[0], wrong)


# ---- stalled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", STALLED.cases, ids=lambda case: case.name)
def test_no_update_changes_a_bf16_weight_and_all_change_fp32(case):
    """The stall is complete, and what the check compares is far outside its tolerance."""
    inputs = inputs_of(STALLED, case)
    for tensor in inputs[0]["weights"].values():
        assert (tensor.abs() >= 1 / 8).all()
        assert (tensor.abs() < 1 / 4).all()
        rounded = tensor.bfloat16()
        assert torch.equal(rounded - stalled.LR, rounded)
        assert not (tensor - stalled.LR == tensor).any()
    half_ulp = torch.finfo(torch.bfloat16).eps / 8 / 2
    assert half_ulp > 1.4 * stalled.LR
    right = [each["losses"] for each in hidden_stalled.reference(case, inputs)]
    mistaken = hidden_stalled.reference(case, inputs, loads=torch.bfloat16)
    for losses, wrong in zip(right, mistaken, strict=True):
        near = stalled.TOLERANCE * (1 + losses[0])
        assert losses[0] - losses[-1] > 3 * near
        assert (losses - wrong["losses"]).abs().max() > 1.1 * near


SHARDED_BLOCKS = """    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
"""
MISTAKES = {
    "optimizer before fully_shard": (
        [
            (
                "    policy =",
                "    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)\n    policy =",
            ),
            (
                "return model, torch.optim.AdamW(model.parameters(), lr=lr)",
                "return model, optimizer",
            ),
        ],
        "build it after fully_shard",
    ),
    "no reduce_dtype": ([(", reduce_dtype=torch.float32", "")], "reduces gradients in bfloat16"),
    "only the root": ([(SHARDED_BLOCKS, "")], "has too few units"),
    "root left out": ([("    fully_shard(model, mp_policy=policy)\n", "")], "are not sharded"),
    "policy for the root only": (
        [("fully_shard(block, mp_policy=policy)", "fully_shard(block)")],
        "give the policy to every fully_shard",
    ),
    "another optimizer": ([("AdamW", "SGD")], "keep AdamW"),
    "optimizer of the blocks": (
        [("AdamW(model.parameters()", "AdamW(model.blocks.parameters()")],
        "does not give the optimizer all",
    ),
    "float64": ([("torch.float32)\n    policy", "torch.float64)\n    policy")], "(float64)"),
    "eval mode": ([("    return model,", "    model.eval()\n    return model,")], "in eval mode"),
    "no pair": ([("return model,", "return model #")], "should return the model and its optimizer"),
}


@pytest.mark.ranks
def test_mistakes_in_stalled_are_named():
    case, solution = STALLED.cases[0], planted.solution(LAB)
    with RankPool() as ranks:
        ranks.expect(STALLED, [case])
        for name, (changes, says) in MISTAKES.items():
            source = solution["stalled"]
            for old, new in changes:
                assert source.count(old) == 1, name
                source = source.replace(old, new)
            subject = planted.subjects(LAB, solution | {"stalled": source})["stalled"]
            trials = Trials(STALLED, cloudpickle.dumps(subject), SEED, ranks)
            result = trials.run(case)[1].result
            assert not result.passed, name
            assert says in result.diagnosis, name
