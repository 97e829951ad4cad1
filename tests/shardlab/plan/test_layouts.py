"""Which layouts are legal, and what each costs and saves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardlab.plan import Cluster, Layout, Layouts, Model, enumerate_layouts, plan, reasons, step
from shardlab.plan.memory import activation_bytes, state_bytes

MODEL = Model(layers=24, width=1024, heads=16, sequence=1024, vocabulary=50_304, kv_heads=4)
EXPERTS = replace(MODEL, experts=8, experts_per_token=2)
CLUSTER = Cluster.of("A100", 32)


def test_all_that_are_enumerated_are_legal_and_different():
    layouts = enumerate_layouts(MODEL, CLUSTER, 64)
    each = [layouts[at] for at in range(0, len(layouts), 7)]
    assert len(each) > 500
    assert all(not reasons(MODEL, CLUSTER, 64, layout) for layout in each)
    assert len({str(layout) for layout in each}) == len(each)


def test_none_that_is_legal_is_missing():
    """By asking for the reasons of all combinations of a small cluster."""
    cluster = replace(CLUSTER, devices=4, per_node=2)
    found = enumerate_layouts(MODEL, cluster, 8)
    expected = {
        Layout(d, t, p, c, b, v, stage, recompute, sharded)
        for d in (1, 2, 4)
        for t in (1, 2, 4)
        for p in (1, 2, 4)
        for c in (1, 2, 4)
        for b in (1, 2, 4, 8)
        for v in (1, 2, 3, 4, 6, 8)
        for stage in (1, 2, 3)
        for recompute in ("none", "selective", "full")
        for sharded in (False, True)
        if t > 1 or not sharded
        if not reasons(MODEL, cluster, 8, Layout(d, t, p, c, b, v, stage, recompute, sharded))
    }
    assert {found[at] for at in range(len(found))} == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": 16}, "is not the number of devices, 32"),
        ({"tensor": 32, "data": 1}, "does not divide 16 heads"),
        ({"tensor": 16, "data": 2}, "is more than the 8 devices of a node"),
        ({"pipeline": 16, "data": 2}, "24 layers, with or without 2"),
        ({"interleave": 2}, "needs a pipeline"),
        ({"micro_batch": 3}, "a batch of 64 is not divisible"),
        ({"pipeline": 8, "interleave": 3, "data": 4, "micro_batch": 4}, "not a multiple of 8"),
        ({"expert": 3}, "expert=3"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_reasons(change, words):
    found = reasons(MODEL, CLUSTER, 64, replace(Layout(data=32), **change))
    assert any(words in reason for reason in found), found


@pytest.mark.parametrize("model", [MODEL, EXPERTS], ids=["dense", "experts"])
def test_states_are_as_many_as_the_model_has(model):
    """On all ranks together 18 bytes for each parameter with ZeRO-3, whatever the layout."""
    layouts = [Layout(data=32, stage=3), Layout(4, 2, 4, stage=3), Layout(2, 2, 2, 4, stage=3)]
    if model is EXPERTS:
        layouts = [replace(layout, expert=2) for layout in layouts]
    model = replace(model, vocabulary=0)  # which only the ends of a pipeline hold
    held = sum(state_bytes(model, Layouts.of(layouts)).values())
    assert (32 * held).tolist() == pytest.approx([18 * model.parameters] * 3)


def test_zero_shards_what_its_stage_says():
    layouts = Layouts.of([Layout(data=32, stage=stage) for stage in (0, 1, 2, 3)])
    states = {name: (column / column[0]) for name, column in state_bytes(MODEL, layouts).items()}
    assert states["optimizer"].tolist() == [1, 1 / 32, 1 / 32, 1 / 32]
    assert states["gradients"].tolist() == [1, 1, 1 / 32, 1 / 32]
    assert states["parameters"].tolist() == [1, 1, 1, 1 / 32]


def test_recomputation_and_sequence_parallelism_save_activations():
    plain = Layout(data=8, tensor=4, micro_batch=4)
    kinds = [replace(plain, recompute=kind) for kind in ("none", "selective", "full")]
    kinds.append(replace(kinds[1], sequence_parallel=True))
    none, selective, full, sharded = activation_bytes(MODEL, Layouts.of(kinds), 64)["activations"]
    assert full < sharded < selective < none


def test_a_part_of_the_step_belongs_to_each_axis():
    def parts(layout, model=MODEL, batch=64):
        found = step(model, CLUSTER, batch, layout).parts
        return {name for name, part in found.items() if part[0] > 0}

    always = {"products", "memory-bound work", "overhead", "logits", "optimizer"}
    assert parts(Layout(32)) == always | {"data parallelism"}
    assert parts(Layout(4, 8)) == always | {"data parallelism", "tensor parallelism"}
    assert parts(Layout(4, 1, 8)) >= {"bubble", "pipeline traffic"}
    assert "context parallelism" in parts(Layout(16, context=2))
    assert "expert parallelism" in parts(Layout(32, expert=8), EXPERTS)


def test_tensor_parallelism_over_a_slow_link_is_slower():
    near, far = (replace(CLUSTER, devices=8, per_node=per_node) for per_node in (8, 2))
    layout = Layout(data=2, tensor=4)
    assert step(MODEL, far, 8, layout).seconds > 1.5 * step(MODEL, near, 8, layout).seconds


def test_experts_cost_memory_and_not_operations():
    one = replace(EXPERTS, experts_per_token=1)
    layout = Layouts.of([Layout(data=32)])
    ratio = (
        step(one, CLUSTER, 64, layout).model_flops / step(MODEL, CLUSTER, 64, layout).model_flops
    )
    assert ratio == pytest.approx(1, abs=0.001)  # and the router
    assert sum(state_bytes(one, layout).values()) > 3 * sum(state_bytes(MODEL, layout).values())


def test_the_best_fit_and_the_fastest_that_does_not():
    plans = plan(MODEL, CLUSTER, 64)
    best = plans.best(20)
    assert all(each.fits for each in best)
    times = [each.step_s for each in best]
    assert times == sorted(times)
    faster = plans.fastest_that_does_not_fit()
    assert faster is None or (not faster.fits and faster.step_s < times[0])
    small = plan(MODEL, replace(CLUSTER, capacity_bytes=4e9), 64)
    assert small.best(1)[0].step_s >= times[0]
    assert sum(best[0].memory_bytes.values()) == pytest.approx(best[0].total_bytes)


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="layers=0"):
        replace(MODEL, layers=0)
    with pytest.raises(ValueError, match="not divisible by 3 heads"):
        replace(MODEL, heads=3)
    with pytest.raises(ValueError, match="there are 8 experts"):
        replace(EXPERTS, experts_per_token=9)
    with pytest.raises(ValueError, match="per_node=0"):
        Cluster.of("A100", 8, per_node=0)
    with pytest.raises(ValueError, match="expected A100 or H100"):
        Cluster.of("P100", 8)
    with pytest.raises(ValueError, match="batch=0"):
        plan(MODEL, CLUSTER, 0)
