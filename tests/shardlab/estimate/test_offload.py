"""Offload's bytes match the papers; its time model matches cases worked by hand."""

import pytest

from shardlab.estimate import memory
from shardlab.estimate.offload import PLACEMENTS, Transfers, moved_bytes, step_seconds

# One device at 6 TFLOP/s, 1B parameters, 1000 tokens: 1 s of compute, a third of it in forward.
RATES = {
    "tokens_per_step": 1000,
    "device_flops_per_s": 6e12,
    "link_bytes_per_s": 10e9,
    "host_parameters_per_s": 2e9,
}


def test_zero_offload_moves_2_psi_bytes_each_way():
    """arXiv 2101.06840, section 3: 4M bytes in total, the minimum of all such partitions."""
    assert moved_bytes(10e9) == Transfers(to_host_bytes=20e9, to_device_bytes=20e9)


def test_each_rank_moves_its_own_partition():
    """arXiv 2101.06840, section 4.2: the total stays the same."""
    for placement in PLACEMENTS:
        alone, of_four = moved_bytes(8e9, placement), moved_bytes(8e9, placement, world_size=4)
        assert of_four.to_host_bytes * 4 == alone.to_host_bytes
        assert of_four.to_device_bytes * 4 == alone.to_device_bytes


def test_moving_the_states_instead_of_the_update_costs_six_times_the_bytes():
    """12 bytes of states per parameter against 2 of its gradient, as in estimate.memory."""
    assert moved_bytes(10, "swap").to_host_bytes == 6 * moved_bytes(10).to_host_bytes
    adam = memory.PRECISION_BYTES["fp16"][2] + memory.STATE_BYTES["adam"]
    assert moved_bytes(10, "swap").to_host_bytes == 10 * adam


def test_offloaded_parameters_move_to_the_device_twice():
    """arXiv 2104.07857, section 4: for forward and for backward; gradients move once."""
    assert moved_bytes(10, "parameters") == Transfers(to_host_bytes=20, to_device_bytes=40)
    accumulated = moved_bytes(10, "parameters", micro_batches=8)
    assert accumulated == Transfers(to_host_bytes=160, to_device_bytes=320)
    assert moved_bytes(10, micro_batches=8) == Transfers(to_host_bytes=160, to_device_bytes=20)


@pytest.mark.parametrize(
    ("stage", "micro_batches", "down", "gradients_up"),
    [(2, 1, 4, 0), (2, 4, 12, 6), (2, 8, 20, 14), (3, 1, 6, 2), (3, 4, 12, 8)],
)
def test_deepspeed_also_moves_the_accumulated_gradients(stage, micro_batches, down, gradients_up):
    """Stage 2 with one and four micro-batches was measured, the others follow from its code."""
    moved = moved_bytes(8, world_size=4, micro_batches=micro_batches, deepspeed_stage=stage)
    assert moved == Transfers(to_host_bytes=2 * down, to_device_bytes=2 * (gradients_up + 2))


def test_nvme_reads_and_writes_the_states():
    moved = moved_bytes(10, "nvme")
    assert moved.nvme_read_bytes == 40 + 120
    assert moved.nvme_written_bytes == 120 + 20


@pytest.mark.parametrize(
    ("placement", "overlapping_s", "sequential_s"),
    [
        ("device", 1.0, 1.0),
        ("swap", 1.0 + 1.2, 1.0 + 2.4),
        ("zero-offload", 1.0 + 0.5, 1.0 + 0.2 + 0.5 + 0.2),
        ("parameters", 1.0 + 0.5, 1.0 + 3 * 0.2 + 0.5),
        # NVMe at 4 GB/s: 2 GB in forward, 2 GB in backward (0.5 s each), 12 + 14 GB in the update.
        ("nvme", 0.5 + 2 / 3 + 6.5, 1.0 + 3 * 0.2 + 0.5 + 7.5),
    ],
)
def test_steps_worked_by_hand(placement, overlapping_s, sequential_s):
    rates = RATES | {"nvme_bytes_per_s": 4e9}
    assert step_seconds(1e9, placement, **rates).step_s == pytest.approx(overlapping_s)
    plain = step_seconds(1e9, placement, overlap=False, **rates)
    assert plain.step_s == pytest.approx(sequential_s)
    parts = (plain.forward_s, plain.backward_s, plain.update_s)
    assert sum(parts) == pytest.approx(sequential_s)
    assert [sum(piece.values()) for piece in plain.pieces.values()] == pytest.approx(parts)


def test_a_slow_link_determines_the_time_of_backward_and_update():
    slow = step_seconds(1e9, **(RATES | {"link_bytes_per_s": 1e9}))
    assert slow.backward_s == 2.0  # 2 GB over 1 GB/s, not the 2/3 s of compute
    assert slow.update_s == 2.0


def test_a_delayed_update_overlaps_with_the_next_step():
    """arXiv 2101.06840, section 5.2: the host updates during forward and backward."""
    assert step_seconds(1e9, delayed_update=True, **RATES).step_s == pytest.approx(1.0)
    small_batch = RATES | {"tokens_per_step": 100}
    waiting = step_seconds(1e9, delayed_update=True, **small_batch)
    assert waiting.step_s == pytest.approx(0.5)  # here the host is the bottleneck


def test_more_ranks_share_one_host():
    """Each rank computes and moves a quarter; the host still updates every parameter."""
    four = step_seconds(1e9, world_size=4, **RATES)
    assert four.forward_s + four.backward_s == pytest.approx(0.25)
    assert four.pieces["update"] == pytest.approx({"host_update": 0.5, "to_device": 0.05})


def test_a_larger_batch_makes_offload_cheaper():
    def slowdown(tokens: int) -> float:
        rates = RATES | {"tokens_per_step": tokens}
        return step_seconds(1e9, **rates).step_s / step_seconds(1e9, "device", **rates).step_s

    assert slowdown(1000) == pytest.approx(1.5)
    assert slowdown(10_000) == pytest.approx(1.05)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"placement": "disk"}, "one of device, swap, zero-offload"),
        ({"placement": "nvme"}, "needs nvme_bytes_per_s"),
        ({"placement": "parameters", "delayed_update": True}, "placement='zero-offload'"),
        ({"link_bytes_per_s": 0}, "link_bytes_per_s=0: must be above 0"),
        ({"world_size": 0}, "1 or more"),
    ],
)
def test_invalid_arguments_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        step_seconds(**{"parameters": 1e9, **RATES, **wrong})
    with pytest.raises(ValueError, match="1 or more"):
        moved_bytes(10, micro_batches=0)
    with pytest.raises(ValueError, match="expected 2 or 3"):
        moved_bytes(10, "swap", deepspeed_stage=2)
