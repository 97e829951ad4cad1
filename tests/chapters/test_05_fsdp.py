"""Chapter 05 runs from top to bottom, and its cells show what its prose says."""

import re

import pytest
import torch

from shardlab import data, launch, measure, models
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
    rows = chapter.text_of('STATES = ("parameters"').splitlines()
    assert [floats(row.removeprefix("ZeRO-3"))[0] for row in rows[:3]] == [16, 4, 5]
    assert "[1. 1. 2.]" in rows[1]
    assert "[1. 1. 3.]" in rows[2]  # DeepSpeed's fp32 copy
    ratios = chapter.text_of("setups = {").splitlines()
    assert [floats(row)[-1] for row in ratios] == [pytest.approx(1, abs=0.01)] * 3


def test_the_three_trainings_have_the_same_losses(chapter):
    printed = chapter.text_of("farthest = ")
    assert float(printed.split(":")[-1]) < 1e-5
    rank_0, rank_1 = (re.findall(rf"{rank}: \[(.*?)\]", printed) for rank in ("rank 0", "rank 1"))
    assert len(set(rank_0)) == len(set(rank_1)) == 1
    assert rank_0 != rank_1  # each has its own batches
    assert "<svg" in chapter.svg_of("memory_timeline(runs)")


def test_calls_and_bytes_of_a_step(chapter):
    ddp, fsdp, zero3 = chapter.text_of("large = [").splitlines()
    assert "sent 1.50 Ψ" in ddp
    assert "'all_reduce'" in ddp
    assert fsdp.endswith("Ψ: {'all_gather_single': 13, 'reduce_scatter_single': 7}")
    gathers, reduces = (int(re.search(rf"'{op}_single': (\d+)", zero3)[1]) for op in
                        ("all_gather", "reduce_scatter"))  # fmt: skip
    assert gathers > 3 * 13
    assert reduces > 3 * 7
    predicted, measured = floats(chapter.text_of("fsdp = unit_step("))
    assert measured == pytest.approx(predicted, rel=0.02)


def test_fsdp_computes_whole_layers_for_a_quarter_of_the_tokens(chapter):
    fsdp, tensor_parallel = chapter.text_of("own = [[").splitlines()[-2:]
    assert fsdp.endswith("weight (384, 96), tokens 32")
    assert tensor_parallel.endswith("weight (96, 96), tokens 128")


def test_its_traffic_does_not_grow_with_tokens(chapter):
    growth = floats(chapter.text_of("growth = [").split("measured")[1])
    assert growth == [1, pytest.approx(16, rel=0.03)]
    assert "<svg" in chapter.svg_of("lines = [(")
    crossing = [floats(row)[-1] for row in chapter.text_of("for width in (D").splitlines()]
    assert len(crossing) == 3


def test_the_order_of_a_units_life(chapter):
    order = chapter.text_of("print(order_of(life))\n").splitlines()[0].split(", ")
    forward = [event for block in range(6) for event in ("gather", f"block {block}")]
    backward = ["gather", "gather", *["REDUCE", "gather"] * 4, "REDUCE", "REDUCE"]
    assert order == ["gather root", *forward, *backward, "REDUCE root"]
    answer = chapter.text_of("print(order_of(life))\n")
    assert "counted all-gathers: 13, reduce-scatters: 7" in answer
    assert "<svg" in chapter.svg_of("unit_life(life)")


def test_one_block_is_whole_at_a_time(chapter):
    held = re.findall(r"block \d: (\d\.\d\d)", chapter.text_of("expected = unit_step(units, 2"))
    assert held == ["2.81"] * 6


def test_fewer_bytes_are_whole_with_more_messages(chapter):
    rows = [floats(row[16:]) for row in chapter.text_of("largest = N * max(").splitlines()[1:7]]
    messages, largest, predicted, measured, sent = zip(*rows, strict=True)
    assert messages == (2, 8, 11, 20, 38, 74)
    assert list(largest) == sorted(largest, reverse=True)
    assert list(measured) == sorted(measured, reverse=True)
    assert measured == pytest.approx(predicted, rel=0.01)
    assert measured[0] == 5  # a slice and a whole copy
    assert sent[0] < min(sent[1:])
    assert max(sent[1:]) / min(sent[1:]) < 1.02
    assert "measured 5 bytes" in chapter.text_of("predicted_root_only.compare(")
    assert "<svg" in chapter.svg_of('label="with gradients and buckets"')


def test_what_is_not_freed_is_not_gathered_again(chapter):
    rows = chapter.text_of("gathers == expected.all_gathers").splitlines()[:3]
    assert [floats(row.split("gathers")[1]) for row in rows] == [
        [pytest.approx(2.97, abs=0.02)] * 2,
        [pytest.approx(2.25, abs=0.02)] * 2,
        [pytest.approx(2.74, abs=0.02)] * 2,
    ]
    answer = chapter.text_of("predicted_reshard.compare(").split("measured")[1]
    assert floats(answer.replace("2:", ""))[:3] == pytest.approx([2.97, 2.25, 2.74], abs=0.02)
    whole, half = chapter.text_of("def held_after_forward").splitlines()
    assert floats(whole) == [3.82, 3.82]
    assert floats(half)[1:] == [1.91, 1.91]


def test_a_number_gathers_within_pairs(chapter):
    printed = chapter.text_of("again = [")
    assert "6 gathers in the group {(0, 1)}" in printed
    rows = [floats(row) for row in printed.splitlines()[-4:]]
    assert rows[0] == pytest.approx([0, 1.23, 0, 1.5], abs=0.02)
    assert rows[1] == pytest.approx([1.98, 0, 0.75, 0], abs=0.02)
    assert rows[2] == pytest.approx([0, 1.5, 0, 1.23], abs=0.02)
    assert rows[3] == pytest.approx([0.75, 0, 1.98, 0], abs=0.02)


def test_prefetching_begins_gathers_early(chapter):
    assert "default:   gather root, gather, block 0, gather, block 1" in chapter.text_of("ahead = ")
    assert "one ahead: gather root, gather, gather, block 0, gather" in chapter.text_of("ahead = ")
    assert floats(chapter.text_of("def begun_early")) == [0, 5]
    assert "<svg" in chapter.svg_of("timeline(ahead)")


def test_an_early_optimizer_trains_nothing(chapter):
    after, before = (
        floats(re.search(r"\[(.*)\]", row)[1])
        for row in chapter.text_of("launch(train_in_order").splitlines()
        if "optimizer" in row
    )
    assert after == sorted(after, reverse=True)
    assert after[0] > after[2] + 0.1
    assert before == [before[0]] * 3


def test_without_a_root_embeddings_differ(chapter):
    with_root, without = (
        float(row.split("by ")[1])
        for row in chapter.text_of("launch(train_without_root").splitlines()
        if "differ" in row
    )
    assert with_root == 0
    assert without > 1e-3


def test_a_slices_norm_is_not_the_norm(chapter):
    printed = chapter.text_of("def norms(batch)")
    (slice_0, all_0), (slice_1, all_1) = (
        floats(row) for row in re.findall(r"its slice (.*)", printed)
    )
    assert all_0 == all_1
    assert slice_0 != slice_1
    assert all_0 == pytest.approx((slice_0**2 + slice_1**2) ** 0.5, rel=1e-3)


def test_evaluation_on_rank_0_hangs(chapter):
    printed = chapter.text_of("except DeadlockError")
    assert "rank 1 finished without entering all_gather_single, where rank 0 waits" in printed


def decimals(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_hsdp_sends_a_third_to_the_other_node_and_keeps_twice_as_much(chapter):
    fsdp, hsdp = chapter.text_of("mesh_runs = {").splitlines()[:2]
    assert decimals(fsdp) == pytest.approx([2.90, 0.25], abs=0.03)
    assert decimals(hsdp) == pytest.approx([1.00, 0.50], abs=0.03)


def test_gathers_stay_in_the_row_and_only_the_shard_crosses(chapter):
    assert chapter.text_of("def calls_of(run, label)").splitlines() == [
        "all_gather     of ranks (0, 1): 0.93 Ψ",
        "reduce_scatter of ranks (0, 1): 1.00 Ψ",
        "all_reduce     of ranks (0, 2): 0.50 Ψ",
    ]
    assert "<svg" in chapter.svg_of("traffic_map(mesh_runs")


def test_bytes_that_leave_the_node_match_the_formula(chapter):
    fsdp, hsdp = chapter.text_of("flat = hybrid_sharding.sent_bytes(psi, 1, 4").splitlines()
    assert decimals(fsdp) == pytest.approx([2.25, 2.89, 2.90], abs=0.03)
    assert decimals(hsdp) == pytest.approx([1, 1], abs=0.02)


def test_hsdp_pays_off_on_slow_links_and_with_accumulation(chapter):
    rows = chapter.text_of("times = [seconds(nodes").splitlines()[1:]
    fsdp, hsdp = zip(*((decimals(row)[::2], decimals(row)[1::2]) for row in rows), strict=True)
    gains = [[a / b for a, b in zip(*each, strict=True)] for each in zip(fsdp, hsdp, strict=True)]
    fast, fast_4, slow, slow_4 = gains
    assert max(fast) < 1.01  # "not faster"
    assert min(fast_4) > 1.3
    assert min(slow) > 1.3
    assert min(slow_4) > max(slow) > max(fast_4)
    states = chapter.text_of("memory.model_states(7.5e9").splitlines()
    assert [decimals(row)[-1] for row in states] == [15, 0.23]


def test_masters_and_their_gradients_are_fp32_under_the_policy(chapter):
    assert "measured fp32 and fp32" in chapter.text_of("precision_runs = {")
    in_bf16, in_fp32 = chapter.text_of("for reduce_dtype, run in precision_runs").splitlines()
    assert "'all_gather': 'bfloat16', 'reduce_scatter': 'bfloat16'" in in_bf16
    assert "'all_gather': 'bfloat16', 'reduce_scatter': 'float32'" in in_fp32
    (percent,) = decimals(chapter.text_of("relative = "))
    assert 0.1 < percent < 1


def test_a_model_loaded_in_bf16_stalls_with_and_without_a_policy(chapter):
    rows = chapter.text_of("tuned, changed = {}, {}").splitlines()
    changed, fell = zip(
        *((decimals(row)[0], decimals(row)[1] - decimals(row)[2]) for row in rows[:4]), strict=True
    )
    assert min(changed[:2]) > 0.99
    assert max(changed[2:]) < 0.11
    assert fell[2] == fell[3] < 0.2 * fell[0]
    assert fell[1] == pytest.approx(fell[0], rel=0.05)  # reduce_dtype is not the reason
    assert "<svg" in chapter.svg_of("right.axhline(lr")


def test_more_weights_move_at_a_larger_learning_rate(chapter):
    shares = [decimals(row)[0] for row in chapter.text_of("def half_ulp").splitlines()]
    assert shares == sorted(shares)
    assert shares[0] < 0.02
    assert shares[-1] > 0.99


def test_deepspeed_trains_the_same_bf16_model(chapter):
    first, last = decimals(chapter.text_of("with_deepspeed = launch"))
    assert first - last > 0.015


def test_offload_asks_for_shards_twice_and_gradients_once(chapter):
    asked, predicted = chapter.text_of("in_forward, in_backward, dtypes").splitlines()
    assert asked.endswith("{'torch.float32'}")
    assert "260,736" in asked
    assert "260,736 up; 223,680 up and 260,736 down" in predicted


def test_accumulation_trades_reduce_scatters_for_whole_gradients(chapter):
    every, once = chapter.text_of("for name, sync in (").splitlines()
    assert "'all_gather': 1.86, 'reduce_scatter': 4.0" in every
    assert "'all_gather': 1.86, 'reduce_scatter': 1.0" in once
    assert decimals(every)[-3:] == pytest.approx([11.61, 11.57, 0.25], abs=0.05)
    assert decimals(once)[-3:] == pytest.approx([7.10, 7.07, 1], abs=0.05)
    assert "gradients {None}" in chapter.text_of("two_losses, gradients = launch(never_reduced")


def test_a_full_state_dict_gathers_everything_and_shards_send_nothing(chapter):
    printed = chapter.text_of("state_run = launch")
    assert "shards: 0.00 Ψ sent by each rank, calls []" in printed
    assert "0.84 Ψ sent by each rank, calls ['all_gather']" in printed
    assert printed.count("((64, 96), 29, 29)") == 1
    assert printed.count("((64, 96), 29, 0)") == 3


def test_two_ranks_shards_load_on_four(chapter):
    printed = chapter.text_of("saved = launch(save_shards")
    assert printed.strip() == "bit-equal on 4 ranks, from: .metadata __0_0.distcp __1_0.distcp"


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
