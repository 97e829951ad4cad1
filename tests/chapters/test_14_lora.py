"""Chapter 14 runs from top to bottom, and its outputs match its text."""

import re

import pytest
import torch

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {
        "A gradient that is not 0": "'both'",
        "Bits for each parameter, on average": "4.25390625",
        "Lowest loss with r 64": "'factor 4, α 256'",
        "Adapter tensors with a gradient": "[4, 4]",
    }
    folder = tmp_path_factory.mktemp("chapter")
    chapter = run("14_lora", folder, predictions=predictions)
    print(f"\nchapter 14: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def numbers(row):
    return [float(cell.replace(",", "").rstrip("%")) for cell in list(row.values())[1:]]


def number(text):
    return float(text.replace(",", ""))


def column(rows, heading):
    return [float(row[heading]) for row in rows]


def test_only_b_has_a_gradient_in_the_first_step(chapter):
    verdict = chapter.text_of("predicted_gradients.compare")
    assert "measured all B" in verdict
    assert "what holds from the second step on" in verdict
    assert chapter.text_of("both_zero, both_random = ").count("✓") == 3


def test_each_adapter_parameter_takes_16_bytes(chapter):
    full, *by_rank = map(numbers, chapter.table_of("held |= "))
    assert full == [1_042_944, 1_042_944, 1_042_944, 2_085_888, 100]
    assert [row[1] for row in by_rank] == [4 * 3072 * r for r in (1, 4, 16)]
    assert all(row[0] == full[0] + row[1] for row in by_rank)  # the base remains
    assert chapter.text_of("held |= ").count("✓") == 3


def test_counts_of_gpt3_match_the_published_ones(chapter):
    printed = chapter.text_of("gpt3_shapes = ")
    assert printed.count("✓") == 1
    assert "0.0215%" in printed


def test_frozen_weights_save_about_a_third_of_the_operations(chapter):
    assert chapter.text_of("def matrix_flops").count("✓") == 2


def test_ddp_sends_only_adapters(chapter):
    assert chapter.text_of("in trained.items():").count("✓") == 2
    assert "measured 20.9" in chapter.text_of("predicted_lora_ratio.compare")


def test_fsdp_still_gathers_frozen_weights(chapter):
    full, with_lora = map(numbers, chapter.table_of("fsdp_sent = "))
    assert (full[1], with_lora[1]) == (1_042_944, 49_152)
    assert with_lora[0] == pytest.approx(full[0], rel=0.1)
    assert chapter.text_of("fsdp_sent = ").count("✓") == 3


def test_larger_ranks_and_more_matrices_lower_the_loss(chapter):
    rows = {row["setup"]: row for row in chapter.table_of("share of full's gain")}
    ranks = [f"all linears, r {r}" for r in (1, 4, 8, 16, 64)]
    assert list(rows) == ["before", *ranks, "attention, r 16", "MLP, r 10", "full"]
    assert chapter.text_of("by_rank = ").count("✓") == 5


def test_a_scaling_tuned_for_a_small_rank_is_too_large_for_a_large_one(chapter):
    verdict = chapter.text_of("predicted_alpha.compare")
    assert "measured factor ¼, α 16" in verdict
    assert "the factor that suits r 4" in verdict
    losses = column(chapter.table_of("r 64, α"), "loss on unseen code")
    before = chapter.table_of("share of full's gain")[0]
    assert losses[0] < losses[1] < float(before["loss on unseen code"]) < losses[2]


def test_merging_changes_only_rounding(chapter):
    assert chapter.text_of("separate_gpt = ").count("✓") == 2


def test_order_and_checkpointing_traps(chapter):
    assert chapter.text_of("adapted = with_peft").count("✓") == 2
    assert "measured 2,048, 0" in chapter.text_of("in_both")
    verdict = chapter.text_of("predicted_adapters.compare")
    assert "measured first layer wrapped: 4, second layer wrapped: 8" in verdict
    assert "what it is if every wrapped layer gets none" in verdict
    rows = [tuple(row.values()) for row in chapter.table_of("attempts = {")]
    assert [(count, reported[:24]) for _, count, reported in rows] == [
        ("0", "raises: element 0 of ten"),
        ("0", "warns: None of the input"),  # a trained norm hides it
        ("8", "nothing"),
        ("8", "nothing"),
    ]


def test_most_bytes_of_the_4_bit_model_are_not_quantized(chapter):
    printed = chapter.text_of('holds("bytes of the base"')
    stored = number(re.search(r"measured ([\d,]+) bytes", printed)[1])
    assert stored / 2 < 4 * (260_736 - 221_184)
    assert "that is what a quantized weight takes" in chapter.text_of(
        "predicted_model_bits.compare"
    )


def test_the_gradient_passes_through_the_frozen_matrix(chapter):
    assert chapter.text_of("y.backward(upstream)").count("✓") == 3


def test_adapters_learn_on_a_4_bit_base(chapter):
    fp32, four_bits = chapter.table_of('sizes = {"fp32"')
    assert number(four_bits["bytes of the base"]) < 0.3 * number(fp32["bytes of the base"])
    gain = float(fp32["loss on code, before"]) - float(fp32["after"])
    before = "loss on code, before"
    assert 0.01 < float(four_bits[before]) - float(fp32[before]) < 0.03  # "about 0.02"
    assert abs(float(four_bits["after"]) - float(fp32["after"])) < gain / 4


def test_quantizing_again_after_a_merge_increases_the_loss(chapter):
    separate, merged, rounded = (
        float(row["loss on code"]) for row in chapter.table_of("in_fp32 = merged_loss")
    )
    assert separate == pytest.approx(merged, abs=2e-4)
    assert rounded > separate + 0.005


def test_memory_matches_the_paper(chapter):
    seven, large = chapter.table_of("full_bytes = ")
    assert (seven["model"], large["model"]) == ("7B", "65B")
    assert float(large["16 bit, GB"]) > 780
    assert seven["QLoRA: base, GB"] == "3.9"  # "3,865 MB" in the text


def test_rows_that_are_not_a_multiple_of_a_block_are_decoded_wrongly_with_avx512(chapter):
    rows = {row["matrix"]: row for row in chapter.table_of("cpu.get_cpu_capability()")}
    assert all(0.05 < float(row["error, blocks of 32"]) < 0.11 for row in rows.values())
    of_64 = {name: float(row["blocks of 64"]) for name, row in rows.items()}
    assert of_64.pop("mlp.down") < 0.11  # 64 divides 384
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert min(of_64.values()) > 0.2
    else:
        assert max(of_64.values()) < 0.11


def test_the_defaults_of_transformers_are_not_qlora(chapter):
    rows = chapter.table_of("BitsAndBytesConfig(load_in_4bit=True)")
    assert [row["default"] for row in rows] == ["fp4", "False", "float32", "uint8"]


def test_comparison_of_the_methods(chapter):
    full, lora, qlora, inference = chapter.table_of('"MB sent in a step"')
    assert float(full["all bytes"]) == 16
    assert 1 - float(qlora["weights"]) / float(lora["weights"]) == pytest.approx(0.7, abs=0.02)
    assert float(inference["gradients"]) == 0
    assert number(lora["MB sent in a step"]) == number(qlora["MB sent in a step"])


@pytest.mark.browser
def test_reopened_pictures_fit(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts, with_axe=True) == {"lora-shapes"}
