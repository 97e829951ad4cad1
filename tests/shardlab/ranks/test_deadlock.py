"""Who can never go on: the reasoning alone, on logs written by hand."""

from __future__ import annotations

import pytest

from shardlab.ranks.deadlock import find_cycle, stuck
from tests.shardlab.story import Story


def stuck_ranks(story: Story) -> list[int]:
    return sorted(stuck(story.views(), story.log.groups))


def cycle_of(story: Story) -> tuple[int, ...]:
    return find_cycle(stuck(story.views(), story.log.groups))


@pytest.mark.parametrize("op", ["send", "recv"])
def test_two_ranks_in_the_same_direction_are_a_cycle(op: str) -> None:
    story = Story(2)
    story.call(0, op, 1)
    story.call(1, op, 0)
    assert stuck_ranks(story) == [0, 1]
    assert cycle_of(story) == (0, 1)


def test_send_that_meets_its_recv_is_no_deadlock() -> None:
    story = Story(2)
    story.call(0, "send", 1)
    story.call(1, "recv", 0)
    assert stuck_ranks(story) == []


def test_a_cycle_of_three_is_told_in_waiting_order() -> None:
    story = Story(4)
    for rank, waits_for in ((0, 2), (2, 1), (1, 0)):
        story.call(rank, "recv", waits_for)
    story.computes(3)
    assert stuck_ranks(story) == [0, 1, 2]
    assert cycle_of(story) == (0, 2, 1)


def test_who_waits_behind_a_cycle_is_stuck_but_not_of_it() -> None:
    story = Story(3)
    story.call(0, "recv", 1)
    story.call(1, "recv", 2)
    story.call(2, "recv", 1)
    assert stuck_ranks(story) == [0, 1, 2]
    assert cycle_of(story) == (1, 2)


@pytest.mark.parametrize("op", ["send", "recv"])
def test_a_partner_that_has_finished_never_comes(op: str) -> None:
    story = Story(2)
    story.call(0, op, 1)
    story.finish(1)
    assert stuck_ranks(story) == [0]
    assert cycle_of(story) == ()


def test_a_rank_that_computes_may_still_come() -> None:
    story = Story(2)
    story.call(0, "recv", 1)
    assert stuck_ranks(story) == []


def test_a_long_chain_that_ends_in_a_computing_rank_is_live() -> None:
    story = Story(5)
    for rank in range(4):
        story.call(rank, "recv", rank + 1)
    assert stuck_ranks(story) == []
    story.finish(4)
    assert stuck_ranks(story) == [0, 1, 2, 3]


def test_sends_pair_with_receives_in_order() -> None:
    story = Story(2)
    story.did(0, "send", 1)
    story.did(1, "recv", 0)
    story.call(0, "send", 1)  # the second: rank 1 has received but one
    story.finish(1)
    assert stuck_ranks(story) == [0]


def test_different_tags_never_meet() -> None:
    story = Story(2)
    story.call(0, "send", 1, tag=1)
    story.call(1, "recv", 0, tag=2)
    assert stuck_ranks(story) == [0, 1]


def test_one_of_several_open_calls_is_enough_to_be_stuck() -> None:
    story = Story(3)
    story.call(0, "recv", 1)
    story.call(0, "recv", 2)
    story.call(1, "send", 0)
    story.finish(2)
    assert 0 in stuck_ranks(story)


class TestFromAnyRank:
    def test_one_live_sender_will_do(self) -> None:
        story = Story(3)
        story.call(0, "recv", None)
        story.finish(1)
        assert stuck_ranks(story) == []

    def test_no_sender_is_left(self) -> None:
        story = Story(3)
        story.call(0, "recv", None)
        story.finish(1, 2)
        assert stuck_ranks(story) == [0]

    def test_what_was_sent_before_is_there(self) -> None:
        story = Story(2)
        story.call(1, "send", 0)
        story.call(0, "recv", None)
        assert stuck_ranks(story) == []


class TestCollectives:
    def test_matched_ones_in_progress_are_no_deadlock(self) -> None:
        story = Story(4)
        for rank in range(4):
            story.call(rank, "all_reduce")
        assert stuck_ranks(story) == []

    def test_one_that_a_finished_rank_never_enters(self) -> None:
        story = Story(3)
        story.call(0, "all_reduce")
        story.call(1, "all_reduce")
        story.finish(2)
        assert stuck_ranks(story) == [0, 1]
        assert cycle_of(story) == ()

    def test_a_late_rank_is_waited_for(self) -> None:
        story = Story(3)
        story.call(0, "barrier")
        story.call(1, "barrier")
        assert stuck_ranks(story) == []

    def test_they_are_counted_group_by_group(self) -> None:
        story = Story(4)
        story.group("low", 0, 1)
        story.group("high", 2, 3)
        for rank in (0, 1):
            story.call(rank, "all_reduce", group="low")
        story.call(2, "all_reduce", group="high")
        story.finish(3)
        assert stuck_ranks(story) == [2]

    def test_two_groups_entered_in_opposite_order_are_a_cycle(self) -> None:
        story = Story(2)
        story.group("a", 0, 1)
        story.group("b", 0, 1)
        story.call(0, "all_reduce", group="a")
        story.call(1, "all_reduce", group="b")
        assert cycle_of(story) == (0, 1)

    def test_a_collective_against_a_recv_is_a_cycle(self) -> None:
        story = Story(2)
        story.call(0, "all_reduce")
        story.call(1, "recv", 0)
        assert cycle_of(story) == (0, 1)


def test_cycle_begins_with_its_lowest_rank() -> None:
    story = Story(4)
    for rank, waits_for in ((3, 1), (1, 2), (2, 3)):
        story.call(rank, "send", waits_for)
    story.finish(0)
    assert cycle_of(story) == (1, 2, 3)


def test_two_separate_cycles_the_first_is_told() -> None:
    story = Story(4)
    for rank, waits_for in ((0, 1), (1, 0), (2, 3), (3, 2)):
        story.call(rank, "send", waits_for)
    assert stuck_ranks(story) == [0, 1, 2, 3]
    assert cycle_of(story) == (0, 1)


def test_nothing_is_stuck_when_all_have_finished() -> None:
    story = Story(2)
    story.finish(0, 1)
    assert stuck_ranks(story) == []
