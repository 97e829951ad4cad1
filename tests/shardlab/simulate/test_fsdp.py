"""The simulated timeline of FSDP's units. widgets/test_unit_life.py compares it with real ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from shardlab.simulate.fsdp import ROOT, StepSettings, UnitTimeline, simulate_step

PLAIN = StepSettings(
    units=4,
    world_size=2,
    parameter_bytes=1000,
    root_bytes=200,
    forward_s=4.0,
    link_bytes_per_s=1e9,
    message_s=0.0,
    copy_bytes_per_s=1e12,
)
UNIT = 200.0  # bytes


def spans(timeline: UnitTimeline, kind: str) -> list[tuple[int, float, float]]:
    return [(span.row, span.start_s, span.end_s) for span in timeline.spans if span.kind == kind]


@pytest.mark.parametrize("units", [1, 2, 7])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_units_are_gathered_twice_and_the_root_once(units: int, prefetch: int) -> None:
    settings = replace(PLAIN, units=units, forward_prefetch=prefetch, backward_prefetch=prefetch)
    assert simulate_step(settings).messages == {"gather": 2 * units + 1, "reduce": units + 1}
    kept = simulate_step(replace(settings, reshard_after_forward=False))
    assert kept.messages == {"gather": units + 1, "reduce": units + 1}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("root_bytes", [0, 200])
def test_at_the_end_a_rank_holds_its_shards_of_parameters_and_gradients(
    overlap: bool, root_bytes: float
) -> None:
    timeline = simulate_step(replace(PLAIN, overlap=overlap, root_bytes=root_bytes))
    end = {name: values[-1] for name, values in timeline.live.items()}
    assert end == pytest.approx({"parameters": 500, "gradients": 500, "buckets": 0})
    assert min(min(values) for values in timeline.live.values()) >= -1e-9
    assert list(timeline.times_s) == sorted(timeline.times_s)
    if not root_bytes:
        assert ROOT not in {span.row for span in timeline.spans}


def test_the_peak_in_closed_form() -> None:
    """In backward of the last unit that prefetches another one (unit 1): the unit's parameters and
    gradients, the buffers of the next all-gather and of the last reduce-scatter, the root, and the
    shards: all of parameters, and of the gradients of the units before."""
    for units, world_size in ((4, 2), (8, 4), (5, 64)):
        settings = replace(PLAIN, units=units, world_size=world_size)
        unit = settings.unit_bytes
        expected = 1000 / world_size + 200 + 4 * unit + (units - 2) * unit / world_size
        assert simulate_step(settings).peak_bytes == pytest.approx(expected)


def test_one_unit_saves_little() -> None:
    """Whole parameters and gradients, and a buffer for one of them, as without any sharding."""
    assert simulate_step(replace(PLAIN, units=1)).peak_bytes > 2 * PLAIN.parameter_bytes
    many = simulate_step(replace(PLAIN, units=16))
    assert many.peak_bytes < 1.4 * PLAIN.parameter_bytes
    assert many.messages["gather"] == 33


def test_forward_frees_a_unit_before_it_gathers_the_next() -> None:
    timeline = simulate_step(replace(PLAIN, forward_prefetch=0, backward_prefetch=0))
    whole = [span for span in spans(timeline, "whole") if span[0] != ROOT]
    assert [row for row, _, _ in sorted(whole, key=lambda span: span[1])] == [
        1,
        2,
        3,
        4,
        4,
        3,
        2,
        1,
    ]
    for (_, _, end_s), (_, start_s, _) in pairwise(whole):
        assert end_s <= start_s
    assert [row for row, *_ in spans(timeline, "whole")][-1] == ROOT


def test_prefetching_hides_transfers_behind_computation() -> None:
    slow = replace(PLAIN, link_bytes_per_s=200)  # 0.5 s to send a unit; forward 1 s, backward 2 s
    root_s = 0.5  # the root's all-gather, before any computation
    steps = {
        prefetch: simulate_step(
            replace(slow, forward_prefetch=prefetch, backward_prefetch=prefetch)
        ).step_s
        for prefetch in (0, 1)
    }
    # At the end, the reduce-scatters of the last unit and of the root are not hidden either.
    assert steps[1] == pytest.approx(12 + root_s + 0.5 + 0.5 + 1.0, abs=1e-6)
    assert steps[0] == pytest.approx(steps[1] + 6 * 0.5 + 3 * 0.5, abs=1e-6)
    sequential = simulate_step(replace(slow, overlap=False))
    assert sequential.step_s == pytest.approx(12 + (9 + 5) * 0.5, abs=1e-6)


def test_prefetching_more_units_takes_more_memory() -> None:
    peaks = [
        simulate_step(replace(PLAIN, units=8, backward_prefetch=count)).peak_bytes
        for count in (0, 1, 2, 3)
    ]
    assert peaks == sorted(peaks)
    assert peaks[2] - peaks[1] == pytest.approx(100 - 100 / 2)  # one more buffer, one shard less


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"units": 0}, "units=0: must be a whole number, 1 or more"),
        ({"units": 2.5}, r"units=2\.5"),
        ({"world_size": 1}, "world_size=1: must be a whole number, 2 or more"),
        ({"forward_prefetch": -1}, "forward_prefetch=-1"),
        ({"forward_s": 0}, "forward_s=0: must be above 0"),
        ({"message_s": -1}, "message_s=-1: must be 0 or more"),
        ({"root_bytes": 1000}, "root_bytes"),
    ],
)
def test_invalid_settings_raise(given: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PLAIN, **given)
