"""The memory bars in Chromium: sliders, selection, and the formula in JavaScript."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator

from shardlab.estimate import memory
from shardlab.widgets import memory_bars
from shardlab.widgets.memory_rows import MemoryBarsLayout, states_at, ticks
from shardlab.widgets.picture import asset
from shardlab.widgets.units import format_count, format_si
from tests.shardlab.widgets.interaction import Show, hover, press

pytestmark = pytest.mark.browser

COSTS = {
    "precision": {name: list(sizes) for name, sizes in memory.PRECISION_BYTES.items()},
    "optimizer": memory.STATE_BYTES,
}


def random_settings(count: int) -> list[dict]:
    draw = random.Random(5)
    return [
        {
            "parameters": draw.choice([draw.randint(1, 10**6), round(10 ** draw.uniform(3, 13))]),
            "worldSize": draw.choice([1, 3, 64, draw.randint(1, 4096)]),
            "stage": draw.randint(0, 3),
            "precision": draw.choice(list(memory.PRECISION_BYTES)),
            "optimizer": draw.choice(list(memory.STATE_BYTES)),
            "offload": draw.choice(["none", "optimizer", "parameters", "both"]),
        }
        for _ in range(count)
    ]


def test_the_formula_is_the_same_in_python_and_javascript(browser: Browser) -> None:
    settings = random_settings(400)
    capacity_bytes = 80e9
    page = browser.new_page()
    from_js = page.evaluate(
        f"""([settings, costs, capacity]) => {{
            {asset("memory_formula.js")}
            return settings.map((each) => [
                modelStates(each, costs), String(largestModel(capacity, each, costs)),
            ]);
        }}""",
        [settings, COSTS, capacity_bytes],
    )
    page.close()
    for given, (states, largest) in zip(settings, from_js, strict=True):
        expected = states_at(given, given["stage"])
        assert states["device"] == pytest.approx(expected.device, rel=1e-12)
        assert states["host"] == pytest.approx(expected.host, rel=1e-12)
        expected_largest = memory_bars(
            **{name: value for name, value in given.items() if name != "worldSize"},
            world_size=given["worldSize"],
            capacity_bytes=capacity_bytes,
        ).largest_model()
        assert largest == ("Infinity" if expected_largest is None else str(expected_largest))


def test_units_and_ticks_are_the_same_in_python_and_javascript(browser: Browser) -> None:
    draw = random.Random(2)
    amounts = [0, 1, 999.4, 999.5, 1e3, 1.125e9, 7.5e9, 1.6e13]
    amounts += [10 ** draw.uniform(0, 16) for _ in range(200)]
    page = browser.new_page()
    source = asset("memory_bars_rows.js")
    from_js = page.evaluate(
        f"""(amounts) => {{
            {asset("units.js")}
            {asset("common.js")}
            {source}
            return amounts.map((each) => [
                formatSi(each, "B"), formatCount(each),
                roundTicks(each + 1, 5, true), roundTicks(each + 1, 5, false),
            ]);
        }}""",
        amounts,
    )
    page.close()
    for amount, (si, count, decimal, binary) in zip(amounts, from_js, strict=True):
        assert si == format_si(amount, "B")
        assert count == format_count(amount)
        assert decimal == pytest.approx(ticks(amount + 1, 5, decimal=True))
        assert binary == pytest.approx(ticks(amount + 1, 5, decimal=False))


def device_gb(root: Locator) -> float:
    return float(root.get_attribute("data-device-bytes") or "nan") / 1e9


def test_controls_redraw_without_the_kernel(show: Show) -> None:
    root = show(memory_bars(7.5e9, 64, capacity_bytes=80e9))
    assert device_gb(root) == 120
    assert root.get_attribute("data-fits") == "no"
    verdict = root.locator(".shardlab-verdict")
    assert "✗ Does not fit." in verdict.inner_text()
    root.get_by_role("radiogroup", name="ZeRO stage").get_by_label("1", exact=True).check()
    assert device_gb(root) == pytest.approx(31.406, abs=1e-3)
    assert root.get_attribute("data-fits") == "yes"
    fits = "✓ Fits. Stage 1: 31.4 GB on each of 64 devices, stage 0: 120 GB."
    assert fits in verdict.inner_text()
    assert "48.6 GB of 80 GB left" in verdict.inner_text()
    root.get_by_role("slider", name="N ranks").fill("10")
    assert root.get_attribute("data-world-size") == "1024"
    assert device_gb(root) == pytest.approx(30.09, abs=0.01)
    root.get_by_role("radiogroup", name="offload").get_by_label("optimizer").check()
    assert float(root.get_attribute("data-host-bytes") or 0) > 0
    root.get_by_role("radiogroup", name="precision").get_by_label("fp32").check()
    root.get_by_role("radiogroup", name="optimizer").get_by_label("SGD").check()
    assert device_gb(root) == 60
    root.get_by_role("radiogroup", name="unit").get_by_label("GiB").check()
    assert "55.9 GiB" in verdict.inner_text()
    assert " GB" not in verdict.inner_text()
    settings = root.page.evaluate("window.model.get('settings')")
    assert settings["worldSize"] == 1024
    assert settings["unit"] == "GiB"


def test_unsupported_offload_is_explained(show: Show) -> None:
    root = show(memory_bars(13e9, 1, 3, offload="both", capacity_bytes=32e9))
    verdict = root.locator(".shardlab-verdict")
    assert "the device sets no limit" in verdict.inner_text()
    stages = root.get_by_role("radiogroup", name="ZeRO stage")
    stages.get_by_label("2", exact=True).check()
    assert "Only stage 3 offloads parameters." in verdict.inner_text()
    stages.get_by_label("0", exact=True).check()
    assert "nothing is offloaded" in verdict.inner_text()
    assert root.get_attribute("data-host-bytes") == "0"


def test_the_parameters_slider_keeps_the_exact_given_value(show: Show) -> None:
    root = show(memory_bars(7_654_321_000, 64))
    slider = root.get_by_role("slider", name="parameters")
    slider.focus()
    root.page.keyboard.press("ArrowRight")
    moved = int(root.get_attribute("data-parameters") or 0)
    assert moved == pytest.approx(7_654_321_000 * 10**0.01, rel=0.02)
    assert slider.get_attribute("aria-valuetext") == format_count(moved)
    root.page.keyboard.press("ArrowLeft")
    assert root.get_attribute("data-parameters") == "7654321000"


def test_the_kernel_may_set_the_settings(show: Show) -> None:
    root = show(memory_bars(7.5e9, 64))
    root.page.evaluate(
        "window.model.set('settings', {...window.model.get('settings'), stage: 3, worldSize: 48})"
    )
    assert device_gb(root) == pytest.approx(16 * 7.5 / 48)
    assert root.get_by_role("slider", name="N ranks").get_attribute("aria-valuetext") == "48"


def test_mouse_and_keyboard_show_a_bars_bytes(show: Show) -> None:
    widget = memory_bars(7.5e9, 64, stage=1)
    root = show(widget)
    scene = widget.scene
    hover(root, scene["left"] + 20, scene["stages_y"] + 1.5 * scene["row"])
    text = "stage 1, each rank's device: parameters 15 GB (15,000,000,000 bytes), 2 bytes × Ψ"
    assert root.locator(".shardlab-detail").inner_text() == text
    press(root, "Home", "ArrowDown", "ArrowRight")
    assert root.locator(".shardlab-detail").inner_text() == text
    assert root.get_attribute("data-selected") == "stage 1:parameters"
    press(root, "ArrowRight", "ArrowRight")
    assert "12 bytes × Ψ/64" in root.locator(".shardlab-detail").inner_text()
    assert float(root.get_attribute("data-selected-bytes") or 0) == 12 * 7.5e9 / 64
    press(root, "ArrowDown", "Enter")
    assert root.get_attribute("data-stage") == "2"
    press(root, "Escape")
    assert root.get_attribute("data-selected") is None


def test_measured_ranks_are_selectable(show: Show) -> None:
    measured = {"parameters": [4e6, 4e6], "activations": [9e6, 8e6]}
    root = show(memory_bars(1e6, 2, precision="fp32", measured=measured))
    assert root.get_attribute("data-measured-ranks") == "2"
    press(root, "Home", *["ArrowDown"] * 5)
    assert root.get_attribute("data-selected") == "rank 1"
    text = root.locator(".shardlab-detail").inner_text()
    assert text.startswith("measured, rank 1: 11.4 MiB")
    assert "activations 7.6 MiB" in text
    assert "rank 1 11.4 MiB" in (root.locator("canvas").get_attribute("aria-label") or "")


def test_the_table_matches_the_picture(show: Show) -> None:
    root = show(memory_bars(7.5e9, 64))
    root.locator("summary").click()
    root.locator("tbody tr").first.wait_for()
    assert root.locator("tbody tr").count() == 5 * 3
    assert root.locator("tbody tr").first.inner_text().split() == [
        *("stage", "0", "parameters", "15.00", "15,000,000,000")
    ]


def test_bars_are_where_python_draws_them(show: Show) -> None:
    """A pixel in the middle of each part has its color."""
    widget = memory_bars(7.5e9, 16, stage=1, capacity_bytes=90e9)
    root = show(widget)
    layout: MemoryBarsLayout = widget._layout
    axis_bytes = layout.axis_bytes(widget.settings)
    (bar,) = [each for each in layout.stage_bars(widget.settings) if each.chosen]
    x = widget.scene["left"]
    for category, size in bar.parts:
        width = size / axis_bytes * (widget.scene["right"] - widget.scene["left"])
        place = [x + min(4, width / 2), bar.y + 6]
        pixel = root.locator("canvas").evaluate(
            """(canvas, [x, y]) => {
                const scale = canvas.width / 800;
                const pen = canvas.getContext("2d");
                return [...pen.getImageData(x * scale, y * scale, 1, 1).data].slice(0, 3);
            }""",
            place,
        )
        color = widget.scene["colors"][category][0]
        assert pixel == [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        x += width


def test_dragging_the_slider_is_smooth(show: Show) -> None:
    """Reports the time of a redraw; only one that is far too slow fails."""
    root = show(memory_bars(7.5e9, 64, measured={"parameters": [1e9] * 64}))
    times = root.evaluate(
        """(root) => {
            const input = root.querySelector("input[type=range]");
            const pen = root.querySelector("canvas").getContext("2d");
            const took = [];
            for (let step = 0; step < 40; step += 1) {
                const began = performance.now();
                input.value = 8 + step / 20;
                input.dispatchEvent(new Event("input", { bubbles: true }));
                pen.getImageData(0, 0, 1, 1);
                took.push(performance.now() - began);
            }
            return took.sort((a, b) => a - b);
        }"""
    )
    median_ms = times[len(times) // 2]
    print(f"\nmemory bars, 64 measured ranks: slider to pixels, median {median_ms:.1f} ms")
    assert median_ms < 20 * 1000 / 60


@pytest.mark.screenshots
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_screenshots(show: Show, artifacts: Path, dark: bool) -> None:
    """Saved as artifacts, for review."""
    measured = {"parameters": [4.1e6] * 4, "gradients": [4.2e6] * 4, "optimizer": [2.1e6] * 4}
    measured |= {"activations": [9e6, 9.1e6, 8e6, 9.3e6]}
    shots = {
        "memory_bars": memory_bars(7.5e9, 64, 1, capacity_bytes=80e9),
        "memory_bars_measured": memory_bars(
            1.02e6, 4, 1, "fp32", capacity_bytes=2**24, measured=measured, unit="GiB"
        ),
        "memory_bars_offload": memory_bars(13e9, 1, 1, offload=True, capacity_bytes=32e9),
    }
    for name, widget in shots.items():
        root = show(widget, dark=dark)
        press(root, "ArrowDown", "ArrowDown", "ArrowRight")
        path = artifacts / f"widget_{name}_{'dark' if dark else 'light'}.png"
        root.page.screenshot(path=path)
        assert path.stat().st_size > 0
