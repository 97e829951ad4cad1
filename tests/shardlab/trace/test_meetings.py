from dataclasses import replace

from shardlab.trace.meetings import meetings
from tests.shardlab.widgets.synthetic import collective, p2p, ring_all_reduce


def test_each_send_meets_its_own_receive() -> None:
    run = ring_all_reduce(4)
    found = meetings(run.calls)
    assert len(found) == len(run.calls) / 2
    for meeting in found:
        sender, receiver = meeting.sender, meeting.receiver
        assert sender is not None
        assert receiver is not None
        assert (sender.peer, receiver.peer) == (receiver.rank, sender.rank)
        assert sender.seq == receiver.seq
        assert meeting.met_s == max(sender.start_s, receiver.start_s)


def test_a_collective_meets_when_its_last_rank_has_come() -> None:
    calls = [collective("all_reduce", r, 3, start_s=r / 10, end_s=1.0) for r in range(3)]
    [meeting] = meetings(calls)
    assert meeting.met_s == 0.2
    assert [call.rank for call in meeting.calls] == [0, 1, 2]
    [incomplete] = meetings(calls[:2])
    assert incomplete.met_s is None


def test_messages_with_other_tags_do_not_meet() -> None:
    send = p2p("send", 0, 1, 8, start_s=0, end_s=None)
    receive = replace(p2p("recv", 1, 0, 8, start_s=0, end_s=None), tag=7)
    assert [meeting.met_s for meeting in meetings([send, receive])] == [None, None]
