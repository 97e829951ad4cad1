"""FSDP's messages and bytes, computed from its units; test_05_fsdp.py compares with real runs."""

import pytest

from shardlab.estimate.fsdp_units import unit_step
from shardlab.estimate.traffic import sent_bytes


def test_a_step_worked_by_hand():
    """Units of 8 and 16 elements, a root of 4, 4 ranks, 4 bytes: a rank keeps 28 bytes."""
    step = unit_step([8, 16], 4, root=4)
    assert (step.all_gathers, step.reduce_scatters, step.messages) == (5, 3, 8)
    assert step.sent_bytes == 3 / 4 * 4 * (28 + 24 + 28)
    assert step.kept_bytes == 16
    assert step.peak_parameter_bytes == 28 + 16 + 64


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("reduce_scatter", ["ring", "gloo"])
def test_without_a_root_fsdp_sends_as_much_as_zero_3(world_size, reduce_scatter):
    expected = sent_bytes("zero3", 100, world_size, reduce_scatter=reduce_scatter)[0]
    step = unit_step([40, 60], world_size, reduce_scatter=reduce_scatter)
    assert step.sent_bytes == pytest.approx(expected)


def test_a_root_alone_has_the_unsharded_peak_and_one_message_each_way():
    step = unit_step([], 4, root=100)
    assert (step.all_gathers, step.reduce_scatters) == (1, 1)
    assert step.kept_bytes == 400
    assert step.peak_parameter_bytes == 100 + 400


def test_more_units_send_the_same_bytes_in_more_messages():
    few, many = unit_step([500, 500], 4), unit_step([10] * 100, 4)
    assert few.sent_bytes == many.sent_bytes
    assert few.messages < many.messages
    assert few.peak_parameter_bytes == 1000 + 2000
    assert many.peak_parameter_bytes == 1000 + 40


def test_parameters_kept_after_forward_are_not_gathered_again():
    units = [100] * 4
    sharded, halves, whole = (
        unit_step(units, 4, reshard_after_forward=option) for option in (True, 2, False)
    )
    assert [s.all_gathers for s in (sharded, halves, whole)] == [8, 8, 4]
    assert [s.kept_bytes for s in (sharded, halves, whole)] == [0, 800, 1600]
    assert sharded.sent_bytes - halves.sent_bytes == pytest.approx((3 / 4 - 1 / 2) * 1600)
    assert halves.sent_bytes - whole.sent_bytes == pytest.approx(1 / 2 * 1600)
    assert [s.peak_parameter_bytes - 400 for s in (sharded, halves, whole)] == [400, 1000, 1600]


def test_one_rank_and_resharding_to_all_ranks():
    assert unit_step([100], 1).sent_bytes == 0
    assert unit_step([100], 1, reshard_after_forward=False).kept_bytes == 400
    assert unit_step([100], 4, reshard_after_forward=4) == unit_step([100], 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"units": [-1]}, "must not be negative"),
        ({"root": -1}, "must not be negative"),
        ({"element_bytes": 0}, "above 0"),
        ({"world_size": 0}, "at least one rank"),
        ({"reshard_after_forward": 3}, "divides world_size=4"),
        ({"reshard_after_forward": 1}, "from 2"),
        ({"reduce_scatter": "nccl"}, "expected one of ring, gloo"),
    ],
)
def test_invalid_arguments_raise(changed, message):
    arguments = {"units": [100], "world_size": 4} | changed
    with pytest.raises(ValueError, match=message):
        unit_step(arguments.pop("units"), arguments.pop("world_size"), **arguments)
