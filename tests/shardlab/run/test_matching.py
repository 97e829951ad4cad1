from dataclasses import replace

from shardlab.run.matching import match_calls
from tests.shardlab.widgets.synthetic import collective, p2p, ring_all_reduce


def test_each_send_matches_its_own_receive() -> None:
    run = ring_all_reduce(4)
    found = match_calls(run.calls)
    assert len(found) == len(run.calls) / 2
    for matched in found:
        sender, receiver = matched.sender, matched.receiver
        assert sender is not None
        assert receiver is not None
        assert (sender.peer, receiver.peer) == (receiver.rank, sender.rank)
        assert sender.seq == receiver.seq
        assert matched.all_began_s == max(sender.start_s, receiver.start_s)


def test_all_calls_of_a_collective_have_begun_when_its_last_rank_joins() -> None:
    calls = [collective("all_reduce", r, 3, start_s=r / 10, end_s=1.0) for r in range(3)]
    [matched] = match_calls(calls)
    assert matched.all_began_s == 0.2
    assert [call.rank for call in matched.calls] == [0, 1, 2]
    [incomplete] = match_calls(calls[:2])
    assert incomplete.all_began_s is None


def test_messages_with_different_tags_do_not_match() -> None:
    send = p2p("send", 0, 1, 8, start_s=0, end_s=None)
    receive = replace(p2p("recv", 1, 0, 8, start_s=0, end_s=None), tag=7)
    assert [matched.all_began_s for matched in match_calls([send, receive])] == [None, None]
