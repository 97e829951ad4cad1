"""Lab 15, quantize_blockwise: the reference is within its error bound and matches bitsandbytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autograder import exercises
from autograder.exercise import Case
from autograder.exercises.lab15_quantization.quantize_blockwise import (
    tensors_case,
    weights_of,
)

LAB = "15_quantization"
SEED = 11
(EXERCISE,) = (each for each in exercises.of_lab(LAB) if each.answer == "quantize_blockwise")


@pytest.mark.parametrize("case", EXERCISE.cases, ids=lambda case: case.name)
def test_dequantized_weights_are_within_the_error_bound(case: Case) -> None:
    inputs = EXERCISE.draw(case, np.random.default_rng(3))
    (expected,) = EXERCISE.expect(case, inputs)
    for given, codes, absmax in zip(
        inputs[0]["tensors"], expected["codes"].values(), expected["absmax"].values(), strict=True
    ):
        points = torch.arange(-127, 128) / 127 if given["points"] is None else given["points"]
        index = codes.long() + 127 if given["points"] is None else codes.long()
        scale = absmax.repeat_interleave(given["block"])[: codes.numel()].view(codes.shape)
        error = (points[index] * scale - given["weights"]).abs()
        assert (error <= points.diff().max() / 2 * scale * (1 + 1e-5)).all()


def test_nf4_codes_match_bitsandbytes() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes.functional")
    case = tensors_case("NF4", weights_of((8, 64), 64, "nf4", zeros=5))
    inputs = EXERCISE.draw(case, np.random.default_rng(3))
    (expected,) = EXERCISE.expect(case, inputs)
    packed, state = bitsandbytes.quantize_4bit(
        inputs[0]["tensors"][0]["weights"], blocksize=64, quant_type="nf4"
    )
    both = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], dim=1)
    assert torch.equal(both.flatten(), expected["codes"]["nf4"].flatten())
    assert torch.equal(state.absmax, expected["absmax"]["nf4"])
