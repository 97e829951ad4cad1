from dataclasses import replace

import pytest

from shardlab.widgets.message_history import read_messages
from tests.shardlab.widgets.synthetic import hub, make_run, p2p, ring_all_reduce


def bits(*ranks: int) -> int:
    return sum(1 << rank for rank in ranks)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_ring_takes_two_rounds_of_steps(n: int) -> None:
    history = read_messages(ring_all_reduce(n).calls, n)
    assert history.steps == 2 * (n - 1)
    assert len(history.chunks) == n
    for step in range(history.steps):
        messages = [message for message in history.messages if message.step == step]
        assert [message.sender for message in messages] == list(range(n))
        assert [message.receiver for message in messages] == [(r + 1) % n for r in range(n)]


def test_at_first_each_rank_holds_its_own_data_in_every_chunk() -> None:
    history = read_messages(ring_all_reduce(4).calls, 4)
    assert history.held_at(0) == {(r, c): bits(r) for r in range(4) for c in range(4)}


def test_partial_sums_grow_along_the_ring() -> None:
    history = read_messages(ring_all_reduce(4).calls, 4)
    one = history.held_at(1)
    assert one[1, 0] == bits(0, 1)  # chunk 0 went from rank 0 to rank 1
    assert one[0, 0] == bits(0)  # rank 0 still has only its own data
    two = history.held_at(2)
    assert two[2, 0] == bits(0, 1, 2)
    three = history.held_at(3)  # reduce-scatter is done: one complete chunk on each rank
    for rank in range(4):
        whole = [c for c in range(4) if three[rank, c] == bits(0, 1, 2, 3)]
        assert whole == [(rank + 1) % 4]


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_at_the_end_every_rank_holds_everything(n: int) -> None:
    history = read_messages(ring_all_reduce(n).calls, n)
    assert set(history.held_at(history.steps).values()) == {bits(*range(n))}


def test_a_receive_directly_into_a_chunk_replaces_its_contents() -> None:
    # Only an all-gather: afterwards rank 0's chunk 1 holds only rank 1's data.
    calls = []
    for rank, peer in ((0, 1), (1, 0)):
        mine = {"offset": rank * 8, "storage_numel": 16, "world_size": 2}
        other = {"offset": peer * 8, "storage_numel": 16, "world_size": 2}
        calls.append(p2p("send", rank, peer, 8, start_s=0, end_s=1, **mine))
        calls.append(p2p("recv", rank, peer, 8, start_s=0, end_s=1, **other))
    held = read_messages(calls, 2).held_at(1)
    assert held == {(0, 0): bits(0), (0, 1): bits(1), (1, 0): bits(0), (1, 1): bits(1)}


def test_copies_of_chunks_do_not_count_as_chunks() -> None:
    history = read_messages(ring_all_reduce(4, clones=True).calls, 4)
    assert history.chunks == ()
    assert "does not show which part" in history.why_no_chunks
    assert history.steps == 6
    assert all(message.carried == 0 for message in history.messages)


def test_overlapping_parts_do_not_count_as_chunks() -> None:
    calls = [
        p2p("send", 0, 1, 6, start_s=0, end_s=1, offset=0, storage_numel=10),
        p2p("send", 1, 0, 6, start_s=0, end_s=1, offset=4, storage_numel=10),
    ]
    assert "overlap" in read_messages(calls, 2).why_no_chunks


def test_chunks_may_have_unequal_lengths_or_be_empty() -> None:
    calls = [
        p2p("send", 0, 1, 3, start_s=0, end_s=1, offset=0, storage_numel=5),
        p2p("send", 1, 0, 2, start_s=0, end_s=1, offset=3, storage_numel=5),
        p2p("send", 0, 1, 0, start_s=1, end_s=2, offset=5, storage_numel=5, seq=1),
    ]
    history = read_messages(calls, 2)
    assert [(chunk.start, chunk.stop) for chunk in history.chunks] == [(0, 3), (3, 5)]
    assert [message.chunk for message in history.messages] == [0, 1, None]


def test_a_send_after_an_arrival_is_a_later_step() -> None:
    # Rank 0 receives from all before it answers, so its first send is not in the first step.
    history = read_messages(hub(4).calls, 4)
    answers = [message.step for message in history.messages if message.sender == 0]
    assert answers == [1, 2, 3]
    assert {message.step for message in history.messages if message.sender != 0} == {0}


def test_a_relay_has_one_step_per_hop() -> None:
    calls = []
    for rank in range(3):
        times = {"start_s": float(rank), "end_s": rank + 0.5}
        calls.append(p2p("send", rank, rank + 1, 4, **times))
        calls.append(p2p("recv", rank + 1, rank, 4, **times))
    assert [message.step for message in read_messages(calls, 4).messages] == [0, 1, 2]


def test_a_message_that_never_arrived_changes_nothing() -> None:
    run = ring_all_reduce(4)
    calls = [replace(call, end_s=None) if call.op == "recv" else call for call in run.calls]
    history = read_messages(calls, 4)
    assert history.held_at(history.steps) == history.held_at(0)


def test_collectives_are_not_messages() -> None:
    assert read_messages(make_run(4, []).calls, 4).steps == 0
