"""Bytes of a step by method match the papers and the collectives that each method consists of."""

import pytest

from shardlab.estimate import hub_sent_bytes, ring_sent_bytes
from shardlab.estimate.traffic import METHODS, sent_bytes


@pytest.mark.parametrize(("method", "psi"), [("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)])
def test_elements_sent_per_rank_at_large_world_sizes(method, psi):
    """arXiv 1910.02054, section 7: DP 2Ψ, P_os and P_os+g 2Ψ, P_os+g+p 3Ψ."""
    elements = sent_bytes(method, 10**6, 10**6, parameter_bytes=1, gradient_bytes=1)
    assert elements[0] == elements[-1] == pytest.approx(psi * 10**6, rel=1e-5)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_methods_consist_of_collectives(world_size):
    """The ring and the hub of shardlab.estimate.collectives, and fractions worked by hand."""
    share = (world_size - 1) / world_size
    assert sent_bytes("ddp", 1000, world_size) == [ring_sent_bytes(4000, world_size)] * world_size
    assert sent_bytes("hub", 1000, world_size) == hub_sent_bytes(4000, world_size)
    for method, halves in (("zero1", 2), ("zero2", 2), ("zero3", 3)):
        sent = sent_bytes(method, 1000, world_size)
        assert sent == pytest.approx([halves * share * 4000] * world_size)


def test_a_hub_sends_parameters_and_receives_gradients():
    sent = sent_bytes("hub", 100, 4, parameter_bytes=2, gradient_bytes=4)
    assert sent == [3 * 200, 400, 400, 400]


def test_gloo_runs_reduce_scatter_as_an_all_reduce():
    """Measured in ground-truth.md: 2.00 times the ideal, so ZeRO-2 sends 3Ψ there and not 2Ψ."""
    assert sent_bytes("zero2", 100, 4, reduce_scatter="gloo") == [900.0] * 4  # (2 + 1)·3/4·400
    assert sent_bytes("zero3", 100, 4, reduce_scatter="gloo") == [1200.0] * 4
    assert sent_bytes("ddp", 100, 4, reduce_scatter="gloo") == sent_bytes("ddp", 100, 4)


def test_accumulation_communicates_per_step_or_per_micro_batch():
    """8 micro-batches: DDP with and without no_sync; ZeRO-1 always gathers once."""
    assert sent_bytes("ddp", 100, 4, micro_batches=8) == sent_bytes("ddp", 100, 4)
    each_time = sent_bytes("ddp", 100, 4, micro_batches=8, sync="micro_batch")
    assert each_time == [8 * 600.0] * 4
    assert sent_bytes("zero1", 100, 4, micro_batches=8) == [600.0] * 4
    assert sent_bytes("zero1", 100, 4, micro_batches=8, sync="micro_batch") == [8 * 300.0 + 300] * 4
    assert sent_bytes("zero2", 100, 4, micro_batches=8, sync="micro_batch") == [8 * 300.0 + 300] * 4
    assert sent_bytes("zero3", 100, 4, micro_batches=8, sync="micro_batch") == [8 * 900.0] * 4


@pytest.mark.parametrize("method", ["zero2", "zero3"])
def test_stages_2_and_3_cannot_accumulate_until_the_step(method):
    with pytest.raises(ValueError, match="sync='micro_batch'"):
        sent_bytes(method, 100, 4, micro_batches=2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gradient_bytes", [2, 4])
def test_one_rank_sends_nothing(method, gradient_bytes):
    assert sent_bytes(method, 100, 1, gradient_bytes=gradient_bytes) == [0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "fsdp"}, "one of hub, ddp, zero1"),
        ({"sync": "never"}, "one of step, micro_batch"),
        ({"reduce_scatter": "nccl"}, "one of ring, gloo"),
        ({"micro_batches": 0}, "1 or more"),
        ({"world_size": 0}, "1 or more"),
        ({"gradient_bytes": 0}, "above 0"),
    ],
)
def test_invalid_arguments_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        sent_bytes(**{"method": "ddp", "parameters": 100, "world_size": 4, **wrong})
