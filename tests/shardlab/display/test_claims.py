"""A claim prints what it compared, and raises if a single value does not match."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shardlab.display.claims import holds

RAISES = pytest.raises(AssertionError, match=r"^does not hold: a claim")


def test_it_prints_both_values_and_their_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    holds("the ring's bytes", [1003.0, 1001.0], 1000, rtol=0.01, unit="bytes")
    holds("calls", 3, 3)
    holds("calls of two ranks", [3, 3], 3, rtol=0.01)
    holds("the loss", 3.25, above=1, below=4)
    holds("the order", ["f0", "b0"], ["f0", "b0"])
    holds("bit for bit", True)
    assert capsys.readouterr().out.splitlines() == [
        "✓ the ring's bytes: measured 1,003, 1,001 bytes, predicted 1,000 bytes "
        "(≤ 0.3 % apart; 1 % allowed)",
        "✓ calls: measured 3, predicted 3 (equal)",
        "✓ calls of two ranks: measured 2 × 3, predicted 3 (equal)",
        "✓ the loss: measured 3.25, above 1, below 4",
        "✓ the order: measured ['f0', 'b0'], predicted ['f0', 'b0'] (equal)",
        "✓ bit for bit",
    ]


def test_many_values_are_shown_as_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    holds("twelve ranks", np.arange(1, 13), below=13)
    holds("alike", np.full(4, 2.5), 2.5)
    assert capsys.readouterr().out.splitlines() == [
        "✓ twelve ranks: measured 1 to 12, below 13",
        "✓ alike: measured 4 × 2.5, predicted 2.5 (equal)",
    ]


@pytest.mark.parametrize(
    ("measured", "expectation"),
    [
        ([100, 100, 102], {"predicted": 100, "rtol": 0.01}),
        (100.2, {"predicted": 100, "atol": 0.1}),
        (1e-9, {"predicted": 0}),
        (float("nan"), {"predicted": 1, "rtol": 1}),
        (float("nan"), {"below": 1}),
        ([1, 5], {"below": 5}),
        ([1, 5], {"above": 1}),
        ("sum", {"predicted": "mean"}),
        ([True, False], {}),
    ],
)
def test_a_single_wrong_value_raises(measured, expectation) -> None:
    with RAISES:
        holds("a claim", measured, **expectation)


def test_a_tensor_may_require_a_gradient(capsys: pytest.CaptureFixture[str]) -> None:
    holds("the loss", torch.ones(2, requires_grad=True) * 3, 3)
    assert capsys.readouterr().out == "✓ the loss: measured 2 × 3, predicted 3 (equal)\n"


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        holds("a claim", [], below=1)
    with pytest.raises(ValueError, match="shape"):
        holds("a claim", [1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="nothing was measured"):
        holds("a claim", np.array([], dtype=bool))
