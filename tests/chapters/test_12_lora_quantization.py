"""Chapter 12 runs from top to bottom, and its outputs match its text."""

import itertools
import math
import re
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import read, run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {
        "Bytes of a block that change": "2",
        "With feedback, the weights' error": "'smaller'",
        "Whole bytes for each weight": "[1, 3]",
        "Bits for each parameter of the whole model": "4.25390625",
        "The int8 sum of four times 100": "'127'",
        "Lowest loss with r 64": "'factor 4, α 256'",
        "Adapter tensors with a gradient": "[4, 4]",
        "The format of 4.5 bits": "'NF4'",
    }
    folder = tmp_path_factory.mktemp("chapter")
    chapter = run("12_lora_quantization", folder, predictions=predictions)
    print(f"\nchapter 12: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def numbers(row):
    return [float(cell.replace(",", "").rstrip("%")) for cell in list(row.values())[1:]]


def test_new_adapters_change_nothing_and_only_b_has_a_gradient(chapter):
    assert "✓ logits with new adapters are bit-equal" in chapter.text_of("before, after = ")
    assert "largest gradient of any A: measured 0," in chapter.text_of("first = with_lora")


def test_other_initializations_learn_nothing_or_change_the_model(chapter):
    assert chapter.text_of("both_zero, both_random = ").count("✓") == 2


def test_each_adapter_parameter_takes_16_bytes(chapter):
    full, *by_rank = map(numbers, chapter.table_of("held |= "))
    assert full == [1_042_944, 1_042_944, 1_042_944, 2_085_888, 100]
    assert [row[1] for row in by_rank] == [4 * 3072 * r for r in (1, 4, 16)]
    assert all(row[0] == full[0] + row[1] for row in by_rank)  # the base remains
    assert chapter.text_of("held |= ").count("✓") == 3


def test_counts_of_gpt3_match_the_published_ones(chapter):
    rows = chapter.table_of("gpt3_shapes = ")
    counts = {row["r"]: row["trained parameters"] for row in rows}
    assert counts == {"1": "4,718,592", "2": "9,437,184", "4": "18,874,368", "8": "37,748,736"}


def test_frozen_weights_save_about_a_third_of_the_operations(chapter):
    shares = column(chapter.table_of("flops = {r: "), "operations, over full training's")
    assert shares == [0.64, 0.83, 0.67]  # r 1, r 16, the formula


def test_ddp_sends_only_adapters(chapter):
    assert chapter.text_of("in trained.items():").count("✓") == 2
    assert "measured 20.9" in chapter.text_of("predicted_lora_ratio.compare")


def test_sharded_training_still_gathers_frozen_weights(chapter):
    rows = {tuple(row.values())[:2]: row for row in chapter.table_of('"all-gather": ",d"')}
    for method in ("FSDP", "ZeRO-3"):
        full, with_lora = (numbers_of_calls(rows[method, name]) for name in ("full", "LoRA"))
        assert (full[1], with_lora[1]) == (1_042_944, 49_152)
        assert with_lora[0] == pytest.approx(full[0], rel=0.1)
    assert numbers_of_calls(rows["ZeRO-3", "LoRA"])[0] < numbers_of_calls(rows["ZeRO-3", "full"])[0]
    assert "✓ FSDP: all-gathers" in chapter.text_of("in_blocks = ")
    assert chapter.text_of("remains = {}").count("✓") == 2


def numbers_of_calls(row):
    return [float(cell.replace(",", "")) for cell in list(row.values())[2:]]


def test_larger_ranks_and_more_matrices_lower_the_loss(chapter):
    rows = {row["setup"]: row for row in chapter.table_of("untrained = ")}
    assert list(rows) == [
        "before",
        *(f"all linears, r {r}" for r in (1, 4, 8, 16, 64)),
        "attention, r 16",
        "MLP, r 10",
        "full",
    ]
    few, many = (
        numbers(rows[name])[0] for name in ("all linears, r 4", "attention, r 16")
    )  # the setup with fewer parameters has the lower loss
    assert few < many
    assert chapter.text_of("untrained = ").count("✓") == 5
    assert "<svg" in chapter.svg_of("figure, (by_size, by_step)")


def test_a_scaling_tuned_for_a_small_rank_is_too_large_for_a_large_one(chapter):
    verdict = chapter.text_of("predicted_alpha.compare")
    assert "measured factor ¼, α 16" in verdict
    assert "the factor that suits r 4" in verdict
    losses = column(chapter.table_of("r 64, α"), "loss on unseen code")
    before = chapter.table_of("untrained = ")[0]
    assert losses[0] < losses[1] < float(before["loss on unseen code"]) < losses[2]


def test_merging_changes_only_rounding(chapter):
    assert chapter.text_of("merged_gpt = merged(").count("✓") == 2
    separate, fp32, bf16 = chapter.table_of('"merged, in bf16": bf16_gpt')
    losses = column([separate, fp32, bf16], "loss on unseen code")
    assert max(losses) - min(losses) <= 0.0002  # "the loss hardly notices"
    change = float(bf16["change of the logits"].rstrip("%"))
    assert float(fp32["change of the logits"].rstrip("%")) < 0.001 < change < 1


def test_a_llama_trains_holds_and_sends_only_its_adapters(chapter):
    full, with_peft = map(numbers, chapter.table_of("llama_held = "))
    assert full[:4] == [460_032, 460_032, 460_032, 920_064]
    assert with_peft[:4] == [460_032 + 8_192, 8_192, 8_192, 16_384]
    assert full[4] == pytest.approx(460_032, rel=0.01)
    assert 8_192 <= with_peft[4] < 9_700
    assert chapter.text_of("file_bytes = ").count("✓") == 3


def test_peft_matches_our_adapters_and_merges_them(chapter):
    assert chapter.text_of("ours_logits, peft_logits = ").count("✓") == 3
    assert "✓ adapters in fp32, base in bf16" in chapter.text_of("on_bf16 = ")


def test_order_and_checkpointing_traps(chapter):
    assert "measured 2,048, 0" in chapter.text_of("in_both_orders")
    verdict = chapter.text_of("predicted_adapters.compare")
    assert "measured first layer wrapped: 4, second layer wrapped: 8" in verdict
    assert "what it is if every wrapped layer gets none" in verdict
    rows = [tuple(row.values()) for row in chapter.table_of("attempts = {")]
    assert [(count, reported[:24]) for _, count, reported in rows] == [
        ("8", "nothing"),
        ("0", "raises: element 0 of ten"),
        ("0", "warns: None of the input"),  # a trained norm hides it
        ("8", "nothing"),
        ("8", "nothing"),
    ]


def column(rows, heading):
    return [float(row[heading]) for row in rows]


def test_an_outlier_of_8_times_the_largest_weight_makes_errors_8_times_as_large(chapter):
    assert "measured 7.968" in chapter.text_of("predicted_factor.compare(")
    tensor, row, block = chapter.table_of("percent(errors_of_the_others(group))")
    with_outlier = "with the outlier, %"
    assert float(tensor[with_outlier]) / float(tensor["error, %"]) == pytest.approx(8, rel=0.02)
    for each in (row, block):  # "adds little to the error"
        assert float(each[with_outlier]) < 1.25 * float(each["error, %"])
        assert float(each["error, %"]) < 0.7 * float(tensor["error, %"])


def test_scales_add_bits_per_weight(chapter):
    answer = chapter.text_of("predicted_bits.compare(")
    assert "row of 96: 8.333 bits, block of 64: 8.5 bits, block of 16: 10 bits" in answer
    assert column(chapter.table_of("percent(errors_of_the_others(group))"), "bits per weight") == [
        8,
        8.33,
        8.5,
    ]


def test_half_a_bit_for_block_scales_pays_off_and_two_bits_do_not(chapter):
    assert chapter.text_of("fewer = np.array(").count("✓") == 3
    assert "<svg" in chapter.svg_of("axes.semilogy(bits")


def test_an_outlier_feature_hurts_an_int8_product_without_decomposition(chapter):
    rows = chapter.table_of("products = {")
    without, ours, undecomposed, decomposed, weights_only = column(rows, "error, %")
    assert ours > 5 * without
    assert undecomposed == pytest.approx(ours, rel=0.05)
    assert weights_only <= decomposed < 1.2 * weights_only < undecomposed / 2


def test_defaults_of_the_formats_differ(chapter):
    printed = chapter.text_of("layer_defaults = ")
    assert re.findall(r"measured (\d)", printed) == ["0", "6"]


def test_nf4_suits_trained_weights_and_not_uniform_numbers(chapter):
    trained, uniform = re.findall(r"measured (\S+),", chapter.text_of("uniform = 2 * torch.rand"))
    assert float(trained) < 0.9 < 1.1 < float(uniform)
    assert "<svg" in chapter.svg_of('right.set_title("use of each code')


def test_double_quantization_takes_4_127_bits(chapter):
    assert "predicted 4.127" in chapter.text_of("predicted_nf4_bits = ")


def test_every_format_has_its_bits_its_error_and_its_loss(chapter):
    rows = {row["format"]: row for row in chapter.table_of("in costs.items()")}
    bits, gigabytes = (
        {name: float(row[heading]) for name, row in rows.items()}
        for heading in ("bits per weight", "65 billion weights, GB")
    )
    assert gigabytes == {
        name: pytest.approx(65 * each / 8, abs=0.06) for name, each in bits.items()
    }
    assert bits["nf4"] - bits["nf4, double quantization"] == pytest.approx(0.373, abs=0.001)
    known = {name: row for name, row in rows.items() if not name.endswith("K")}
    assert {row["loss"] for name, row in rows.items() if name not in known} == {"–"}
    loss, error = (
        {name: float(row[heading]) for name, row in known.items()}
        for heading in ("loss", "error, %")
    )
    four_bits = ["int4, one scale for a tensor", "int4", "nf4", "Q4_0"]
    for measure in (error, loss):
        assert sorted(four_bits, key=measure.get, reverse=True) == four_bits
    assert sorted(of_gguf := [name for name in known if name[0] == "Q"], key=error.get) == of_gguf
    assert chapter.text_of("eight_bits, below=0.005").count("✓") == 4


def test_the_best_format_of_equal_bits_is_the_one_with_small_blocks(chapter):
    verdict = chapter.text_of("predicted_format.compare")
    assert "measured Q4_0" in verdict
    assert "what code points at quantiles would suggest" in verdict
    assert chapter.text_of("nf4_in_32 = ").count("✓") == 1


def test_handwritten_q8_0_matches_gguf_byte_for_byte(chapter):
    printed = chapter.text_of("different = sum(")
    assert "bytes that differ from gguf's, in all matrices: measured 0" in printed
    verdict = chapter.text_of("predicted_changed_bytes.compare")
    assert "measured 1" in verdict
    assert "the scale, byte for byte" in verdict


def test_q4_0_is_decoded_like_gguf(chapter):
    printed = chapter.text_of("unpack_q4_0(packed_q4_0")
    assert "✓ the weights that gguf reads" in printed
    assert "code of each block's largest weight" in printed
    picture = chapter.svg_of("draw_bytes(axes, 6, 2")
    assert "Q4_0, 18 bytes" in picture


def test_block_sizes_of_the_formats_match_gguf(chapter):
    assert chapter.text_of("ours_of_gguf = ").count("✓") == 2


def test_error_feedback_makes_weights_worse_and_outputs_better(chapter):
    verdict = chapter.text_of("predicted_weight_error.compare")
    assert "measured larger" in verdict
    assert "what the error of the outputs is" in verdict
    assert chapter.text_of("gptq_errors.items()").count("✓") == 4
    losses = [float(row["loss"]) for row in chapter.table_of("def gptq_loss")]
    assert losses[0] < losses[2] < losses[1]


def test_a_fused_kernel_moves_a_fifth_of_the_bytes(chapter):
    verdict = chapter.text_of("predicted_moved.compare")
    assert "the second way without writing W" in verdict
    assert chapter.text_of("small = 2 / GROUP").count("✓") == 4
    rows = chapter.table_of("H100_BYTES_PER_S = ")
    milliseconds = [float(row["minimum ms per token"]) for row in rows]
    assert milliseconds[1] > milliseconds[0] > milliseconds[2] > milliseconds[3]
    assert "computing with 152 tokens" in chapter.text_of("H100_FLOPS_PER_S = ")


def triton_on_a_cpu(program):
    """The part of triton.language that the chapter's kernel uses, for one program of a grid."""

    def load(pointer, mask, other):
        memory, at = pointer
        return torch.where(mask, memory.ravel()[at.clamp(max=memory.numel() - 1)], other)

    def store(pointer, value, mask):
        memory, at = pointer
        memory.ravel()[at[mask.expand_as(at)]] = value[mask.expand_as(at)]

    return SimpleNamespace(
        program_id=program.__getitem__,
        arange=torch.arange,
        zeros=torch.zeros,
        load=load,
        store=store,
        dot=lambda a, b, total: total + a.float() @ b.float(),
        **{name: getattr(torch, name) for name in ("float16", "float32")},
        constexpr=int,
    )


class Pointer(NamedTuple):
    """Offsets into the memory of a tensor."""

    memory: torch.Tensor
    at: torch.Tensor

    def __add__(self, offsets):
        return Pointer(self.memory, self.at + offsets)


def test_the_triton_kernel_in_the_text_computes_the_product():
    [text] = [
        cell.source
        for cell in read("12_lora_quantization").cells
        if cell.cell_type == "markdown" and "@triton.jit" in cell.source
    ]
    code = re.search("```python\n(.+?)\n```", text, re.DOTALL).group(1)
    kernel = code.split("\n\ngrid = ")[0].removeprefix("@triton.jit\n")
    rows, columns, inner, group = 19, 70, 128, 64  # rows and columns do not fill whole blocks
    torch.manual_seed(0)
    x = torch.randn(rows, inner).half()
    codes = torch.randint(-127, 128, (inner, columns), dtype=torch.int8)
    scales = (torch.rand(inner // group, columns) / 127).half()
    y = torch.full((rows, columns), torch.nan).half()
    pointers = [Pointer(each, torch.tensor(0)) for each in (x, codes, scales, y)]
    for program in itertools.product(range(-(-rows // 16)), range(-(-columns // 64))):
        names = {"tl": triton_on_a_cpu(program)}
        exec(kernel, names)
        names["int8_matmul"](*pointers, rows, columns, inner, 16, 64, group)
    weight = (codes.half() * scales.repeat_interleave(group, 0)).float()
    torch.testing.assert_close(y, (x.float() @ weight).half(), rtol=2e-3, atol=1e-2)


def number(text):
    return float(text.replace(",", ""))


def test_bitsandbytes_packs_like_the_handwritten_code(chapter):
    printed = chapter.text_of("codes_up, _ = nf4_codes")
    assert "✓ the 16 code points" in printed
    assert "✓ packed bytes that differ: measured 0" in printed
    rows = chapter.table_of("bytes_up = stored")
    assert [row["part"] for row in rows] == ["codes", "codes of scales", "scales of scales", "mean"]


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
    assert "3,865 MB by the formula" in chapter.text_of("7B: LoRA in 16 bits")


def test_behavior_of_bitsandbytes_on_a_cpu(chapter):
    results = {row["tried"]: row["result"] for row in chapter.table_of("tried = {")}
    works = ["Linear4bit, nf4", "Linear4bit, fp4", "Linear8bitLt", "Adam8bit"]
    assert [results[name] for name in works] == ["works"] * 4
    assert "not supported on CPU" in results["PagedAdamW8bit"]
    assert results["training the codes"].startswith("raises RuntimeError")


def test_rows_that_are_not_a_multiple_of_a_block_are_decoded_wrongly_with_avx512(chapter):
    rows = {row["matrix"]: row for row in chapter.table_of("def decoding_error")}
    assert all(0.05 < float(row["error, blocks of 32"]) < 0.11 for row in rows.values())
    of_64 = {name: float(row["blocks of 64"]) for name, row in rows.items()}
    assert of_64.pop("mlp.down") < 0.11  # 64 divides 384
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert min(of_64.values()) > 0.2
    else:
        assert max(of_64.values()) < 0.11


def test_the_defaults_of_transformers_are_not_qlora(chapter):
    rows = chapter.table_of("qlora_paper = ")
    assert [row["default"] for row in rows] == ["fp4", "False", "float32", "uint8"]
    uint8, bf16 = chapter.table_of("stored_as = [")
    assert uint8["bytes"] == bf16["bytes"] == "18,432"  # half a byte each, in either dtype


def test_int8_weights_send_about_a_quarter(chapter):
    fp32, bf16, int8 = (
        number(row["bytes sent by each rank"]) for row in chapter.table_of("wire_sent = ")
    )
    assert int8 / fp32 == pytest.approx(8.5 / 32, rel=0.01)
    assert int8 / bf16 == pytest.approx(8.5 / 16, rel=0.01)


def test_a_sum_is_quantized_once(chapter):
    assert "-112" in chapter.text_of("predicted_sum.compare")
    rows = chapter.table_of("wire_formats = ")
    errors = {(row["sum"], row["bits"]): float(row["relative error"]) for row in rows}
    for bits in ("8", "4"):
        assert errors["ring_reduce", bits] > 1.1 * errors["all_to_all_reduce", bits]
    assert 0.05 < errors["all_to_all_reduce", "4"] < 0.15  # "about a tenth"
    assert "✓ ratio on 4 to 64 ranks" in chapter.text_of("ratios = np.sqrt")
    assert "<svg" in chapter.svg_of("once = once_errors.mean()")


def test_zero_plus_plus_sends_a_quarter(chapter):
    *_, last = chapter.table_of("volumes = [")
    assert last["between nodes, in Ψ"] == "0.75"


def test_comparison_of_the_methods(chapter):
    full, lora, qlora, inference = chapter.table_of("    method_rows,")
    assert float(full["all bytes"]) == 16
    assert 1 - float(qlora["weights"]) / float(lora["weights"]) == pytest.approx(0.7, abs=0.02)
    assert number(lora["GFLOPs per token"]) / number(full["GFLOPs per token"]) == pytest.approx(
        2 / 3, abs=0.02
    )
    assert float(inference["gradients"]) == 0
    assert math.isclose(number(lora["MB sent in a step"]), number(qlora["MB sent in a step"]))


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    kinds = try_the_pictures(chapter, loaded_lab, artifacts, with_axe=True)
    assert kinds == {"lora-shapes", "quantization-grid"}


def test_live_bytes_of_a_step_match_the_formula(chapter):
    assert chapter.text_of("in_memory = launch(").count("✓") == 3
    assert "<svg" in chapter.svg_of("MiB at the peak of a step")
