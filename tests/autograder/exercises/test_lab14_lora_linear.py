"""The reference of lab 14's `LoRALinear`, against peft, and its named mistakes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from autograder import exercises
from autograder.exercise.compare import equal
from autograder.exercises.lab14_lora.hidden import lora_linear as hidden
from autograder.exercises.lab14_lora.lora_linear import (
    ADAPTER,
    base_layer,
    load_adapter,
    sent_limit,
)
from tests.submissions.deciding import inputs_of

(LORA,) = (each for each in exercises.of_lab("14_lora") if each.answer == "LoRALinear")


@pytest.mark.parametrize("case", LORA.cases, ids=lambda case: case.name)
def test_the_layer_matches_peft(case):
    peft = pytest.importorskip("peft")
    r, alpha, given = case.params["r"], case.params["alpha"], inputs_of(LORA, case)[0]
    config = peft.LoraConfig(r=r, lora_alpha=alpha, target_modules=["0"])
    x = given["x"]
    for weights, (a, b) in zip(given["layers"], given["adapters"], strict=True):
        own = hidden.Layer(base_layer(*weights), r, alpha)
        load_adapter(own, a, b)
        model = nn.Sequential(base_layer(*weights))
        layer = peft.inject_adapter_in_model(config, model)[0]
        with torch.no_grad():
            layer.lora_A.default.weight.copy_(a)
            layer.lora_B.default.weight.copy_(b)
        torch.testing.assert_close(own(x), layer(x))
        own.merge(), layer.merge()
        torch.testing.assert_close(own.linear.weight, layer.base_layer.weight)
        torch.testing.assert_close(own(x), layer(x))
        x = own(x).tanh()


def test_sending_one_weight_exceeds_the_budget():
    limits = {case.name: sent_limit(case) for case in LORA.cases}
    limited = [case for case in LORA.cases if limits[case.name]]
    assert {case.hidden for case in limited} == {False, True}
    for case in limited:
        widths, n = case.params["widths"], case.world_size
        steps = len(inputs_of(LORA, case)[0]["batches"])
        ring = 2 * (n - 1) / n * steps
        pairs = inputs_of(LORA, case)[0]["adapters"]
        adapters = 4 * sum(each.numel() for pair in pairs for each in pair)
        assert ring * adapters < limits[case.name].most
        assert limits[case.name].most < ring * (adapters + 4 * widths[0] * widths[1])


def test_every_mistake_is_wrong_in_some_case_and_differs_from_the_others():
    """Only in what the layers compute: parameters have the names of a right answer."""
    inputs = {case.name: inputs_of(LORA, case) for case in LORA.cases}
    right = [hidden.reference(case, inputs[case.name]) for case in LORA.cases]
    assert right[0][0]["trained"] == [ADAPTER]
    for output in (output for of_ranks in right for output in of_ranks):
        del output["form"]
    outputs = {
        (message, i): [wrong(case, inputs[case.name]) for case in LORA.cases]
        for message, each in hidden.MISTAKES.items()
        for i, wrong in enumerate(each if isinstance(each, tuple) else (each,))
    }
    for name, got in outputs.items():
        assert not equal(right, got, LORA.named_within), name
    for (name, some), (other, others) in itertools.combinations(outputs.items(), 2):
        if name[0] != other[0]:
            assert not equal(some, others, LORA.named_within), (name, other)
