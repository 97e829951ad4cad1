"""The simulator matches timelines worked by hand, and explains schedules that cannot run."""

import copy

import pytest

from shardlab.simulate.pipeline import (
    Action,
    Costs,
    IllegalSchedule,
    gpipe,
    interleaved_one_f_one_b,
    naive,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_v,
)


def test_two_devices_two_micro_batches_by_hand():
    """F 1, B 2:   device 0  F F . . B B . .  ->  0-1 1-2, 4-6 6-8;  device 1  1-2 2-4, 4-5, 5-7"""
    timeline = simulate(one_f_one_b(2, 2))
    assert [(str(a), start, end) for a, start, end in timeline.slots[0]] == [
        ("0F0", 0, 1),
        ("0F1", 1, 2),
        ("0B0", 4, 6),
        ("0B1", 7, 9),
    ]
    assert [(str(a), start, end) for a, start, end in timeline.slots[1]] == [
        ("1F0", 1, 2),
        ("1B0", 2, 4),
        ("1F1", 4, 5),
        ("1B1", 5, 7),
    ]
    assert timeline.makespan == 9
    assert timeline.busy == (6, 6)
    assert timeline.idle == (3, 3)
    assert timeline.bubble_over_ideal == pytest.approx(0.5)
    assert timeline.bubble_fraction == pytest.approx(1 / 3)


def test_a_schedule_may_be_plain_tuples_and_lists():
    plain = [[tuple(action) for action in actions] for actions in one_f_one_b(3, 4)]
    assert simulate(plain) == simulate(one_f_one_b(3, 4))
    assert simulate(dict(enumerate(plain))) == simulate(plain)
    assert Action("F", 0, 1) == ("F", 0, 1)


def test_only_messages_between_devices_take_time():
    """p−1 hops forward and p−1 back; between two stages on one device there is no delay."""
    without, with_send = simulate(naive(4)), simulate(naive(4), Costs(send=0.5))
    assert with_send.makespan == without.makespan + 2 * 3 * 0.5
    alone = [[Action("F", 0, 0), Action("F", 1, 0), Action("B", 1, 0), Action("B", 0, 0)]]
    assert simulate(alone, Costs(send=9)).makespan == 6


def test_costs_by_stage():
    slow_last = Costs(forward=[1, 1, 1, 3])
    timeline = simulate(gpipe(4, 4), slow_last)
    assert timeline.busy == (12, 12, 12, 20)
    assert timeline.bubble_over_ideal == timeline.makespan / 20 - 1
    with pytest.raises(ValueError, match="none for stage 3"):
        simulate(gpipe(4, 4), Costs(forward=[1, 1, 1]))
    for impossible in (Costs(forward=0), Costs(backward_input=-1), Costs(send=-1)):
        with pytest.raises(ValueError, match=r"above 0|below 0"):
            simulate(gpipe(2, 2), impossible)


def test_a_split_backward_holds_its_activations_until_w():
    early = [[("F", 0, 0), ("I", 0, 0), ("W", 0, 0), ("F", 0, 1), ("I", 0, 1), ("W", 0, 1)]]
    late = [[("F", 0, 0), ("I", 0, 0), ("F", 0, 1), ("I", 0, 1), ("W", 0, 0), ("W", 0, 1)]]
    assert simulate(early).peak_in_flight == (1,)
    assert simulate(late).peak_in_flight == (2,)
    assert simulate(early).makespan == simulate(late).makespan == 6


@pytest.mark.parametrize("p", [1, 2, 3, 5])
@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_no_generator_makes_an_illegal_schedule(p, m):
    schedules = [naive(p, m), gpipe(p, m), one_f_one_b(p, m), zb_h1(p, m), zb_v(p, m)]
    if m % max(1, m // p) == 0:
        schedules += [interleaved_one_f_one_b(p, m, v) for v in (1, 2, 3)]
    for schedule in schedules:
        timeline = simulate(schedule)
        assert all(slot.end > slot.start for slots in timeline.slots for slot in slots)


@pytest.mark.parametrize("generator", [gpipe, one_f_one_b, zb_h1, zb_v, naive])
def test_invalid_sizes_raise(generator):
    for p, m in ((0, 4), (2, 0), (2, 1.5)):
        with pytest.raises(ValueError, match="whole number"):
            generator(p, m)
    with pytest.raises(ValueError, match="do not divide into 2 rounds"):
        interleaved_one_f_one_b(4, 9, 2)


# ---- illegal schedules, by what is wrong ----


def changed(schedule, change):
    schedule = copy.deepcopy(schedule)
    change(schedule)
    return schedule


def backward_first(schedule):
    schedule[1].sort(key=lambda action: action.kind)


def reverse_micro_batches(schedule):
    schedule[1] = [Action(a.kind, a.stage, 3 - a.micro_batch) for a in schedule[1]]


ILLEGAL = {
    "not a list": (7, "form", "a list of lists, not int"),
    "empty": ([[], []], "form", "empty"),
    "not a list of actions": ([3], "form", "device 0 has int"),
    "not three": ([[("F", 0)]], "form", r"device 0, position 0: \('F', 0\) is not an action"),
    "unknown kind": ([[("X", 0, 0)]], "form", "kind must be one of F, B, I, W"),
    "kind is not a string": ([[([], 0, 0)]], "form", "kind must be one of"),
    "not an integer": ([[("F", 0, "a")]], "form", "must be integers"),
    "negative": ([[("F", -1, 0)]], "form", "must not be negative"),
    "no stage 0": ([[("F", 1, 0), ("B", 1, 0)]], "missing", "no device runs stage 0"),
    "no backward": ([[("F", 0, 0)]], "missing", "stage 0's backward of micro-batch 0"),
    "no W": ([[("F", 0, 0), ("I", 0, 0)]], "missing", "stage 0's weight backward"),
    "twice": ([[("F", 0, 0), ("F", 0, 0)]], "twice", "stage 0's forward of micro-batch 0 twice"),
    "whole and halves": (
        [[("F", 0, 0), ("I", 0, 0), ("W", 0, 0), ("B", 0, 0)]],
        "twice",
        "both whole and in halves",
    ),
    "two devices": (
        [[("F", 0, 0)], [("B", 0, 0)]],
        "placement",
        "stage 0 is on devices 0 and 1",
    ),
    "backward before forward": (
        changed(gpipe(2, 2), backward_first),
        "order",
        "stage 1's backward of micro-batch 0 needs its forward first: device 1 lists it later",
    ),
    "W before I": (
        [[("F", 0, 0), ("W", 0, 0), ("I", 0, 0)]],
        "order",
        "weight backward of micro-batch 0 needs its input backward first",
    ),
    "chunks in the wrong order": (
        [[("F", 1, 0), ("F", 0, 0), ("B", 1, 0), ("B", 0, 0)]],
        "order",
        "stage 1's forward of micro-batch 0 needs stage 0's forward first",
    ),
    "devices wait for each other": (
        changed(one_f_one_b(2, 4), reverse_micro_batches),
        "waits",
        r"stage 0's backward of micro-batch 0 needs stage 1's backward first: device 0 waits "
        r"forever \(device 0 waits in 0B0 for 1B0 of device 1; device 1 waits in 1F3 for 0F3 of ",
    ),
}


@pytest.mark.parametrize(("schedule", "rule", "message"), ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_schedule_raises_with_its_rule(schedule, rule, message):
    with pytest.raises(IllegalSchedule, match=message) as raised:
        simulate(schedule)
    assert raised.value.rule == rule


def test_the_message_names_the_devices_in_a_cycle():
    """Device 2 waits for a cycle of devices 0 and 1."""
    schedule = changed(one_f_one_b(3, 4), reverse_micro_batches)
    with pytest.raises(IllegalSchedule, match=r"device 1 waits in 1F3 for 0F3 of device 0\)"):
        simulate(schedule)
