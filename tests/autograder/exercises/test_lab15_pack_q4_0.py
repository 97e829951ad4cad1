"""Lab 15, pack_q4_0: the reference packs the same bytes as gguf."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from autograder import exercises
from autograder.exercise import Case, equal
from autograder.exercises.lab15_quantization.pack_q4_0 import block_of, blocks_case

LAB = "15_quantization"
SEED = 11
(EXERCISE,) = (each for each in exercises.of_lab(LAB) if each.answer == "pack_q4_0")


def gguf_bytes(weights: torch.Tensor) -> torch.Tensor:
    blocks = weights.view(-1, 32).numpy()
    return torch.from_numpy(gguf.quants.quantize(blocks, gguf.GGMLQuantizationType.Q4_0))


def reference_blocks(case: Case, inputs: Any) -> torch.Tensor:
    return EXERCISE.expect(case, inputs)[0]["blocks"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("case", EXERCISE.cases, ids=lambda case: case.name)
def test_each_case_expects_the_same_bytes_as_gguf(case: Case, seed: int) -> None:
    inputs = EXERCISE.draw(case, np.random.default_rng(seed))
    expected = gguf_bytes(inputs[0]["weights"])
    assert torch.equal(reference_blocks(case, inputs), expected)


@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-6, 1e-9, 1e4])
def test_random_weights_are_packed_as_by_gguf(scale: float) -> None:
    weights = torch.randn(3200, generator=torch.Generator().manual_seed(0)) * scale
    weights[64:96] = -0.0
    weights[96:128] = scale
    weights[128:160:2] = -scale * 4
    weights[129:160:2] = scale * 4
    case = blocks_case("random", block_of(1.0))
    assert torch.equal(reference_blocks(case, [{"weights": weights}]), gguf_bytes(weights))


def test_of_mistakes_that_agree_in_a_case_the_one_that_is_right_in_more_comes_first():
    cases = [case for case in EXERCISE.cases if not case.hidden]
    inputs = [list(EXERCISE.draw(case, np.random.default_rng(3))) for case in cases]
    right = [EXERCISE.expect(*each)[0]["blocks"] for each in zip(cases, inputs, strict=True)]
    made = []  # (mistake, {case: its blocks where they are wrong})
    for mistake in EXERCISE.required_half.module.MISTAKES:
        by_case = (
            EXERCISE.required_half.outputs_with(mistake, *each)
            for each in zip(cases, inputs, strict=True)
        )
        for outputs in zip(*by_case, strict=True):
            blocks = [each[0]["blocks"] for each in outputs]
            wrong = {i: got for i, got in enumerate(blocks) if not equal(right[i], got)}
            made.append((mistake, wrong))
    for (first, wrong), (later, fewer) in combinations(made, 2):
        if first != later and fewer and fewer.keys() < wrong.keys():
            assert not all(equal(wrong[i], got) for i, got in fewer.items()), (first, later)
