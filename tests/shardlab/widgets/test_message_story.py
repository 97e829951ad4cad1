from dataclasses import replace

import pytest

from shardlab.widgets.message_story import read_story
from tests.shardlab.widgets.synthetic import hub, make_run, p2p, ring_all_reduce


def bits(*ranks: int) -> int:
    return sum(1 << rank for rank in ranks)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_ring_takes_two_rounds_of_steps(n: int) -> None:
    story = read_story(ring_all_reduce(n).calls, n)
    assert story.steps == 2 * (n - 1)
    assert len(story.chunks) == n
    for step in range(story.steps):
        together = [message for message in story.messages if message.step == step]
        assert [message.sender for message in together] == list(range(n))
        assert [message.receiver for message in together] == [(r + 1) % n for r in range(n)]


def test_at_first_each_rank_holds_its_own_data_in_every_chunk() -> None:
    story = read_story(ring_all_reduce(4).calls, 4)
    assert story.held_at(0) == {(r, c): bits(r) for r in range(4) for c in range(4)}


def test_partial_sums_fill_up_along_the_ring() -> None:
    story = read_story(ring_all_reduce(4).calls, 4)
    one = story.held_at(1)
    assert one[1, 0] == bits(0, 1)  # chunk 0 went from rank 0 to rank 1
    assert one[0, 0] == bits(0)  # and rank 0 still has its own
    two = story.held_at(2)
    assert two[2, 0] == bits(0, 1, 2)
    three = story.held_at(3)  # reduce-scatter is done: one whole chunk on each rank
    for rank in range(4):
        whole = [c for c in range(4) if three[rank, c] == bits(0, 1, 2, 3)]
        assert whole == [(rank + 1) % 4]


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_in_the_end_everyone_holds_everything(n: int) -> None:
    story = read_story(ring_all_reduce(n).calls, n)
    assert set(story.held_at(story.steps).values()) == {bits(*range(n))}


def test_a_receive_straight_into_a_chunk_replaces_what_was_there() -> None:
    # An all-gather alone: rank 0's chunk 1 comes to hold rank 1's data and nothing else.
    calls = []
    for rank, peer in ((0, 1), (1, 0)):
        mine = {"offset": rank * 8, "storage_numel": 16, "world_size": 2}
        other = {"offset": peer * 8, "storage_numel": 16, "world_size": 2}
        calls.append(p2p("send", rank, peer, 8, start_s=0, end_s=1, **mine))
        calls.append(p2p("recv", rank, peer, 8, start_s=0, end_s=1, **other))
    held = read_story(calls, 2).held_at(1)
    assert held == {(0, 0): bits(0), (0, 1): bits(1), (1, 0): bits(0), (1, 1): bits(1)}


def test_copies_of_chunks_are_not_taken_for_chunks() -> None:
    story = read_story(ring_all_reduce(4, clones=True).calls, 4)
    assert story.chunks == ()
    assert "does not tell" in story.why_no_chunks
    assert story.steps == 6
    assert all(message.carried == 0 for message in story.messages)


def test_overlapping_parts_are_not_taken_for_chunks() -> None:
    calls = [
        p2p("send", 0, 1, 6, start_s=0, end_s=1, offset=0, storage_numel=10),
        p2p("send", 1, 0, 6, start_s=0, end_s=1, offset=4, storage_numel=10),
    ]
    assert "overlap" in read_story(calls, 2).why_no_chunks


def test_chunks_of_unequal_length_and_an_empty_one_do() -> None:
    calls = [
        p2p("send", 0, 1, 3, start_s=0, end_s=1, offset=0, storage_numel=5),
        p2p("send", 1, 0, 2, start_s=0, end_s=1, offset=3, storage_numel=5),
        p2p("send", 0, 1, 0, start_s=1, end_s=2, offset=5, storage_numel=5, seq=1),
    ]
    story = read_story(calls, 2)
    assert [(chunk.start, chunk.stop) for chunk in story.chunks] == [(0, 3), (3, 5)]
    assert [message.chunk for message in story.messages] == [0, 1, None]


def test_what_follows_an_arrival_is_a_later_step() -> None:
    # Rank 0 hears from all before it answers: its first send is not of the first step.
    story = read_story(hub(4).calls, 4)
    answers = [message.step for message in story.messages if message.sender == 0]
    assert answers == [1, 2, 3]
    assert {message.step for message in story.messages if message.sender != 0} == {0}


def test_a_relay_is_one_step_for_each_hop() -> None:
    calls = []
    for rank in range(3):
        times = {"start_s": float(rank), "end_s": rank + 0.5}
        calls.append(p2p("send", rank, rank + 1, 4, **times))
        calls.append(p2p("recv", rank + 1, rank, 4, **times))
    assert [message.step for message in read_story(calls, 4).messages] == [0, 1, 2]


def test_a_message_that_never_arrived_changes_nothing() -> None:
    run = ring_all_reduce(4)
    calls = [replace(call, end_s=None) if call.op == "recv" else call for call in run.calls]
    story = read_story(calls, 4)
    assert story.held_at(story.steps) == story.held_at(0)


def test_collectives_are_no_messages() -> None:
    assert read_story(make_run(4, []).calls, 4).steps == 0
