"""Chapter 15 runs from top to bottom, and its outputs match its text."""

import itertools
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
        "With feedback, the weights' error": "'smaller'",
        "The format of 4.5 bits": "'NF4'",
        "Factor by which the error of e4m3": "8",
    }
    folder = tmp_path_factory.mktemp("chapter")
    chapter = run("15_quantization", folder, predictions=predictions)
    print(f"\nchapter 15: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def column(rows, heading):
    return [float(row[heading]) for row in rows]


def test_an_outlier_of_8_times_the_largest_weight_makes_errors_8_times_as_large(chapter):
    assert "measured 7.968" in chapter.text_of("predicted_factor.compare(")
    tensor, row, block = chapter.table_of("def row_of")
    with_outlier = "with the outlier, %"
    assert float(tensor[with_outlier]) / float(tensor["error, %"]) == pytest.approx(8, rel=0.02)
    for each in (row, block):  # "adds little to the error"
        assert float(each[with_outlier]) < 1.25 * float(each["error, %"])
        assert float(each["error, %"]) < 0.7 * float(tensor["error, %"])


def test_scales_add_bits_per_weight(chapter):
    answer = chapter.text_of("predicted_bits.compare(")
    assert "row of 96: 8.333 bits, block of 64: 8.5 bits, block of 16: 10 bits" in answer
    assert column(chapter.table_of("def row_of"), "bits per weight") == [
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


def test_nf4_suits_trained_weights_and_not_uniform_numbers(chapter):
    trained, uniform = re.findall(r"measured (\S+),", chapter.text_of("uniform = 2 * torch.rand"))
    assert float(trained) < 0.9 < 1.1 < float(uniform)
    assert "<svg" in chapter.svg_of("draw_format(*below_axes")


def test_double_quantization_takes_4_127_bits(chapter):
    assert "predicted 4.127" in chapter.text_of("dq_bits = ")


def test_a_floating_point_code_rounds_relative_to_itself(chapter):
    verdict = chapter.text_of("predicted_fp8.compare")
    assert "what it is with int8" in verdict
    assert float(re.search(r"measured ([\d.]+)", verdict)[1]) < 1.2  # "hardly depends"
    rows = {row["format"]: row for row in chapter.table_of("fp_errors = {")}
    int8, fp8, nf4, nvfp4, mxfp4 = column(rows.values(), "error, %")
    assert int8 < fp8 < min(nf4, nvfp4) < max(nf4, nvfp4) < mxfp4
    assert nf4 == pytest.approx(nvfp4, rel=0.05)  # "about equal"


def test_every_format_has_its_bits_its_error_and_its_loss(chapter):
    rows = {row["format"]: row for row in chapter.table_of("name, *cost, added")}
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


def test_q4_0_is_decoded_like_gguf(chapter):
    printed = chapter.text_of("unpack_q4_0(packed_q4_0")
    assert "✓ the weights that gguf reads" in printed
    assert "code of each block's largest weight" in printed
    picture = chapter.svg_of("draw_bytes(axes, 2.6, 2")
    assert "Q4_0, 18 bytes" in picture


def test_block_sizes_of_the_formats_match_gguf(chapter):
    assert chapter.text_of("ours == of_gguf").count("✓") == 1


def test_error_feedback_makes_weights_worse_and_outputs_better(chapter):
    verdict = chapter.text_of("predicted_weight_error.compare")
    assert "measured larger" in verdict
    assert "what the error of the outputs is" in verdict
    assert chapter.text_of("of_weights, of_outputs = ").count("✓") == 2


def test_a_fused_kernel_moves_a_fifth_of_the_bytes(chapter):
    rows = chapter.table_of("1e3 * 7e9 * b")
    milliseconds = [float(row["minimum ms per token"]) for row in rows]
    assert milliseconds[1] > milliseconds[0] > milliseconds[2] > milliseconds[3]
    assert "computing with 152 tokens" in chapter.text_of("H100.flops_per_s")


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
        for cell in read("15_quantization").cells
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


@pytest.mark.browser
def test_reopened_pictures_fit(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts, with_axe=True) == {"quantization-grid"}
