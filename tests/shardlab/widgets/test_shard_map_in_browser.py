"""The shard map in Chromium: controls, selection, 1024 ranks, and the formula in JavaScript."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator

from shardlab import models, shards
from shardlab.shards import BUFFERS
from shardlab.shards.formula import element_bytes
from shardlab.widgets import shard_map
from shardlab.widgets.picture import asset
from shardlab.widgets.shard_map import LEFT, RIGHT, Geometry, color_of
from tests.shardlab.widgets.interaction import Show, hover, press

pytestmark = pytest.mark.browser

SMALL = {"w": 8, "b": 3, "v": 8}
FAR_TOO_SLOW_MS = 20 * 1000 / 60


def test_the_formula_is_the_same_in_python_and_javascript(browser: Browser) -> None:
    draw = random.Random(7)
    given, expected = [], []
    for _ in range(80):
        shapes = [
            [draw.randint(1, 9) for _ in range(draw.randint(1, 3))]
            for _ in range(draw.randint(1, 7))
        ]
        stage, world_size = draw.randint(0, 3), draw.randint(1, 12)
        options = {
            "cut": draw.choice([None, "flat", "tensor", "rows"]),
            "alignment": draw.choice([1, 2, 8]),
            "precision": draw.choice(["fp32", "bf16"]),
            "optimizer": draw.choice(["sgd", "adam", "adam8bit"]),
        }
        named = {str(index): shape for index, shape in enumerate(shapes)}
        layout = shards.flat(named, world_size, stage=stage, **options)
        sizes = element_bytes(options["precision"], options["optimizer"])
        given.append([{**options, "shapes": shapes, "element_bytes": sizes}, stage, world_size])
        expected.append(layout)
    page = browser.new_page()
    from_js = page.evaluate(
        f"""(given) => {{
            {asset("shard_formula.js")}
            return given.map(([recipe, stage, worldSize]) => {{
                const {{ length, segments }} = flatLayout(recipe, stage, worldSize);
                return [length, BUFFERS.map((buffer) => {{
                    const {{ count, at, numel, tensor, start, rank, bytes }} = segments[buffer];
                    return Array.from({{ length: count }}, (_, i) =>
                        [at[i], numel[i], tensor[i], start[i], rank[i], bytes[i]]);
                }})];
            }});
        }}""",
        given,
    )
    page.close()
    for layout, (length, buffers) in zip(expected, from_js, strict=True):
        assert length == layout.length
        for buffer, segments in zip(BUFFERS, buffers, strict=True):
            assert [tuple(part) for part in segments] == [
                pytest.approx(tuple(part)) for part in layout.segments[buffer]
            ]


def test_mouse_and_keyboard_show_a_pieces_details(show: Show) -> None:
    widget = shard_map(shards.flat(SMALL, 4, stage=1))
    root = show(widget)
    geometry = Geometry(widget.layout_shown, widget._panel)
    y = geometry.top("optimizer") + 1.5 * geometry.row
    hover(root, geometry.x(9), y)
    text = "rank 1 · optimizer · b · elements 0 to 2 of 3 · 24 bytes"
    assert root.locator(".shardlab-detail").inner_text() == text
    hover(root, geometry.x(1), y)
    assert "rank 1 · optimizer · nothing here" in root.inner_text()
    press(root, "Escape", "PageDown", "PageDown", "PageDown", "ArrowDown", "ArrowRight")
    assert root.locator(".shardlab-detail").inner_text() == text
    assert root.get_attribute("data-selected") == "optimizer:1:b"
    assert root.get_attribute("data-selected-stop") == "2"
    assert root.get_attribute("data-selected-bytes") == "24"
    press(root, "End", "ArrowRight", "ArrowRight")
    assert "padding: 1 element · 12 bytes" in root.locator(".shardlab-detail").inner_text()
    press(root, "PageUp", "ArrowLeft")
    assert "rank 3, like every rank · gradients" in root.locator(".shardlab-detail").inner_text()


def test_stage_and_ranks_change_without_the_kernel(show: Show) -> None:
    root = show(shard_map(SMALL, world_size=4, stage=0))
    assert root.get_attribute("data-optimizer-bytes") == str(19 * 12)
    assert "every rank holds everything" in root.inner_text()
    root.get_by_role("radiogroup", name="ZeRO stage").get_by_label("3").check()
    assert root.get_attribute("data-stage") == "3"
    assert root.get_attribute("data-parameters-bytes") == "10"
    assert "each tensor flattened" in root.inner_text()
    root.get_by_role("slider", name="N ranks").fill("1")
    assert root.get_attribute("data-world-size") == "2"
    settings = root.page.evaluate("window.model.get('settings')")
    assert settings == {"view": "", "stage": 3, "worldSize": 2}
    root.page.evaluate("window.model.set('settings', {view: '', stage: 1, worldSize: 6})")
    assert root.get_attribute("data-world-size") == "6"
    assert "6 ranks" in (root.locator("canvas").get_attribute("aria-label") or "")


def reports() -> list[dict]:
    report = {"world_size": 2, "stage": 1, "source": "by <b>hand</b>", "tensors": [["w", 4]]}
    held = [
        {"parameters": [(0, 4, 0, 0, 16)], "gradients": [], "optimizer": [(2 * r, 2, 0, 2 * r, 8)]}
        for r in range(2)
    ]
    return [report | {"rank": r, "length": 4, "held": held[r]} for r in range(2)]


def test_layouts_of_a_run_can_be_chosen(show: Show) -> None:
    root = show(shard_map({"live": reports(), "formula": shards.flat(SMALL, 4, stage=2)}))
    assert root.get_attribute("data-source") == "by <b>hand</b>"
    assert "Read from a run: by <b>hand</b>." in root.inner_text()
    assert root.get_by_role("radiogroup", name="ZeRO stage").is_hidden()
    root.get_by_role("radiogroup", name="layout").get_by_label("formula").check()
    assert root.get_attribute("data-source") == "formula"
    assert root.get_attribute("data-world-size") == "4"
    assert root.get_by_role("radiogroup", name="ZeRO stage").is_visible()


def test_the_table_matches_the_picture(show: Show) -> None:
    root = show(shard_map(models.gpt("0.1M"), world_size=64, stage=3))
    root.locator("summary").click()
    root.locator("tbody tr").first.wait_for()
    assert root.locator("tbody tr").count() == 500
    assert root.locator("tbody tr").first.inner_text().split("\t") == [
        *("parameters", "0", "token.weight", "0", "256", "512")
    ]
    total = int(root.get_attribute("data-segments") or 0)
    assert f"The first 500 of {total} rows." in root.inner_text()


def pixel_row(root: Locator, y: float) -> list[list[int]]:
    """The colors of one line of the canvas, one for each of the scene's columns."""
    return root.locator("canvas").evaluate(
        """(canvas, y) => {
            const pen = canvas.getContext("2d");
            const { data, width } = pen.getImageData(0, Math.floor(y), canvas.width, 1);
            return Array.from({ length: width }, (_, x) => [...data.slice(4 * x, 4 * x + 3)]);
        }""",
        y,
    )


@pytest.mark.parametrize("stage", [1, 3])
def test_1024_ranks_have_the_right_pixels(show: Show, stage: int) -> None:
    """A pixel covered by pieces has the color of one of them; far from any, the background's."""
    widget = shard_map(models.gpt("0.3M"), world_size=1024, stage=stage)
    root = show(widget)
    assert root.locator("canvas").evaluate("canvas => canvas.width") == widget.scene["width"]
    geometry = Geometry(widget.layout_shown, widget._panel)
    rgb = {
        tensor: [int(color_of(tensor)[i : i + 2], 16) for i in (1, 3, 5)]
        for tensor in range(len(widget.layout_shown.tensors))
    }
    line = pixel_row(root, geometry.top("optimizer") + 1)
    background = max(line[int(LEFT) : int(RIGHT)], key=line.count)  # most pixels
    seen = {"piece": 0, "background": 0}
    for buffer in BUFFERS:
        for row, spans in list(enumerate(geometry.all_spans(buffer)))[::13]:
            line = pixel_row(root, geometry.top(buffer) + (row + 0.5) * geometry.row)
            boxes = [(*geometry.box(start, stop), tensor) for start, stop, tensor in spans]
            for x in range(int(LEFT) + 1, int(RIGHT) - 1):
                near = [t for x0, x1, t in boxes if x0 < x + 2 and x1 > x - 1]
                covers = [t for x0, x1, t in boxes if x0 <= x and x1 >= x + 1]
                if -1 in near:
                    continue  # padding is striped
                if not near:
                    seen["background"] += 1
                    assert line[x] == background, (buffer, row, x)
                elif covers and len(set(near)) == len(set(covers)):
                    seen["piece"] += 1
                    assert line[x] in [rgb[tensor] for tensor in covers], (buffer, row, x)
    assert seen["piece"] > 100
    assert seen["background"] > 1000


def test_1024_ranks_stay_smooth(show: Show) -> None:
    """Reports the times; only what is far too slow fails."""
    root = show(shard_map(models.gpt("1M"), world_size=1024, stage=3))
    assert int(root.get_attribute("data-segments") or 0) > 150_000
    took = root.evaluate(
        """(root) => {
            const plot = root.querySelector(".shardlab-plot");
            const canvas = root.querySelector("canvas");
            const pen = canvas.getContext("2d");
            const box = canvas.getBoundingClientRect();
            const timed = (act) => {
                const began = performance.now();
                act();
                pen.getImageData(0, 0, 1, 1); // waits for the pixels
                return performance.now() - began;
            };
            const median = (times) => times.sort((a, b) => a - b)[times.length >> 1];
            const key = (name) => () =>
                plot.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
            const point = (step) => () => plot.dispatchEvent(new PointerEvent("pointermove", {
                clientX: box.left + 80 + 20 * step, clientY: box.top + 40 + 15 * step,
                bubbles: true,
            }));
            const stages = [...root.querySelectorAll("[aria-label='ZeRO stage'] input")];
            const many = (make, count) =>
                median(Array.from({ length: count }, (_, i) => timed(make(i))));
            return {
                key_ms: many((i) => key(i % 2 ? "ArrowDown" : "ArrowRight"), 30),
                pointer_ms: many(point, 30),
                stage_ms: many((i) => () => stages[i % 4].click(), 8),
            };
        }"""
    )
    print(
        f"\nshard map of 1024 ranks, 52 tensors: key {took['key_ms']:.1f} ms, pointer "
        f"{took['pointer_ms']:.1f} ms, another stage {took['stage_ms']:.1f} ms (medians)"
    )
    assert max(took["key_ms"], took["pointer_ms"]) < FAR_TOO_SLOW_MS
    assert took["stage_ms"] < 5 * FAR_TOO_SLOW_MS


@pytest.mark.parametrize("draw", ["memory_bars", "shard_map"])
def test_widgets_follow_the_theme_and_stop_when_removed(show: Show, draw: str) -> None:
    from shardlab.widgets import memory_bars

    widget = memory_bars() if draw == "memory_bars" else shard_map(SMALL, world_size=4, stage=2)
    root = show(widget)
    page = root.page
    light = root.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    page.evaluate(
        """() => {
            document.documentElement.style.setProperty("--jp-content-font-color1", "#ffffff");
            document.documentElement.style.setProperty("--jp-layout-color0", "#111111");
            document.body.dataset.jpThemeLight = "false";
        }"""
    )
    page.wait_for_function(
        "light => document.querySelector('canvas').toDataURL() !== light", arg=light
    )
    page.evaluate("window.cleanUp()")
    before = root.evaluate("node => ({...node.dataset})")
    press(root, "ArrowRight", "ArrowDown", "End")
    assert root.evaluate("node => ({...node.dataset})") == before
    assert page.evaluate("window.model.listening()") == 0


@pytest.mark.screenshots
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_screenshots(show: Show, artifacts: Path, dark: bool) -> None:
    """Saved as artifacts, for review."""
    shots = {
        "small": shard_map(SMALL, world_size=4, stage=1),
        "gpt_stage_2": shard_map(models.gpt("1M"), world_size=4, stage=2),
        "1024_stage_3": shard_map(models.gpt("0.3M"), world_size=1024, stage=3),
        "live": shard_map(reports()),
    }
    for name, widget in shots.items():
        root = show(widget, dark=dark)
        press(root, "ArrowDown", "PageDown", "ArrowRight")
        path = artifacts / f"widget_shard_map_{name}_{'dark' if dark else 'light'}.png"
        root.page.screenshot(path=path)
        assert path.stat().st_size > 0
