"""The reference of lab 15's `outliers`, its inputs and its named mistakes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from autograder import exercises
from autograder.exercise.compare import equal
from autograder.exercises.lab15_quantization.hidden import outliers as hidden
from autograder.exercises.lab15_quantization.outliers import TOLERANCE

(OUTLIERS,) = (each for each in exercises.of_lab("15_quantization") if each.answer == "outliers")
CASES = pytest.mark.parametrize("case", OUTLIERS.cases, ids=lambda case: case.name)


def inputs_of(case, seed=3):
    return OUTLIERS.draw(case, np.random.default_rng(seed))


@CASES
def test_the_reference_is_integer_arithmetic(case):
    """Computed in plain Python, element by element, for the first row and output."""
    x, w = inputs_of(case)[0].values()
    features = range(x.shape[1])
    columns = [j for j in features if x[:, j].abs().max() > case.params["threshold"]]
    assert columns == sorted(case.params["columns"])
    regular = [j for j in features if j not in columns]

    def codes(row):
        scale = max(abs(row[j]) for j in regular) / 127 or 1
        return [round(row[j] / scale) for j in regular], scale

    (x_codes, x_scale), (w_codes, w_scale) = codes(x[0].tolist()), codes(w[0].tolist())
    in_int8 = x_scale * w_scale * sum(a * b for a, b in zip(x_codes, w_codes, strict=True))
    in_full = sum(x[0, j].item() * w[0, j].item() for j in columns)
    y = hidden.reference(case, inputs_of(case))["y"]
    assert y[0, 0].item() == pytest.approx(in_int8 + in_full, rel=1e-4, abs=1e-5)


@CASES
def test_no_value_is_near_the_midpoint_of_two_codes(case):
    for seed in range(5):
        for matrix in inputs_of(case, seed)[0].values():
            regular = np.delete(matrix.double().numpy(), case.params["columns"], axis=1)
            scales = np.abs(regular).max(axis=1, keepdims=True) / 127
            codes = np.divide(regular, scales, out=np.zeros_like(regular), where=scales > 0)
            assert np.abs(codes - np.round(codes)).max() < 0.41


@CASES
def test_int8_arithmetic_differs_from_the_exact_product_by_more_than_the_tolerance(case):
    x, w = inputs_of(case)[0].values()
    y = hidden.reference(case, inputs_of(case))["y"]
    is_near = torch.isclose(y, x @ w.T, rtol=TOLERANCE, atol=TOLERANCE)
    assert is_near.float().mean() < 0.5
    # but far less than if the outliers were left out
    if case.params["columns"]:
        without = hidden.product(x, w, 0.0, hidden.nothing)
        assert (y - x @ w.T).square().mean() < 0.3 * (without - x @ w.T).square().mean()


def test_every_mistake_is_wrong_in_some_case_and_differs_from_the_others():
    outputs = {
        (message, i): [
            hidden.reference(case, inputs_of(case)) | made
            for case, made in ((c, wrong(c, inputs_of(c))) for c in OUTLIERS.cases)
        ]
        for message, each in hidden.MISTAKES.items()
        for i, wrong in enumerate(each if isinstance(each, tuple) else (each,))
    }
    right = [hidden.reference(case, inputs_of(case)) for case in OUTLIERS.cases]
    for name, got in outputs.items():
        assert not equal(right, got, TOLERANCE), name
    for (name, some), (other, others) in itertools.combinations(outputs.items(), 2):
        if name[0] != other[0]:
            assert not equal(some, others, TOLERANCE), (name, other)
