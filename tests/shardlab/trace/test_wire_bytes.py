"""Bytes counted by the operating system in real runs, against what the algorithm must send.

S is the size of the tensor that each rank passes in; 1% covers gloo's headers.
"""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardlab import Run, launch, measure
from shardlab.trace import measured_traffic, wire

pytestmark = pytest.mark.ranks
S = 4 << 20


@pytest.mark.parametrize("world_size", [2, 4])
def test_all_reduce_sends_the_ring_formulas_bytes_along_the_ring(world_size: int) -> None:
    def reduce() -> None:
        dist.all_reduce(torch.ones(S // 4))

    run = launch(reduce, world_size=world_size, quiet=True)
    ideal = measured_traffic.ring_bytes(run.calls, world_size)
    assert ideal.sum() == world_size * 2 * (world_size - 1) / world_size * S
    sent = run.traffic.sent_bytes
    assert sent.sum(axis=1) == pytest.approx(ideal.sum(axis=1), rel=0.01)
    next_rank = [(rank + 1) % world_size for rank in range(world_size)]
    previous = [(rank - 1) % world_size for rank in range(world_size)]
    ranks = range(world_size)
    forward, backward = sent[ranks, next_rank].sum(), sent[ranks, previous].sum()
    assert max(forward, backward) > 0.99 * sent.sum()  # gloo's ring may run in either direction
    assert run.traffic.source == measured_traffic.FROM_COUNTERS


@pytest.fixture(scope="module")
def blocks() -> Run:
    """Rank 0 sends known amounts to rank 1, inside and outside of measured blocks."""

    def work() -> None:
        rank = dist.get_rank()
        small, large = torch.ones(1000), torch.ones(250_000)
        for _ in range(2):
            with measure("small"):
                exchange(rank, small)
        with measure("large"):
            with measure("nothing"):
                pass
            exchange(rank, large)
        exchange(rank, large)  # in no block

    def exchange(rank: int, tensor: torch.Tensor) -> None:
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(torch.empty_like(tensor), 0)

    return launch(work, world_size=2, quiet=True)


def test_blocks_are_counted_separately(blocks: Run) -> None:
    assert list(blocks.traffic) == ["small", "nothing", "large"]
    assert blocks.traffic["small"].sent_bytes[0, 1] == pytest.approx(8_000, rel=0.05)
    assert blocks.traffic["large"].sent_bytes[0, 1] == pytest.approx(1_000_000, rel=0.01)
    assert blocks.traffic["nothing"].sent_bytes.sum() == 0
    assert blocks.traffic.sent_bytes[0, 1] == pytest.approx(2_008_000, rel=0.01)


def test_a_rank_that_only_receives_sends_almost_nothing(blocks: Run) -> None:
    assert blocks.traffic.sent_bytes[1, 0] < 1_000
    assert np.diag(blocks.traffic.sent_bytes).sum() == 0


def test_blocks_are_in_order_and_within_the_run(blocks: Run) -> None:
    of_rank_0 = [block for block in blocks.traffic.blocks if block.rank == 0]
    assert [block.label for block in of_rank_0] == ["small", "small", "nothing", "large"]
    assert all(0 <= block.start_s <= block.end_s <= blocks.wall_s for block in of_rank_0)


def test_the_rendezvous_is_not_counted() -> None:
    run = launch(int, world_size=4, quiet=True)
    assert run.traffic.sent_bytes.sum() == 0
    assert run.calls == []


def test_a_group_created_and_destroyed_in_the_run_is_counted_without_its_handshake() -> None:
    def work() -> None:
        group = dist.new_group([0, 2])
        if dist.get_rank() in (0, 2):
            tensor = torch.ones(S // 4)
            dist.all_reduce(tensor, group=group)
            dist.destroy_process_group(group)

    sent = launch(work, world_size=3, quiet=True).traffic.sent_bytes
    assert sent[0, 2] == pytest.approx(S, rel=0.01)
    assert sent[2, 0] == pytest.approx(S, rel=0.01)
    assert sent.sum() == pytest.approx(2 * S, rel=0.01)


def test_a_connection_whose_peer_closed_with_bytes_unread_is_still_counted() -> None:
    """As in gloo, when one rank destroys a group first: a reset would lose the count."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ports = ours.getsockname()[1], ours.getpeername()[1]
    ours.sendall(b"unread")
    held = wire.duplicate_sockets(exclude=[])
    assert wire.duplicate_sockets(exclude=held) == []
    theirs.close()
    assert wire.own_connections()[ports] == len(b"unread")
    for fd in held:
        os.close(fd)
    assert ports not in wire.own_connections()
    ours.close()


def test_a_default_group_destroyed_at_the_end_is_still_counted() -> None:
    def work() -> None:
        dist.all_reduce(torch.ones(S // 4))
        dist.destroy_process_group()  # as scripts for torchrun do

    sent = launch(work, world_size=2, quiet=True).traffic.sent_bytes
    assert sent[0, 1] == pytest.approx(S, rel=0.01)
    assert sent[1, 0] == pytest.approx(S, rel=0.01)


def test_other_connections_are_not_traffic_between_ranks() -> None:
    def work() -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
            ours.sendall(b"x" * 100_000)
            theirs.recv(100_000)

    sent = launch(work, world_size=2, quiet=True).traffic.sent_bytes
    assert sent[0, 1] == sent[1, 0] == 0


def test_connections_over_ipv6_are_seen_too() -> None:
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        client.send(b"12345")
        ports = client.getsockname()[1], server.getsockname()[1]
        (at,) = (c for c in wire.own_connections() if (*map(wire.port, c),) == ports)
        (found,) = (each for each in wire.sockets() if each.connection == at)
    assert found.written_bytes == 5
