"""Chapter 06 runs from top to bottom, and its outputs match its text."""

import re

import pytest
import torch

from shardlab import data, launch, measure, models
from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("06_fsdp_in_practice", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 06: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


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


def test_on_two_nodes_rows_in_nodes_send_least_and_rows_across_them_most(chapter):
    rows = [[*row.values()] for row in chapter.table_of("def seconds_of(name)")]
    assert [row[0] for row in rows] == ["FSDP", "HSDP, rows in nodes", "HSDP, rows across nodes"]
    assert [float(row[1]) for row in rows] == pytest.approx([2.90, 1.00, 3.86], abs=0.03)
    links = chapter.svg_of('mode="links"')
    assert links.count("sent 3.8 MiB, received 3.8 MiB, 100 Mbit/s") == 2
    assert [float(row[2]) for row in rows] == pytest.approx([0.24, 0.08, 0.32], abs=0.01)


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


def test_an_int8_sum_overflows_and_int8_messages_are_a_quarter(chapter):
    assert "measured -112" in chapter.text_of("predicted_sum.compare(")
    assert "✓ all-gather: bytes" in chapter.text_of('holds("all-gather: bytes sent')


def test_with_the_policy_masters_and_their_gradients_are_fp32(chapter):
    assert "measured fp32 and fp32" in chapter.text_of("precision_runs = {")
    in_bf16, in_fp32, differs = chapter.text_of("relative = ").splitlines()
    assert "all_gather in bfloat16, reduce_scatter in bfloat16" in in_bf16
    assert "all_gather in bfloat16, reduce_scatter in float32" in in_fp32
    (percent,) = decimals(differs)
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
    shares = [float(row["share that should change"]) for row in rows]
    assert shares == sorted(shares)
    assert shares[0] < 0.02
    assert shares[-1] > 0.99


def test_deepspeed_trains_the_same_bf16_model(chapter):
    first, last = decimals(chapter.text_of("with_deepspeed = launch"))[:2]
    assert first - last > 0.015


def test_accumulation_trades_reduce_scatters_for_whole_gradients(chapter):
    assert "reduced with it: 1 Ψ" in chapter.text_of("predicted_accumulation.compare(")
    rows = chapter.table_of('columns = ("gathered"')
    every, once = (list(map(float, list(row.values())[1:])) for row in rows)
    assert every == pytest.approx([1.86, 4, 0.25, 11.57, 11.61], abs=0.05)
    assert once == pytest.approx([1.86, 1, 1, 7.07, 7.10], abs=0.05)
    assert "gradients: {None}" in chapter.text_of("two_losses, gradients = launch(never_reduced")


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
