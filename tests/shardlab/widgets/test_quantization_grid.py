"""The quantization grid: its numbers are those of the formats, and JavaScript computes the same."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import traitlets
from playwright.sync_api import Browser, expect

from shardlab.estimate.quantization import FORMATS
from shardlab.models import pretrained
from shardlab.widgets import QuantizationGrid, quantization_grid
from shardlab.widgets.picture import asset
from shardlab.widgets.quantization_grid_marks import OUTLIER_AT, WIDTH, marks_of
from shardlab.widgets.scene import Text, as_json, text_width
from tests.shardlab.widgets.interaction import Show, hover, press

WEIGHTS = pretrained.gpt().blocks[0].mlp.up.weight
SETTINGS: list[dict[str, Any]] = [
    {},
    {"bits": 2, "block": 16},
    {"bits": 8, "block": 4096, "outlier": 20},
    {"codes": "nf4", "outlier": 7, "weight": 0},
    {"bits": 3, "block": 128, "outlier": 3, "weight": 4095},
]


def grid(**settings: Any) -> QuantizationGrid:
    widget = quantization_grid(WEIGHTS)
    widget.settings = settings
    return widget


def test_nf4_matches_bitsandbytes() -> None:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit  # takes seconds to import

    sample = WEIGHTS.detach().flatten()[:4096]
    codes, state = quantize_4bit(sample, blocksize=64, quant_type="nf4")
    expected = dequantize_4bit(codes, state).flatten()
    found = grid(codes="nf4").quantized
    restored = found.points[found.codes] * found.scales[:, None]
    assert restored.ravel() == pytest.approx(expected.numpy(), abs=1e-5)
    relative = (expected - sample).square().mean().sqrt() / sample.square().mean().sqrt()
    assert found.error == pytest.approx(float(relative), rel=1e-4)


@pytest.mark.parametrize(("name", "bits", "codes"), [("int8", 8, "int"), ("nf4", 4, "nf4")])
def test_bits_per_weight_match_the_formats(name: str, bits: int, codes: str) -> None:
    found = grid(bits=bits, codes=codes).quantized
    assert found.bits_per_weight == FORMATS[name].bits_per_weight
    assert found.bytes == FORMATS[name].bytes_of(4096)


def test_each_weight_gets_the_nearest_of_evenly_spaced_values() -> None:
    found = grid(bits=3, block=128).quantized
    step = found.scales[:, None] / 3
    restored = found.points[found.codes] * found.scales[:, None]
    nearest = np.round(found.weights / step) * step
    # A weight midway between two values may be rounded to either.
    assert np.abs(restored - found.weights) == pytest.approx(np.abs(nearest - found.weights))


def test_an_outlier_spoils_only_its_block() -> None:
    plain, with_outlier = grid().quantized, grid(outlier=20).quantized
    block = OUTLIER_AT // 64
    others = np.arange(64) != block
    assert (plain.errors == with_outlier.errors)[others].all()
    assert with_outlier.errors[block] > 5 * plain.errors[block]
    assert grid(outlier=20, block=4096).quantized.error > 5 * with_outlier.error


def test_real_weights_prefer_nf4_small_blocks_and_more_bits() -> None:
    assert grid(codes="nf4").quantized.error < grid().quantized.error
    by_block = [grid(block=block).quantized.error for block in (16, 64, 256, 4096)]
    assert by_block == sorted(by_block)
    by_bits = [grid(bits=bits).quantized.error for bits in range(8, 1, -1)]
    assert by_bits == sorted(by_bits)


def test_a_block_of_zeros_stays_zero() -> None:
    weights = torch.randn(4096)
    weights[:64] = 0
    found = quantization_grid(weights).quantized
    assert found.scales[0] == found.errors[0] == 0


def test_invalid_settings_raise() -> None:
    widget = grid()
    for wrong in ({"bits": 9}, {"block": 100}, {"codes": "nf4", "bits": 3}, {"outlier": 21}):
        with pytest.raises(traitlets.TraitError, match="must be"):
            widget.settings = wrong
    with pytest.raises(ValueError, match="4,096 elements"):
        quantization_grid(torch.ones(100))
    with pytest.raises(ValueError, match="not all of them 0"):
        quantization_grid(torch.zeros(5000))


def test_the_static_picture_says_what_it_shows() -> None:
    widget = quantization_grid(WEIGHTS, codes="nf4", block=128, outlier=12)
    text = "".join(ElementTree.fromstring(widget.static_svg()).itertext())
    for words in ("NF4, blocks of 128, one outlier of 12×", "4.25 bits per weight", "2.1 KiB"):
        assert words in text


@pytest.mark.parametrize("settings", SETTINGS)
def test_all_text_fits(settings: dict[str, Any]) -> None:
    widget = grid(**settings)
    for mark in marks_of(widget.quantized, widget.settings):
        if isinstance(mark, Text) and mark.anchor == "start":
            assert mark.x + text_width(mark.text, mark.size) <= WIDTH, mark.text


@pytest.mark.browser
def test_javascript_has_the_same_numbers_and_marks(browser: Browser) -> None:
    page = browser.new_page()
    sources = "\n".join(map(asset, ("units.js", "common.js", "quantization_grid_marks.js")))
    for settings in SETTINGS:
        widget = grid(**settings)
        from_js = page.evaluate(
            f"""([scene, settings]) => {{
                {sources}
                const found = gridQuantize(scene, settings);
                return {{
                    error: found.error, bits: found.bitsPerWeight, bytes: found.bytes,
                    errors: found.blocks.map(({{ error }}) => error),
                    summary: gridSummary(found, settings), marks: gridMarks(scene, found, settings),
                }};
            }}""",
            [widget.scene, widget.settings],
        )
        found = widget.quantized
        assert from_js["error"] == pytest.approx(found.error, rel=1e-12)
        assert from_js["errors"] == pytest.approx(found.errors, rel=1e-12)
        assert (from_js["bits"], from_js["bytes"]) == (found.bits_per_weight, found.bytes)
        assert from_js["summary"] == widget.summary()
        expected = as_json(marks_of(found, widget.settings))
        assert len(from_js["marks"]) == len(expected)
        for mark, ours in zip(from_js["marks"], expected, strict=True):
            assert {name: mark.get(name) for name in ours} == pytest.approx(ours, abs=0.01)
    page.close()


@pytest.mark.browser
def test_controls_change_the_numbers_without_a_kernel(show: Show) -> None:
    root = show(grid())
    root.get_by_role("slider", name="Bits").press("ArrowRight")
    assert root.get_attribute("data-bits") == "5"
    assert root.get_by_role("radio", name="NF4").is_hidden()
    assert float(root.get_attribute("data-error") or 0) == pytest.approx(
        grid(bits=5).quantized.error
    )
    root.get_by_role("slider", name="Bits").press("ArrowLeft")
    root.get_by_role("radio", name="NF4").check()
    root.get_by_role("slider", name="Outlier").press("End")
    assert root.page.evaluate("window.model.get('settings')") == {
        "bits": 4, "codes": "nf4", "block": 64, "outlier": 20, "weight": OUTLIER_AT,
    }  # fmt: skip
    root.get_by_role("slider", name="Bits").press("End")  # NF4 has 4 bits
    assert root.get_attribute("data-codes") == "int"
    root.page.evaluate("window.model.set('settings', {...window.model.get('settings'), block: 16})")
    assert root.get_attribute("data-bits-per-weight") == "10"
    assert "int8, blocks of 16" in (root.locator("canvas").get_attribute("aria-label") or "")


@pytest.mark.browser
def test_mouse_and_keyboard_select_a_block(show: Show) -> None:
    widget = grid()
    root = show(widget)
    assert root.get_attribute("data-shown") == str(OUTLIER_AT // 64)
    press(root, "Home", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert root.get_attribute("data-shown") == "1"
    assert root.locator(".shardlab-detail").inner_text().startswith("block 2 of 64: scale 0.")
    left, width = widget.scene["left"], widget.scene["width"]
    x = left + (width - left) * 10.5 / 64
    y = widget.scene["block_bars"][1] - 5
    hover(root, x, y)
    assert root.locator(".shardlab-detail").inner_text().startswith("block 11 of 64")
    assert root.get_attribute("data-shown") == "1"  # hovering describes a block, a click selects it
    hover(root, x, 2)
    assert root.locator(".shardlab-detail").inner_text().startswith("block 2 of 64")
    root.locator("canvas").click(position={"x": x, "y": y})
    assert root.get_attribute("data-shown") == "10"
    root.get_by_role("slider", name="Block size").press("End")
    assert root.get_attribute("data-shown") == "0"
    root.locator("summary").click()
    expect(root.locator("tbody tr")).to_have_count(1)
