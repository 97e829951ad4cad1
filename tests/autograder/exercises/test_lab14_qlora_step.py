"""The reference of lab 14's `qlora_step` and its named mistakes."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from autograder import exercises
from autograder.exercise.compare import equal
from autograder.exercises.lab14_lora.hidden import qlora_step as hidden
from autograder.exercises.lab14_lora.qlora_step import (
    LR,
    STEPS,
    TOLERANCE,
    is_large,
    kept_bytes,
    named,
)
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "14_lora"
(STEP,) = (each for each in exercises.of_lab(LAB) if each.answer == "qlora_step")
SMALL = [case for case in STEP.cases if not is_large(case)]


def test_the_layout_matches_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes.functional")
    dequantize = planted.subjects(LAB, planted.solution(LAB))["dequantize_nf4"]
    weight = torch.randn(24, 40)
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    expected = functional.dequantize_4bit(packed, state)
    layer = {"packed": packed.flatten(), "absmax": state.absmax}
    torch.testing.assert_close(dequantize(*layer.values(), (24, 40)), expected)
    torch.testing.assert_close(hidden.dequantized(layer, (24, 40)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_the_reference_matches_autograd(case):
    """One model and one optimizer, with the mean of all ranks' losses."""
    inputs = inputs_of(STEP, case)
    layers = copy.deepcopy(inputs[0]["layers"])
    adapters = [nn.Parameter(layer[name]) for layer in layers for name in "AB"]
    optimizer = torch.optim.SGD(adapters, lr=LR)
    right = hidden.reference(case, inputs)[0]["adapters"]
    for step in range(STEPS):
        losses = []
        for x, targets in (given["batches"][step] for given in inputs):
            for layer, A, B in zip(layers, adapters[::2], adapters[1::2], strict=True):
                W = hidden.dequantized(layer, (len(B), A.shape[1]))
                x = x @ (W + case.params["alpha"] / case.params["r"] * B @ A).T
            losses.append((x - targets).square().sum() / len(x))
        optimizer.zero_grad()
        (sum(losses) / len(losses)).backward()
        optimizer.step()
        for name, each in named(step, adapters).items():
            torch.testing.assert_close(each.detach(), right[name])


def test_keeping_one_weight_exceeds_the_budget():
    large = [case for case in STEP.cases if is_large(case)]
    assert large
    for case in large:
        weight_bytes = 4 * case.params["widths"][0] * case.params["widths"][1]
        assert kept_bytes(case) < weight_bytes


def test_every_mistake_is_wrong_in_some_case_and_differs_from_the_others():
    outputs = {
        (message, i): [wrong(case, inputs_of(STEP, case)) for case in SMALL]
        for message, each in hidden.MISTAKES.items()
        for i, wrong in enumerate(each if isinstance(each, tuple) else (each,))
    }
    right = [hidden.reference(case, inputs_of(STEP, case)) for case in SMALL]
    right = [[{"adapters": each["adapters"]} for each in of_ranks] for of_ranks in right]
    for name, got in outputs.items():
        assert not equal(right, got, TOLERANCE), name
    for (name, some), (other, others) in itertools.combinations(outputs.items(), 2):
        if name[0] != other[0]:
            assert not equal(some, others, TOLERANCE), (name, other)
