"""Byte formulas match measurements in ground-truth.md and small cases worked by hand."""

import pytest

from shardlab.estimate import (
    hub_sent_bytes,
    ring_messages,
    ring_sent_bytes,
    scatter_or_gather_sent_bytes,
)

MIB = 2**20


def test_a_ring_of_four_sends_one_and_a_half_tensors():
    assert ring_sent_bytes(4 * MIB, 4) == 6 * MIB  # measured: 6.002 MiB


def test_a_ring_approaches_two_tensors_per_rank_and_never_reaches_them():
    sent = [ring_sent_bytes(1.0, n) for n in (1, 2, 8, 1024)]
    assert sent == [0, 1, 1.75, 2 * 1023 / 1024]


def test_reduce_scatter_and_all_gather_are_half_an_all_reduce_each():
    assert scatter_or_gather_sent_bytes(8 * MIB, 8) == 7 * MIB
    assert ring_sent_bytes(8 * MIB, 8) == 14 * MIB


def test_the_hub_carries_all_traffic():
    assert hub_sent_bytes(MIB, 4) == [3 * MIB, MIB, MIB, MIB]
    into_the_hub = sum(hub_sent_bytes(MIB, 4)[1:])
    assert hub_sent_bytes(MIB, 4)[0] + into_the_hub == 2 * (4 - 1) * MIB


def test_hub_and_ring_send_the_same_bytes_in_total():
    for world_size in (1, 2, 3, 8, 64):
        in_a_ring = world_size * ring_sent_bytes(MIB, world_size)
        assert sum(hub_sent_bytes(MIB, world_size)) == pytest.approx(in_a_ring)


def test_messages_of_a_ring():
    assert [ring_messages(n) for n in (1, 2, 4, 8)] == [0, 2, 6, 14]


@pytest.mark.parametrize("formula", [ring_sent_bytes, scatter_or_gather_sent_bytes, hub_sent_bytes])
def test_invalid_arguments_raise(formula):
    with pytest.raises(ValueError, match="at least one rank"):
        formula(MIB, 0)
    with pytest.raises(ValueError, match="must not be negative"):
        formula(-1, 4)
