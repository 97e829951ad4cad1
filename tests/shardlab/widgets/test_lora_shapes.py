"""The LoRA shapes: counts and bytes are those of `estimate.lora`, and JavaScript has the same."""

from __future__ import annotations

import json
import re
from dataclasses import astuple
from typing import Any
from xml.etree import ElementTree

import pytest
import traitlets
from playwright.sync_api import Browser, expect
from torch import nn

from shardlab import models
from shardlab.widgets import LoraShapes, lora_shapes
from shardlab.widgets.lora_shapes_marks import WIDTH, boxes_of, marks_of, trained_text
from shardlab.widgets.picture import asset
from shardlab.widgets.scene import Rect, Text, as_json, text_width
from tests.shardlab.widgets.interaction import Show, hover, press

GPT_3 = {"width": 12288, "layers": 96}
SETTINGS: list[dict[str, Any]] = [
    {},
    GPT_3 | {"r": 1, "ranks": 64},
    {"modules": "all linear", "width": 96, "layers": 2, "r": 96, "ranks": 1},
    {"modules": "all linear", "width": 1600, "layers": 48, "r": 512, "ranks": 3},
]


def shapes(**settings: Any) -> LoraShapes:
    widget = lora_shapes()
    widget.settings = settings
    return widget


@pytest.mark.parametrize(("r", "adapters"), [(1, 4_718_592), (8, 37_748_736)])
def test_adapters_of_gpt_3_match_the_paper(r: int, adapters: int) -> None:
    costs = shapes(**GPT_3, r=r).costs
    assert costs.adapter_parameters == adapters
    assert costs.parameters == pytest.approx(175e9, rel=0.01)


def test_all_linear_layers_match_the_courses_gpt() -> None:
    model = models.GPT(models.SIZES["0.3M"])
    linear = [m.weight for m in model.blocks.modules() if isinstance(m, nn.Linear)]
    costs = shapes(width=96, layers=2, modules="all linear", r=4).costs
    assert costs.parameters == sum(weight.numel() for weight in linear)
    assert costs.adapter_parameters == sum(4 * sum(weight.shape) for weight in linear)


def test_bytes_follow_what_is_trained() -> None:
    costs = shapes(r=4, ranks=4).costs
    assert costs.full_bytes == 16 * costs.parameters
    assert costs.lora_bytes == 4 * costs.parameters + 16 * costs.adapter_parameters
    assert costs.full_sent_bytes == 2 * 3 / 4 * 4 * costs.parameters
    assert costs.lora_sent_bytes == 2 * 3 / 4 * 4 * costs.adapter_parameters


@pytest.mark.parametrize("settings", SETTINGS)
def test_matrices_are_to_scale_and_fit(settings: dict[str, Any]) -> None:
    widget = shapes(**settings)
    r, d = widget.settings["r"], widget.settings["width"]
    for boxes in boxes_of(widget.settings).values():
        (_, _, width, height), (_, _, _, thin) = boxes["W"], boxes["A"]
        assert boxes["A"][2:] == (width, thin)
        assert boxes["B"][2:] == (thin, height)
        assert thin == pytest.approx(max(r / d * min(width, height), 1))
    rects = [mark for mark in marks_of(widget.settings) if isinstance(mark, Rect)]
    assert max(mark.x + mark.width for mark in rects) <= WIDTH


def test_invalid_settings_raise() -> None:
    widget = lora_shapes()
    for wrong in ({"r": 0}, {"r": 1000}, {"modules": "none"}, {"ranks": 0}):
        with pytest.raises(traitlets.TraitError, match="must be"):
            widget.settings = wrong


def test_the_static_picture_says_what_it_shows() -> None:
    widget = lora_shapes(12288, 96, r=8, world_size=8)
    text = " ".join(ElementTree.fromstring(widget.static_svg()).itertext())
    for words in ("d = 12,288, 96 layers, 8 ranks", "A: 8 × 12,288", "2.78 TB"):
        assert words in text
    assert "37.7M trained parameters, 0.0217 % of 174B" in widget.summary()


@pytest.mark.parametrize("settings", SETTINGS)
def test_all_text_fits(settings: dict[str, Any]) -> None:
    widget = shapes(**settings)
    for mark in marks_of(widget.settings):
        if isinstance(mark, Text) and mark.anchor == "start":
            assert mark.x + text_width(mark.text, mark.size) <= WIDTH, mark.text


@pytest.mark.browser
def test_javascript_has_the_same_numbers_and_marks(browser: Browser) -> None:
    page = browser.new_page()
    sources = "\n".join(map(asset, ("units.js", "common.js", "lora_shapes_marks.js")))
    for settings in SETTINGS:
        widget = shapes(**settings)
        costs, trained, marks = page.evaluate(
            f"""([scene, settings]) => {{
                {sources}
                const costs = loraCosts(scene, settings);
                return [Object.values(costs), loraTrained(costs), loraMarks(scene, settings)];
            }}""",
            # as in a saved notebook
            json.loads(json.dumps([widget.scene, widget.settings], sort_keys=True)),
        )
        assert costs == pytest.approx(astuple(widget.costs), rel=1e-12)
        assert trained == trained_text(widget.costs)
        expected = as_json(marks_of(widget.settings))
        assert len(marks) == len(expected)
        for mark, ours in zip(marks, expected, strict=True):
            assert {name: mark.get(name) for name in ours} == pytest.approx(ours, abs=0.01)
    page.close()


@pytest.mark.browser
def test_controls_change_the_picture_without_a_kernel(show: Show) -> None:
    root = show(lora_shapes())
    assert root.get_by_role("radio", name="GPT-2", exact=True).is_checked()
    root.get_by_role("radio", name="GPT-3").check()
    root.get_by_role("slider", name="LoRA rank r").press("Home")
    assert root.get_attribute("data-adapters") == "4718592"
    assert "4.72M trained parameters, 0.00271 % of 174B" in root.inner_text()
    root.get_by_role("radio", name="all linear").check()
    root.get_by_role("slider", name="LoRA rank r").press("End")
    root.get_by_role("slider", name="Layers").press("ArrowRight")
    assert not root.get_by_role("radio", name="GPT-3").is_checked()
    root.get_by_role("radio", name="0.3M").check()
    assert root.get_attribute("data-r") == "96"  # at most d
    root.get_by_role("slider", name="Ranks N").press("Home")
    assert root.get_attribute("data-lora-sent-bytes") == "0"
    settings = root.page.evaluate("window.model.get('settings')")
    assert settings == {
        "width": 96, "layers": 2, "modules": "all linear", "r": 96, "ranks": 1,
    }  # fmt: skip
    root.page.evaluate("window.model.set('settings', {...window.model.get('settings'), r: 2})")
    assert root.get_attribute("data-r") == "2"
    label = root.locator("canvas").get_attribute("aria-label") or ""
    assert re.search(r"memory of each rank: \d+ kB instead of 3.54 MB", label), label


@pytest.mark.browser
def test_mouse_and_keyboard_show_a_matrix(show: Show) -> None:
    widget = lora_shapes()
    root = show(widget)
    detail = root.locator(".shardlab-detail")
    press(root, "ArrowRight")
    assert detail.inner_text() == "W_q: 768 × 768 = 589,824 parameters, frozen"
    press(root, "ArrowRight", "ArrowRight")
    assert detail.inner_text() == "B of W_q: 768 × 8 = 6,144 parameters, trained"
    press(root, "Escape")
    assert detail.inner_text() == ""
    x, y, width, height = boxes_of(widget.settings)["W_v"]["A"]
    hover(root, x + width / 2, y + height / 2)
    assert root.get_attribute("data-selected") == "W_v A"
    root.locator("summary").click()
    expect(root.locator("tbody tr")).to_have_count(4)
