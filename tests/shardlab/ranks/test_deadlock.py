"""Finding the ranks that can never continue, on scripted ranks."""

from __future__ import annotations

import pytest

from shardlab.ranks.deadlock import find_cycle, stuck
from tests.shardlab.scripted_ranks import ScriptedRanks


def stuck_ranks(ranks: ScriptedRanks) -> list[int]:
    return sorted(stuck(ranks.views(), ranks.log.groups))


def cycle_of(ranks: ScriptedRanks) -> tuple[int, ...]:
    return find_cycle(stuck(ranks.views(), ranks.log.groups))


@pytest.mark.parametrize("op", ["send", "recv"])
def test_two_ranks_that_both_send_or_both_receive_are_a_cycle(op: str) -> None:
    ranks = ScriptedRanks(2)
    ranks.call(0, op, 1)
    ranks.call(1, op, 0)
    assert stuck_ranks(ranks) == [0, 1]
    assert cycle_of(ranks) == (0, 1)


def test_a_matched_send_is_not_a_deadlock() -> None:
    ranks = ScriptedRanks(2)
    ranks.call(0, "send", 1)
    ranks.call(1, "recv", 0)
    assert stuck_ranks(ranks) == []


def test_a_cycle_of_three_lists_each_rank_before_the_one_it_waits_for() -> None:
    ranks = ScriptedRanks(4)
    for rank, waits_for in ((0, 2), (2, 1), (1, 0)):
        ranks.call(rank, "recv", waits_for)
    ranks.computes(3)
    assert stuck_ranks(ranks) == [0, 1, 2]
    assert cycle_of(ranks) == (0, 2, 1)


def test_a_rank_that_waits_for_a_cycle_is_stuck_but_not_in_the_cycle() -> None:
    ranks = ScriptedRanks(3)
    ranks.call(0, "recv", 1)
    ranks.call(1, "recv", 2)
    ranks.call(2, "recv", 1)
    assert stuck_ranks(ranks) == [0, 1, 2]
    assert cycle_of(ranks) == (1, 2)


@pytest.mark.parametrize("op", ["send", "recv"])
def test_a_peer_that_has_finished_never_matches(op: str) -> None:
    ranks = ScriptedRanks(2)
    ranks.call(0, op, 1)
    ranks.finish(1)
    assert stuck_ranks(ranks) == [0]
    assert cycle_of(ranks) == ()


def test_a_rank_that_computes_may_still_match() -> None:
    ranks = ScriptedRanks(2)
    ranks.call(0, "recv", 1)
    assert stuck_ranks(ranks) == []


def test_a_long_chain_that_ends_in_a_computing_rank_is_live() -> None:
    ranks = ScriptedRanks(5)
    for rank in range(4):
        ranks.call(rank, "recv", rank + 1)
    assert stuck_ranks(ranks) == []
    ranks.finish(4)
    assert stuck_ranks(ranks) == [0, 1, 2, 3]


def test_sends_pair_with_receives_in_order() -> None:
    ranks = ScriptedRanks(2)
    ranks.completed(0, "send", 1)
    ranks.completed(1, "recv", 0)
    ranks.call(0, "send", 1)  # the second; rank 1 received only one
    ranks.finish(1)
    assert stuck_ranks(ranks) == [0]


def test_different_tags_never_match() -> None:
    ranks = ScriptedRanks(2)
    ranks.call(0, "send", 1, tag=1)
    ranks.call(1, "recv", 0, tag=2)
    assert stuck_ranks(ranks) == [0, 1]


def test_one_stuck_call_of_several_blocks_a_rank() -> None:
    ranks = ScriptedRanks(3)
    ranks.call(0, "recv", 1)
    ranks.call(0, "recv", 2)
    ranks.call(1, "send", 0)
    ranks.finish(2)
    assert 0 in stuck_ranks(ranks)


class TestFromAnyRank:
    def test_one_live_sender_is_enough(self) -> None:
        ranks = ScriptedRanks(3)
        ranks.call(0, "recv", None)
        ranks.finish(1)
        assert stuck_ranks(ranks) == []

    def test_no_sender_is_left(self) -> None:
        ranks = ScriptedRanks(3)
        ranks.call(0, "recv", None)
        ranks.finish(1, 2)
        assert stuck_ranks(ranks) == [0]

    def test_an_earlier_send_matches(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(1, "send", 0)
        ranks.call(0, "recv", None)
        assert stuck_ranks(ranks) == []


class TestCollectives:
    def test_a_collective_that_all_ranks_entered_is_not_a_deadlock(self) -> None:
        ranks = ScriptedRanks(4)
        for rank in range(4):
            ranks.call(rank, "all_reduce")
        assert stuck_ranks(ranks) == []

    def test_a_collective_that_a_finished_rank_never_enters(self) -> None:
        ranks = ScriptedRanks(3)
        ranks.call(0, "all_reduce")
        ranks.call(1, "all_reduce")
        ranks.finish(2)
        assert stuck_ranks(ranks) == [0, 1]
        assert cycle_of(ranks) == ()

    def test_waiting_for_a_late_rank_is_not_a_deadlock(self) -> None:
        ranks = ScriptedRanks(3)
        ranks.call(0, "barrier")
        ranks.call(1, "barrier")
        assert stuck_ranks(ranks) == []

    def test_collectives_are_counted_per_group(self) -> None:
        ranks = ScriptedRanks(4)
        ranks.group("low", 0, 1)
        ranks.group("high", 2, 3)
        for rank in (0, 1):
            ranks.call(rank, "all_reduce", group="low")
        ranks.call(2, "all_reduce", group="high")
        ranks.finish(3)
        assert stuck_ranks(ranks) == [2]

    def test_two_groups_entered_in_opposite_order_are_a_cycle(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.group("a", 0, 1)
        ranks.group("b", 0, 1)
        ranks.call(0, "all_reduce", group="a")
        ranks.call(1, "all_reduce", group="b")
        assert cycle_of(ranks) == (0, 1)

    def test_a_collective_against_a_recv_is_a_cycle(self) -> None:
        ranks = ScriptedRanks(2)
        ranks.call(0, "all_reduce")
        ranks.call(1, "recv", 0)
        assert cycle_of(ranks) == (0, 1)


def test_a_cycle_begins_with_its_lowest_rank() -> None:
    ranks = ScriptedRanks(4)
    for rank, waits_for in ((3, 1), (1, 2), (2, 3)):
        ranks.call(rank, "send", waits_for)
    ranks.finish(0)
    assert cycle_of(ranks) == (1, 2, 3)


def test_of_two_separate_cycles_the_first_is_returned() -> None:
    ranks = ScriptedRanks(4)
    for rank, waits_for in ((0, 1), (1, 0), (2, 3), (3, 2)):
        ranks.call(rank, "send", waits_for)
    assert stuck_ranks(ranks) == [0, 1, 2, 3]
    assert cycle_of(ranks) == (0, 1)


def test_nothing_is_stuck_when_all_have_finished() -> None:
    ranks = ScriptedRanks(2)
    ranks.finish(0, 1)
    assert stuck_ranks(ranks) == []


class TestAnUnpluggedNode:
    """Ranks 2 and 3 are on it."""

    def unplugged(self, ranks: ScriptedRanks) -> list[int]:
        return sorted(stuck(ranks.views(), ranks.log.groups, unplugged={2, 3}))

    def test_a_matched_call_across_the_link_never_ends(self) -> None:
        ranks = ScriptedRanks(4)
        ranks.call(0, "send", 2)
        ranks.call(2, "recv", 0)
        assert stuck_ranks(ranks) == []
        assert self.unplugged(ranks) == [0, 2]

    def test_a_call_on_one_side_of_it_ends(self) -> None:
        ranks = ScriptedRanks(4)
        for group in ((0, 1), (2, 3)):
            ranks.group(str(group), *group)
            for rank in group:
                ranks.call(rank, "all_reduce", group=str(group))
        assert self.unplugged(ranks) == []

    def test_the_part_of_a_rank_that_still_computes_may_be_missing(self) -> None:
        ranks = ScriptedRanks(4)
        for rank in (0, 1, 2):
            ranks.call(rank, "all_reduce")
        assert self.unplugged(ranks) == []
        ranks.call(3, "all_reduce")
        assert self.unplugged(ranks) == [0, 1, 2, 3]
