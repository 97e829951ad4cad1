"""Constants that made the times are found again; too few runs are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardlab.plan import Constants, calibrate
from shardlab.plan.published import PTD_P


def made_with(constants):
    return [replace(run, seconds=run.predicted_s(constants)) for run in PTD_P]


def test_one_constant_is_found_again():
    truth = Constants(network_share=0.2)
    found = calibrate(made_with(truth), fitted=["network_share"])
    assert found.constants.network_share == pytest.approx(0.2, rel=0.05)
    assert found.worst_error < 0.02


def test_the_stated_error_is_that_of_runs_left_out():
    runs = made_with(Constants(gemm_share=0.6))
    odd = replace(runs[0], seconds=3 * runs[0].seconds)
    found = calibrate([odd, *runs[1:]], fitted=["gemm_share"])
    assert found.held_out[odd.name] < found.errors[odd.name] < 0
    assert found.worst_error == pytest.approx(abs(found.held_out[odd.name]))


def test_too_few_runs_or_unknown_constants_are_refused():
    with pytest.raises(ValueError, match="2 runs cannot fit 6 constants"):
        calibrate(PTD_P[:2])
    with pytest.raises(ValueError, match="expected some of gemm_share"):
        calibrate(PTD_P, fitted=["speed"])
