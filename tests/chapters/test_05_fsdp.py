"""Chapter 05 runs from top to bottom, and its outputs match its text."""

import re

import pytest
import torch

from shardlab import DeadlockError, data, launch, measure, models
from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("05_fsdp", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 05: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d*|\d+", text)]


def test_each_rank_holds_a_quarter_of_everything(chapter):
    answer = chapter.text_of('STATES = ("parameters"')
    assert "measured DDP: 12 bytes, FSDP: 3 bytes" in answer  # zero_grad has freed the gradients
    rows = chapter.table_of("for name, held in each.items()")
    assert [list(map(float, list(row.values())[1:])) for row in rows] == [
        [4, 4, 8, 16],
        [1, 1, 2, 4],
        [1, 1, 3, 5],  # DeepSpeed's fp32 copy
    ]
    assert chapter.text_of("setups = {").count("✓") == 3


def test_the_three_training_runs_have_the_same_losses(chapter):
    rows = [[*map(float, [*row.values()][1:])] for row in chapter.table_of("farthest = ")]
    assert len(rows) == 3
    assert all(row == pytest.approx(rows[0], abs=2e-5) for row in rows)  # printed to 1e-5
    assert rows[0][:3] != pytest.approx(rows[0][3:], abs=0.01)  # each rank has its own batches
    assert "<svg" in chapter.svg_of("memory_timeline(runs)")


def test_live_bytes_of_three_methods_are_drawn_on_one_scale(chapter):
    picture = chapter.svg_of("axes.stackplot(")
    assert len(picture) < 500_000
    assert all(f">{name}</text>" in picture for name in ("DDP", "FSDP", "ZeRO-3", "buckets"))
    least, most = zip(
        *(map(float, list(row.values())[1:]) for row in chapter.table_of("highest_and_lowest")),
        strict=True,
    )
    assert least == pytest.approx([16, 3, 5], abs=0.5)  # DDP: 12 of states, 4 of buckets
    assert most[0] > 20 > 2.2 * max(most[1:])


def test_calls_and_bytes_of_a_step(chapter):
    ddp, fsdp, zero3 = chapter.table_of("def sent_and_calls")
    gathers, reduces = "all_gather_single", "reduce_scatter_single"
    assert ddp["sent, in Ψ"] == "1.50"
    assert (ddp[gathers], ddp[reduces]) == ("–", "–")
    assert (fsdp["all_reduce"], fsdp[gathers], fsdp[reduces]) == ("–", "13", "7")
    assert int(zero3[gathers]) > 3 * 13
    assert int(zero3[reduces]) > 3 * 7
    assert chapter.text_of("fsdp = unit_step(").count("✓") == 3


def test_fsdp_computes_whole_layers_for_a_quarter_of_the_tokens(chapter):
    fsdp, tensor_parallel = chapter.text_of("rank 0 multiplies by").splitlines()[-2:]
    assert fsdp.endswith("weight (384, 96), tokens 32")
    assert tensor_parallel.endswith("weight (96, 96), tokens 128")


def test_its_traffic_does_not_grow_with_tokens(chapter):
    growth = floats(chapter.text_of("growth = [").split("measured")[1])
    assert growth == [1, pytest.approx(16, rel=0.03)]
    assert "<svg" in chapter.svg_of("lines = [(")
    assert len(chapter.table_of("for width in (D")) == 3


def test_the_order_of_gathers_and_reductions(chapter):
    order = chapter.text_of("print(order_of(life))\n").splitlines()[0].split(", ")
    forward = [event for block in range(6) for event in ("gather", f"block {block}")]
    backward = ["gather", "gather", *["REDUCE", "gather"] * 4, "REDUCE", "REDUCE"]
    assert order == ["gather root", *forward, *backward, "REDUCE root"]
    assert "measured 13, 7" in chapter.text_of("print(order_of(life))\n")
    assert "first block 5, last the root" in chapter.text_of("predicted_order.compare(")
    assert "<svg" in chapter.svg_of("unit_life(life)")


def test_one_block_is_gathered_at_a_time(chapter):
    assert "measured 6 × 2.81" in chapter.text_of("expected = unit_step(units, 2")


def test_more_collectives_keep_fewer_bytes_gathered(chapter):
    rows = [list(map(float, list(row.values())[1:])) for row in chapter.table_of("rows = {choice")]
    counts, largest, predicted, measured, sent = zip(*rows, strict=True)
    assert counts == (2, 8, 11, 20, 38, 74)
    assert list(largest) == sorted(largest, reverse=True)
    assert list(measured) == sorted(measured, reverse=True)
    assert measured == pytest.approx(predicted, rel=0.01)
    assert measured[0] == 5  # a shard and a full copy
    assert sent[0] < min(sent[1:])
    assert max(sent[1:]) / min(sent[1:]) < 1.02
    assert "measured 5 bytes" in chapter.text_of("predicted_root_only.compare(")
    answer = chapter.text_of("predicted_collectives.compare(")
    assert "counted all-gathers: 49, reduce-scatters: 25" in answer
    assert "<svg" in chapter.svg_of('label="with gradients and buckets"')


def test_parameters_that_are_not_freed_are_not_gathered_again(chapter):
    sent = re.findall(
        r"in Ψ: measured (\S+), predicted (\S+)", chapter.text_of("by_reshard.items()")
    )
    assert [tuple(map(float, each)) for each in sent] == [
        (pytest.approx(2.97, abs=0.02),) * 2,
        (pytest.approx(2.25, abs=0.02),) * 2,
        (pytest.approx(2.74, abs=0.02),) * 2,
    ]
    answer = chapter.text_of("predicted_reshard.compare(").split("measured")[1]
    assert floats(answer.replace("2:", ""))[:3] == pytest.approx([2.97, 2.25, 2.74], abs=0.02)
    held = re.findall(r"measured (\S+),", chapter.text_of("def held_after_forward"))
    assert list(map(float, held)) == pytest.approx([3.82, 1.91], abs=0.005)


def test_resharding_to_two_ranks_gathers_within_pairs(chapter):
    printed = chapter.text_of("again = [")
    assert "6 gathers in the group {(0, 1)}" in printed
    rows = [list(map(float, list(row.values())[1:])) for row in chapter.table_of("again = [")]
    assert rows[0] == pytest.approx([0, 1.23, 0, 1.5], abs=0.02)
    assert rows[1] == pytest.approx([1.98, 0, 0.75, 0], abs=0.02)
    assert rows[2] == pytest.approx([0, 1.5, 0, 1.23], abs=0.02)
    assert rows[3] == pytest.approx([0.75, 0, 1.98, 0], abs=0.02)


def test_prefetching_starts_gathers_early(chapter):
    assert "default:   gather root, gather, block 0, gather, block 1" in chapter.text_of("ahead = ")
    assert "one ahead: gather root, gather, gather, block 0, gather" in chapter.text_of("ahead = ")
    assert chapter.text_of("def begun_early").count("(equal)") == 2
    assert "<svg" in chapter.svg_of("timeline(ahead)")


def test_an_optimizer_made_before_sharding_trains_nothing(chapter):
    after, before = (
        list(map(float, list(row.values())[1:]))
        for row in chapter.table_of("launch(train_in_order")
    )
    assert after == sorted(after, reverse=True)
    assert after[0] > after[2] + 0.1
    assert before == [before[0]] * 3


def test_an_optimizer_after_a_forward_misses_the_root():
    """It would hold the block's two parameters, and neither of the root's."""

    def forward_first():
        import torch
        from torch.distributed.fsdp import fully_shard

        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        fully_shard(model[0])
        fully_shard(model)
        model(torch.ones(1, 4))
        held = {id(parameter) for parameter in model.parameters()}
        model(torch.ones(1, 4)).sum().backward()
        return [id(parameter) in held for parameter in model.parameters()]

    run = launch(forward_first, world_size=2, device="cpu", quiet=True)
    assert run.outputs == [[True, True, False, False]] * 2


def test_ddp_broadcasts_buffers_in_evaluation_too():
    def evaluate_on_rank_0():
        import torch
        import torch.distributed as dist

        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4)).eval()
        if dist.get_rank() == 0:
            ddp(torch.ones(2, 4))

    with pytest.raises(DeadlockError, match="broadcast"):
        launch(evaluate_on_rank_0, world_size=2, device="cpu", quiet=True)


def test_without_a_root_embeddings_differ(chapter):
    with_root, without = (
        float(row.split("by ")[1])
        for row in chapter.text_of("launch(train_without_root").splitlines()
        if "differ" in row
    )
    assert with_root == 0
    assert without > 1e-3


def test_the_norm_of_a_shard_is_not_the_gradient_norm(chapter):
    rows = chapter.table_of("def norms(batch)")
    (_, slice_0, all_0), (_, slice_1, all_1) = (map(float, row.values()) for row in rows)
    assert all_0 == all_1
    assert slice_0 != slice_1
    assert all_0 == pytest.approx((slice_0**2 + slice_1**2) ** 0.5, rel=1e-3)


def test_two_forwards_lose_gradients_only_with_reentrant_checkpointing(chapter):
    rows = [tuple(row.values()) for row in chapter.table_of("launch(two_forwards")]
    assert rows == [
        ("none", "0", "0", "76"),
        ("not reentrant", "0", "0", "76"),
        ("reentrant", "24", "24", "76"),  # four parameters of each block's MLP
    ]


def test_a_method_sees_shards_unless_it_is_registered(chapter):
    printed = chapter.text_of("launch(call_a_method")
    assert "\naten.embedding.default got mixed torch.Tensor and DTensor\n" in printed
    assert "✓ after register_fsdp_forward_method" in printed


def test_a_dimension_of_50_rows_is_padded(chapter):
    assert "measured 1.04" in chapter.text_of("def one_layer")


def test_evaluation_on_rank_0_alone_hangs(chapter):
    printed = chapter.text_of("except DeadlockError")
    assert "rank 1 finished without entering all_gather_single, where rank 0 waits" in printed


def decimals(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_hsdp_sends_a_third_to_the_other_node_and_keeps_twice_as_much(chapter):
    rows = chapter.table_of('"sent out of the node": ".2f"')
    fsdp, hsdp = (list(map(float, list(row.values())[1:])) for row in rows)
    assert fsdp == pytest.approx([2.90, 0.25], abs=0.03)
    assert hsdp == pytest.approx([1.00, 0.50], abs=0.03)


def test_gathers_stay_within_a_node_and_only_shards_cross_nodes(chapter):
    assert [tuple(row.values()) for row in chapter.table_of("def calls_of(run, label)")] == [
        ("all_gather", "(0, 1)", "0.93"),
        ("reduce_scatter", "(0, 1)", "1.00"),
        ("all_reduce", "(0, 2)", "0.50"),
    ]
    assert "<svg" in chapter.svg_of("traffic_map(mesh_runs")


def test_bytes_that_leave_the_node_match_the_formula(chapter):
    rows = chapter.table_of("flat = hybrid_sharding.sent_bytes(psi, 1, 4")
    fsdp, hsdp = (list(map(float, list(row.values())[1:])) for row in rows)
    assert fsdp == pytest.approx([2.25, 2.89, 2.90], abs=0.03)
    assert hsdp == pytest.approx([1, 1, 1], abs=0.02)


def test_hsdp_pays_off_on_slow_links_and_with_accumulation(chapter):
    table = chapter.table_of('speeds = {"each GPU"')
    rows = [list(map(float, list(row.values())[2:])) for row in table]
    fsdp, hsdp = zip(*((row[::2], row[1::2]) for row in rows), strict=True)
    gains = [[a / b for a, b in zip(*each, strict=True)] for each in zip(fsdp, hsdp, strict=True)]
    fast, fast_4, slow, slow_4 = gains
    assert max(fast) < 1.01  # "save no time"
    assert min(fast_4) > 1.3
    assert min(slow) > 1.3
    assert min(slow_4) > max(slow) > max(fast_4)
    states = chapter.table_of("memory.model_states(7.5e9")
    assert [row["GB of model states on each"] for row in states] == ["15.00", "0.23"]


def test_with_the_policy_masters_and_their_gradients_are_fp32(chapter):
    assert "measured fp32 and fp32" in chapter.text_of("precision_runs = {")
    in_bf16, in_fp32 = chapter.text_of("for reduce_dtype, run in precision_runs").splitlines()
    assert "all_gather in bfloat16, reduce_scatter in bfloat16" in in_bf16
    assert "all_gather in bfloat16, reduce_scatter in float32" in in_fp32
    (percent,) = decimals(chapter.text_of("relative = "))
    assert 0.1 < percent < 1


def test_a_model_loaded_in_bf16_stalls_with_and_without_a_policy(chapter):
    assert "measured 0.10" in chapter.text_of("predicted_changed.compare(")
    rows = chapter.table_of("name in cases],")
    numbers = [list(map(float, list(row.values())[1:])) for row in rows]
    changed, decrease = zip(*((share, first - last) for share, first, last in numbers), strict=True)
    assert min(changed[:2]) > 0.99
    assert max(changed[2:]) < 0.11
    assert decrease[2] == decrease[3] < 0.2 * decrease[0]
    assert decrease[1] == pytest.approx(decrease[0], rel=0.05)  # reduce_dtype is not the reason
    assert "<svg" in chapter.svg_of("right.axhline(lr")


def test_more_weights_move_at_a_larger_learning_rate(chapter):
    rows = chapter.table_of("def half_ulp")
    shares = [float(row["share of weights that should change"]) for row in rows]
    assert shares == sorted(shares)
    assert shares[0] < 0.02
    assert shares[-1] > 0.99


def test_updates_below_half_an_ulp_do_not_move_weights(chapter):
    rows = chapter.table_of("def share_that_moves")
    (_, above, moved), (_, adam_above, adam_moved) = (
        map(float, list(row.values())[1:]) for row in rows
    )
    assert above < 0.001
    assert moved == pytest.approx(above, abs=2e-4)
    assert adam_moved == pytest.approx(adam_above, abs=0.005)  # weights of 2^e move a bit earlier
    assert 0.05 < adam_moved < 0.2


def test_deepspeed_trains_the_same_bf16_model(chapter):
    first, last = decimals(chapter.text_of("with_deepspeed = launch"))[:2]
    assert first - last > 0.015


def test_offload_moves_shards_twice_and_gradients_once(chapter):
    printed = chapter.text_of("in_forward, in_backward, dtypes")
    assert "moved in torch.float32\n" in printed
    assert "in forward, up: measured 260,736 bytes" in printed
    assert "in backward, up and down: measured 484,416 bytes" in printed  # 223,680 + 260,736


def test_accumulation_trades_reduce_scatters_for_whole_gradients(chapter):
    assert "reduced, with it: 1 Ψ" in chapter.text_of("predicted_accumulation.compare(")
    rows = chapter.table_of('columns = ("gathered"')
    every, once = (list(map(float, list(row.values())[1:])) for row in rows)
    assert every == pytest.approx([1.86, 4, 0.25, 11.57, 11.61], abs=0.05)
    assert once == pytest.approx([1.86, 1, 1, 7.07, 7.10], abs=0.05)
    assert "gradients: {None}" in chapter.text_of("two_losses, gradients = launch(never_reduced")


def test_a_full_state_dict_gathers_everything_and_shards_send_nothing(chapter):
    rows = [tuple(row.values()) for row in chapter.table_of("calls_of(state_run, label)")]
    assert rows == [("shards", "0.00", "none"), ("full", "0.84", "all_gather")]
    by_rank = [tuple(row.values()) for row in chapter.table_of("enumerate(state_run.outputs)")]
    assert by_rank == [(str(rank), "(64, 96)", "29", "0" if rank else "29") for rank in range(4)]


def test_shards_of_two_ranks_load_on_four(chapter):
    printed = chapter.text_of("saved = launch(save_shards")
    assert "✓ every tensor is bit-equal" in printed
    assert "loaded from: .metadata __0_0.distcp __1_0.distcp" in printed


def test_whole_gradients_are_held_in_reduce_dtype():
    def two_backwards(batch, reduce_dtype):
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        model = models.gpt("0.1M")
        for unit in (*model.blocks, model):
            fully_shard(unit, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduce_dtype))
        model.set_requires_gradient_sync(False)
        for _ in range(2):
            with measure("micro-batch"):
                model(*batch).backward()

    batches = [data.batch(0, 1, 16, rank, 2) for rank in range(2)]
    options = {"inputs": batches, "world_size": 2, "memory": True, "device": "cpu", "quiet": True}
    parameters = models.count_parameters(models.gpt("0.1M"))
    for reduce_dtype, element_bytes in ((torch.float32, 4), (torch.bfloat16, 2)):
        memory = launch(two_backwards, reduce_dtype, **options).memory
        assert list(memory.at("micro-batch")["gradients"]) == [element_bytes * parameters] * 2


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) >= {
        "memory-timeline",
        "unit-life",
        "timeline",
        "traffic-map",
    }
