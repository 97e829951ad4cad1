"""The measured roofline: what is timed and counted. No test depends on how fast this machine is."""

from __future__ import annotations

import pytest
import torch

from shardlab import launch
from shardlab.machine_report import speed
from shardlab.machine_report.speed import best_s, measured_roofline


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SIDES", {"cpu": (8, 16)})
    monkeypatch.setattr(speed, "BUFFER_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr(speed, "PART_BYTES", {"cpu": 1 << 14})


@pytest.mark.usefixtures("small")
def test_peak_and_bandwidth_are_work_over_the_shortest_time(monkeypatch) -> None:
    """Side 16 takes 1 s, side 8 takes 2 s, reading two parts 4 s, copying one 5 s."""
    seconds = iter([2.0, 1.0, 4.0, 5.0])
    monkeypatch.setattr(speed, "best_s", lambda act, device: next(seconds))
    roof = measured_roofline()
    assert roof.flops_per_s == 2 * 16**3
    assert roof.memory_bytes_per_s == 2 * (1 << 14) / 4


@pytest.mark.usefixtures("small")
def test_ranks_threads_and_other_data_types() -> None:
    threads = torch.get_num_threads()
    roof = measured_roofline(dtype=torch.bfloat16)
    assert min(roof.flops_per_s, roof.memory_bytes_per_s) > 0
    assert torch.get_num_threads() == threads


def test_the_fastest_repetition_counts_after_a_warm_up(monkeypatch) -> None:
    taken = iter([0.1, 3, 2, 5, 4, 6])
    monkeypatch.setattr(speed, "_run_s", lambda act, device: next(taken))
    assert best_s(lambda: None, total_s=1) == 2


def test_it_goes_on_for_the_time_that_it_was_given(monkeypatch) -> None:
    runs = []
    monkeypatch.setattr(speed, "_run_s", lambda act, device: runs.append(1) or 0.25)
    best_s(lambda: None, total_s=4)
    assert len(runs) == 1 + 16


@pytest.mark.ranks
def test_it_runs_on_a_rank() -> None:
    (roof,) = launch(measured_roofline, world_size=1, quiet=True).outputs
    assert roof.ridge > 0
