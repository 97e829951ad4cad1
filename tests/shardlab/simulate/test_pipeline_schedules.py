"""Schedules have the published bubbles and memory peaks, and the same orders as torch's."""

from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from shardlab.simulate.pipeline import (
    KINDS,
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

SIZES = [(1, 1), (2, 2), (2, 8), (3, 7), (4, 8), (4, 16), (8, 32)]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe_and_1f1b_have_the_published_bubble(p, m):
    """Over ideal (p−1)/m (arXiv 2104.04473, section 2.2); as a fraction (p−1)/(m+p−1)."""
    for schedule in (gpipe(p, m), one_f_one_b(p, m)):
        for costs in (Costs(), Costs(2, 3, 1)):
            timeline = simulate(schedule, costs)
            assert timeline.bubble_over_ideal == pytest.approx((p - 1) / m)
            assert timeline.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_activations_in_flight_as_published(p, m):
    """GPipe m on every stage; 1F1B min(m, p−i) on stage i (arXiv 2006.09503, 2104.04473)."""
    assert set(simulate(gpipe(p, m)).in_flight.values()) == {m}
    assert simulate(one_f_one_b(p, m)).in_flight == {i: min(m, p - i) for i in range(p)}


def test_bubbles_of_four_devices_and_eight_micro_batches():
    """0.375; v = 2: 0.1875; as a fraction 0.273 (by the formulas in ground-truth.md)."""
    assert simulate(one_f_one_b(4, 8)).bubble_over_ideal == 0.375
    assert simulate(one_f_one_b(4, 8)).bubble_fraction == pytest.approx(0.273, abs=5e-4)
    assert simulate(interleaved_one_f_one_b(4, 8, 2)).bubble_over_ideal == 0.1875


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 16, 4), (3, 6, 3), (8, 16, 2)])
def test_interleaving_divides_the_bubble_by_v(p, m, v):
    """(p−1)/(v·m) over ideal (arXiv 2104.04473, section 2.2), with the peak of section 3.5.1.

    Korthikanti et al. (arXiv 2205.05198, section 4.2.3) give that peak for the first device as
    p·(1 + (p−1)/(p·v)) times its part of the model, which in chunks is p·v + p − 1.
    """
    timeline = simulate(interleaved_one_f_one_b(p, m, v), Costs().in_chunks(v))
    assert timeline.bubble_over_ideal == pytest.approx((p - 1) / (v * m))
    assert timeline.peak_in_flight[0] == p * v + p - 1
    assert timeline.makespan == pytest.approx(3 * (m + (p - 1) / v))


def test_naive_model_parallelism_keeps_one_device_busy():
    """Each of p devices is busy 1/p of the time, for any number of micro-batches."""
    for m in (1, 4):
        timeline = simulate(naive(4, m))
        assert timeline.bubble_fraction == pytest.approx(3 / 4)
        assert timeline.peak_in_flight == (1, 1, 1, 1)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 7), (4, 8), (4, 12), (8, 32)])
def test_zero_bubble_schedules_as_published(p, m):
    """arXiv 2401.10241, table 1 with T_F = T_B = T_W: ZB-H1 a third of 1F1B's bubble; ZB-V none.

    Both have 1F1B's peak: p micro-batches, or 2p chunks of half the size (section 6).
    """
    whole, split, v = simulate(one_f_one_b(p, m)), simulate(zb_h1(p, m)), simulate(zb_v(p, m))
    assert split.bubble_over_ideal == pytest.approx(whole.bubble_over_ideal / 3)
    assert split.span_bubble == pytest.approx(whole.span_bubble / 3)
    assert max(split.peak_in_flight) == max(whole.peak_in_flight) == p
    assert v.span_bubble == pytest.approx(0)
    assert max(v.peak_in_flight) == 2 * p
    assert v.bubble_over_ideal == pytest.approx((p - 1) / (6 * m))  # the last device starts later


@pytest.mark.parametrize("costs", [Costs(1, 1, 1), Costs(4, 5, 3), Costs(10, 11, 6)])
def test_zb_h1s_bubble_by_its_formula(costs):
    """(p−1)·(T_F + T_B − T_W) (arXiv 2401.10241, table 2), where B is the input half."""
    p, m = 4, 12
    micro_batch_s = costs.forward + costs.backward_input + costs.backward_weight
    timeline = simulate(zb_h1(p, m), costs)
    bubble = (p - 1) * (costs.forward + costs.backward_input - costs.backward_weight)
    assert timeline.makespan - m * micro_batch_s == pytest.approx(bubble)


# ---- torch.distributed.pipelining ----


def torch_stages(device, p, v, style="loop"):
    """Fake stages with the attributes that torch's schedules read to build their order."""
    mine = [device + k * p for k in range(v)] if style == "loop" else [device, 2 * p - 1 - device]
    return [
        SimpleNamespace(
            stage_index=stage,
            group_size=p,
            group_rank=device,
            num_stages=p * v,
            has_backward=False,
            submod=None,
            is_first=stage == 0,
            is_last=stage == p * v - 1,
        )
        for stage in mine
    ]


def as_ours(order, p):
    """Without idle slots and without the actions that reduce gradients for data parallelism."""
    return [
        [
            Action(action.computation_type.value, action.stage_index, action.microbatch_index)
            for action in order[device]
            if action is not None and action.computation_type.value in KINDS
        ]
        for device in range(p)
    ]


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 4), (4, 8), (4, 4), (3, 7)])
def test_single_stage_orders_match_torchs(p, m):
    stage = torch_stages(0, p, 1)[0]
    order = torch_schedules.ScheduleGPipe(stage, m)._get_pipeline_order()
    assert as_ours(order, p) == gpipe(p, m)
    order = as_ours(torch_schedules.Schedule1F1B(stage, m)._get_pipeline_order(), p)
    if order[-1][0].micro_batch == 1:
        # In the order that torch 2.13 prints (it runs a correct one), the last device's forwards
        # are numbered from 1, so its first backward has no forward.
        with pytest.raises(IllegalSchedule, match="no device runs stage 0's forward of micro"):
            simulate(order)
        order[-1] = [Action(a.kind, a.stage, a.micro_batch - (a.kind == "F")) for a in order[-1]]
    assert order == one_f_one_b(p, m)


def test_one_chunk_interleaved_is_plain_1f1b():
    """Unlike torch's, which would warm up twice as long for no benefit."""
    assert interleaved_one_f_one_b(4, 8, 1) == one_f_one_b(4, 8)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 10, 2), (4, 3, 3), (3, 6, 4)])
def test_interleaved_order_matches_torchs(p, m, v):
    schedule = torch_schedules.ScheduleInterleaved1F1B(torch_stages(0, p, v), m)
    assert as_ours(schedule.pipeline_order, p) == interleaved_one_f_one_b(p, m, v)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 4), (3, 5)])
def test_zero_bubble_orders_match_torchs(p, m):
    schedule = torch_schedules.ScheduleInterleavedZeroBubble(torch_stages(0, p, 1), m)
    assert as_ours(schedule.pipeline_order, p) == zb_h1(p, m)
    schedule = torch_schedules.ScheduleZBVZeroBubble(torch_stages(0, p, 2, "v"), m)
    assert as_ours(schedule.pipeline_order, p) == zb_v(p, m)
