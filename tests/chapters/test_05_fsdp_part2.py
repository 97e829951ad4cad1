"""Chapter 05's second half runs from top to bottom, and its cells show what its prose says."""

import re

import pytest
import torch

from shardlab import data, launch, measure, models
from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("05_fsdp_part2", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 05, second half: {chapter.seconds:.0f} s (budget: 25 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_hsdp_sends_a_third_to_the_other_node_and_keeps_twice_as_much(chapter):
    fsdp, hsdp = chapter.text_of("mesh_runs = {").splitlines()[1:]
    assert floats(fsdp) == pytest.approx([2.90, 0.25], abs=0.03)
    assert floats(hsdp) == pytest.approx([1.00, 0.50], abs=0.03)


def test_gathers_stay_in_the_row_and_only_the_shard_crosses(chapter):
    assert chapter.text_of("def calls_of(run, label)").splitlines() == [
        "all_gather     of ranks (0, 1): 0.93 Ψ",
        "reduce_scatter of ranks (0, 1): 1.00 Ψ",
        "all_reduce     of ranks (0, 2): 0.50 Ψ",
    ]
    assert "<svg" in chapter.svg_of("traffic_map(mesh_runs")


def test_bytes_that_leave_the_node_match_the_formula(chapter):
    fsdp, hsdp = chapter.text_of("flat = hybrid_sharding.sent_bytes(psi, 1, 4").splitlines()
    assert floats(fsdp) == pytest.approx([2.25, 2.89, 2.90], abs=0.03)
    assert floats(hsdp) == pytest.approx([1, 1], abs=0.02)


def test_hsdp_pays_off_on_slow_links_and_with_accumulation(chapter):
    rows = chapter.text_of("times = [seconds(nodes").splitlines()[1:]
    fsdp, hsdp = zip(*((floats(row)[::2], floats(row)[1::2]) for row in rows), strict=True)
    gains = [[a / b for a, b in zip(*each, strict=True)] for each in zip(fsdp, hsdp, strict=True)]
    fast, fast_4, slow, slow_4 = gains
    assert max(fast) < 1.01  # "not faster"
    assert min(fast_4) > 1.3
    assert min(slow) > 1.3
    assert min(slow_4) > max(slow) > max(fast_4)
    states = chapter.text_of("memory.model_states(7.5e9").splitlines()
    assert [floats(row)[-1] for row in states] == [15, 0.23]


def test_masters_and_their_gradients_are_fp32_under_the_policy(chapter):
    assert "measured: ['torch.float32', 'torch.float32']" in chapter.text_of("precision_runs = {")
    in_bf16, in_fp32 = chapter.text_of("for reduce_dtype, run in precision_runs").splitlines()
    assert "'all_gather': 'bfloat16', 'reduce_scatter': 'bfloat16'" in in_bf16
    assert "'all_gather': 'bfloat16', 'reduce_scatter': 'float32'" in in_fp32
    (percent,) = floats(chapter.text_of("relative = "))
    assert 0.1 < percent < 1


def test_a_model_loaded_in_bf16_stalls_with_and_without_a_policy(chapter):
    rows = chapter.text_of("tuned, changed = {}, {}").splitlines()
    changed, fell = zip(
        *((floats(row)[0], floats(row)[1] - floats(row)[2]) for row in rows[:4]), strict=True
    )
    assert min(changed[:2]) > 0.99
    assert max(changed[2:]) < 0.11
    assert fell[2] == fell[3] < 0.2 * fell[0]
    assert fell[1] == pytest.approx(fell[0], rel=0.05)  # reduce_dtype is not the reason
    assert "<svg" in chapter.svg_of("right.axhline(lr")


def test_more_weights_move_at_a_larger_learning_rate(chapter):
    shares = [floats(row)[0] for row in chapter.text_of("def half_ulp").splitlines()]
    assert shares == sorted(shares)
    assert shares[0] < 0.02
    assert shares[-1] > 0.99


def test_deepspeed_trains_the_same_bf16_model(chapter):
    first, last = floats(chapter.text_of("with_deepspeed = launch"))
    assert first - last > 0.015


def test_offload_asks_for_shards_twice_and_gradients_once(chapter):
    asked, predicted = chapter.text_of("in_forward, in_backward, dtypes").splitlines()
    assert asked.endswith("{'torch.float32'}")
    assert "260,736" in asked
    assert "260,736 up; 223,680 up and 260,736 down" in predicted


def test_accumulation_trades_reduce_scatters_for_whole_gradients(chapter):
    every, once = chapter.text_of("for name, sync in (").splitlines()[1:]
    assert "'all_gather': 1.86, 'reduce_scatter': 4.0" in every
    assert "'all_gather': 1.86, 'reduce_scatter': 1.0" in once
    assert floats(every)[-3:] == pytest.approx([11.61, 11.57, 0.25], abs=0.05)
    assert floats(once)[-3:] == pytest.approx([7.10, 7.07, 1], abs=0.05)
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
    assert try_the_pictures(chapter, loaded_lab, artifacts) >= {"traffic-map"}
