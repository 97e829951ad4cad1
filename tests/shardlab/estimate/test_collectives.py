"""Bytes by formula, against the ground truth's rows and against small cases done by hand."""

import pytest

from shardlab.estimate import (
    hub_sent_bytes,
    ring_messages,
    ring_sent_bytes,
    scatter_or_gather_sent_bytes,
)

MIB = 2**20


def test_a_ring_of_four_sends_one_and_a_half_tensors():
    assert ring_sent_bytes(4 * MIB, 4) == 6 * MIB  # the measured row: 6.002 MiB of 6.000


def test_a_ring_approaches_two_tensors_per_rank_and_never_reaches_them():
    sent = [ring_sent_bytes(1.0, n) for n in (1, 2, 8, 1024)]
    assert sent == [0, 1, 1.75, 2 * 1023 / 1024]


def test_each_half_of_a_ring_is_half_of_it():
    assert scatter_or_gather_sent_bytes(8 * MIB, 8) == 7 * MIB
    assert ring_sent_bytes(8 * MIB, 8) == 14 * MIB


def test_a_hub_carries_the_traffic_of_all():
    assert hub_sent_bytes(MIB, 4) == [3 * MIB, MIB, MIB, MIB]
    into_the_hub = sum(hub_sent_bytes(MIB, 4)[1:])
    assert hub_sent_bytes(MIB, 4)[0] + into_the_hub == 2 * (4 - 1) * MIB


def test_hub_and_ring_move_the_same_bytes_in_all():
    for world_size in (1, 2, 3, 8, 64):
        in_a_ring = world_size * ring_sent_bytes(MIB, world_size)
        assert sum(hub_sent_bytes(MIB, world_size)) == pytest.approx(in_a_ring)


def test_messages_of_a_ring():
    assert [ring_messages(n) for n in (1, 2, 4, 8)] == [0, 2, 6, 14]


@pytest.mark.parametrize("formula", [ring_sent_bytes, scatter_or_gather_sent_bytes, hub_sent_bytes])
def test_what_cannot_be_is_refused(formula):
    with pytest.raises(ValueError, match="at least one rank"):
        formula(MIB, 0)
    with pytest.raises(ValueError, match="not negative"):
        formula(-1, 4)
