"""The roofline plot: roofs, ridges and points are where the formulas put them."""

from __future__ import annotations

import json
import math
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import traitlets
from playwright.sync_api import expect

from shardlab.display.palette import MEASURED, PREDICTED
from shardlab.estimate.devices import DEVICES
from shardlab.estimate.roofline import Roofline, data_parallel_tokens
from shardlab.estimate.work import Work, data_parallel, product, tensor_parallel
from shardlab.widgets import RooflinePlot, roofline_plot
from shardlab.widgets import roofline_plot_marks as drawing
from shardlab.widgets.roofline_plot_marks import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Axes
from shardlab.widgets.scene import Path, Rect, Text, text_width
from tests.shardlab.widgets.interaction import Show, hover, press

H100, A100 = DEVICES["H100"], DEVICES["A100"]
ROWS = [2**power for power in range(13)]
PRODUCTS = {rows: product(rows, 4096, 4096) for rows in ROWS}
TOKENS = {2**power: data_parallel(70e9, 2**power) for power in range(8, 15)}


def example(**options: Any) -> RooflinePlot:
    given: dict[str, Any] = {"points": [product(4096, 4096, 4096).measured(250e-6)], "at": 64}
    return roofline_plot({"H100": H100, "A100": A100}, moving=PRODUCTS, **given | options)


PICTURES = {
    "one machine": lambda: roofline_plot(H100, [product(1, 4096, 4096)]),
    "two machines": example,
    "a link": lambda: roofline_plot(
        {"NVLink": H100.over("NVLink"), "between nodes": H100.over("node")},
        [tensor_parallel(8192, 28_672, 8)],
        moving=TOKENS,
        slider="tokens per device",
        bytes_of="link",
    ),
    "far apart": lambda: roofline_plot(
        {"here": Roofline(1e10, 1e10), "H100": H100, "other": Roofline(1.1e10, 1e10)}, [PRODUCTS[1]]
    ),
}


def text_of(widget: RooflinePlot) -> str:
    return " ".join(ElementTree.fromstring(widget.static_svg()).itertext())


def test_a_roof_turns_at_its_ridge() -> None:
    axes = Axes.around({"": H100}, [product(1, 4096, 4096)])
    _, (x, y), (end, level) = axes.corners(H100)
    assert x == axes.x(H100.ridge)
    assert y == level == axes.y(989.4e12)
    assert end == RIGHT
    # The slope: ten times the intensity, ten times the operations per second.
    below = H100.attainable_flops_per_s(H100.ridge / 10)
    rise = (axes.y(below) - y) / (x - axes.x(H100.ridge / 10))
    decades = [math.log10(high / low) for low, high in (axes.x_range, axes.y_range)]
    assert rise == pytest.approx((BOTTOM - TOP) / decades[1] / ((RIGHT - LEFT) / decades[0]))


def test_a_point_is_on_each_roof_or_where_it_was_measured() -> None:
    machines = {"H100": H100, "A100": A100}
    works = [PRODUCTS[64], PRODUCTS[64].measured(20e-6)]
    axes = Axes.around(machines, works)
    x = axes.x(works[0].intensity)
    roofs = [axes.y(each.attainable_flops_per_s(works[0].intensity)) for each in (H100, A100)]
    assert drawing.spots(machines, axes, works[0]) == [(x, roofs[0]), (x, roofs[1])]
    attained = axes.y(works[0].flops / 20e-6)
    assert drawing.spots(machines, axes, works[1]) == [(x, attained), (x, roofs[0])]
    fills = [
        [mark.fill for mark in drawing.point(machines, axes, each) if isinstance(mark, Rect)]
        for each in works
    ]
    assert fills[0][:2] == [PREDICTED, PREDICTED]
    assert fills[1][:2] == [PREDICTED, MEASURED]  # what was measured is on top
    # The one that moves is compared with all machines.
    moving = drawing.spots(machines, axes, works[1], moves=True)
    assert moving == [(x, attained), (x, roofs[0]), (x, roofs[1])]


def test_the_ridge_of_a_link_is_the_threshold_of_the_formula() -> None:
    """2,475 tokens in How to Scale Your Model, part 12, which rounds the peak to 990 TFLOP/s."""
    widget = PICTURES["a link"]()
    threshold = data_parallel_tokens(989.4e12, 400e9)
    assert f"between nodes: {threshold:,.0f}" in text_of(widget)
    assert H100.over("node").ridge == threshold == pytest.approx(2475, rel=1e-3)


def test_words_say_what_sets_the_time() -> None:
    widget = roofline_plot(H100, [product(512, 4096, 4096)], moving=PRODUCTS)
    assert widget.describe(product(512, 4096, 4096)) == (
        "[512, 4096] @ [4096, 4096]: 410 FLOP/byte, compute-bound, at least 17.4 µs"
    )
    assert widget.describe(PRODUCTS[64].measured(20e-6)) == (
        "[64, 4096] @ [4096, 4096]: 62.1 FLOP/byte, memory-bound, at least 10.3 µs, "
        "measured 20.0 µs: 52 % of the roof"
    )
    assert "H100: memory-bound, at least 10.3 µs. A100: memory-bound, at least 17.0 µs" in (
        example().describe(PRODUCTS[64])
    )
    assert (
        example()
        .describe(PRODUCTS[64].measured(20e-6), moves=True)
        .endswith(
            "H100: memory-bound, at least 10.3 µs, measured 20.0 µs: 52 % of the roof. "
            "A100: memory-bound, at least 17.0 µs"
        )
    )
    link = roofline_plot(H100.over("node"), moving=TOKENS, bytes_of="link")
    assert link.describe(TOKENS[1024]) == (
        "data parallel, 1,024 tokens per device: 1,024 FLOP/byte, communication-bound, "
        "at least 700 ms (arithmetic 290 ms, traffic 700 ms)"
    )


def test_measured_points_that_the_slider_reaches_are_all_shown() -> None:
    measured = {rows: work.measured(1e-3) for rows, work in PRODUCTS.items()}
    widget = roofline_plot(H100, moving=measured)
    small = [
        each for each in widget.scene["background"]
        if each.get("fill") == MEASURED and each["width"] < 2 * drawing.RADIUS
    ]  # fmt: skip
    assert len(small) == len(ROWS)
    assert "measured" in text_of(widget)
    assert "measured" not in text_of(roofline_plot(H100, moving=PRODUCTS))


@pytest.mark.parametrize("name", PICTURES)
def test_everything_fits_and_no_texts_overlap(name) -> None:
    widget = PICTURES[name]()
    boxes = []
    for mark in [*widget._background, *widget._at.get(widget.settings["at"], [])]:
        if isinstance(mark, Text):
            width = text_width(mark.text, mark.size)
            left = mark.x - {"start": 0, "middle": width / 2, "end": width}[mark.anchor]
            boxes.append((mark.text, left, mark.y - 10, left + width, mark.y + 3))
            assert left >= 0, mark.text
            assert left + width <= WIDTH, mark.text
        elif isinstance(mark, Rect):
            assert 0 <= mark.x < mark.x + mark.width <= WIDTH
    for (one, l1, t1, r1, b1), (other, l2, t2, r2, b2) in combinations(boxes, 2):
        assert not (l1 < r2 and l2 < r1 and t1 < b2 and t2 < b1), (one, other)


def test_roofs_stay_in_the_picture() -> None:
    for make in PICTURES.values():
        for mark in make()._background:
            if isinstance(mark, Path):
                numbers = [float(n) for n in mark.d.replace("M", " ").replace("L", " ").split()]
                assert all(LEFT - 0.1 <= x <= RIGHT + 0.1 for x in numbers[::2])
                assert all(TOP - 0.1 <= y <= BOTTOM + 0.1 for y in numbers[1::2])


@pytest.mark.parametrize(
    ("span", "expected"),
    [((0.5, 200), [1, 10, 100]), ((1, 1000), [1, 10, 100, 1000]), ((2, 5), [])],
)
def test_ticks_are_powers_of_ten(span, expected) -> None:
    assert drawing.decades(span) == expected


def test_many_decades_have_few_ticks() -> None:
    assert len(drawing.decades((1e-3, 1e15))) <= drawing.TICKS


def test_settings_and_the_static_picture() -> None:
    widget = example()
    assert "rows = 64" in text_of(widget)
    assert "[64, 4096] @ [4096, 4096]: 62.1 FLOP/byte" in widget.alternative()
    before = widget.static_svg()
    widget.settings = {"at": 512}
    assert widget.static_svg() != before
    assert "rows = 512" in text_of(widget)
    with pytest.raises(traitlets.TraitError, match="at=3: must be one of 1, 2, 4"):
        widget.settings = {"at": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "at least one machine and one point"),
        ((H100,), "at least one machine and one point"),
    ],
)
def test_nothing_to_draw_raises(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        roofline_plot(*arguments)


def test_impossible_options_raise() -> None:
    with pytest.raises(ValueError, match="bytes_of='disk'"):
        roofline_plot(H100, [PRODUCTS[1]], bytes_of="disk")
    with pytest.raises(ValueError, match="at=3: must be one of"):
        example(at=3)


def test_the_scene_is_plain_data() -> None:
    scene = example().scene
    assert json.loads(json.dumps(scene))["moving"][6]["at"] == 64
    rows = np.array([1, 64])
    from_numpy = roofline_plot(H100, moving={each: PRODUCTS[each] for each in rows}, at=rows[1])
    assert json.loads(json.dumps(from_numpy.scene))["moving"][1]["at"] == 64
    assert json.dumps(from_numpy.settings) == '{"at": 64}'


@pytest.mark.browser
def test_the_slider_moves_the_point_without_a_kernel(show: Show) -> None:
    root = show(example())
    detail, slider = root.locator(".shardlab-detail"), root.get_by_role("slider", name="rows")
    assert "[64, 4096]" in detail.inner_text()
    image = "canvas => canvas.toDataURL()"
    before = root.locator("canvas").evaluate(image)
    slider.press("ArrowRight")
    assert root.get_attribute("data-at") == "128"
    assert float(root.get_attribute("data-intensity") or 0) == PRODUCTS[128].intensity
    assert "[128, 4096] @ [4096, 4096]: 120 FLOP/byte" in detail.inner_text()
    assert root.locator("canvas").evaluate(image) != before
    assert root.page.evaluate("window.model.get('settings')") == {"at": 128}
    box = slider.bounding_box()
    assert box
    root.page.mouse.click(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
    assert root.get_attribute("data-at") == "4096"
    assert "H100: compute-bound" in detail.inner_text()
    root.page.evaluate("window.model.set('settings', {at: 1})")  # the kernel may set it too
    assert root.get_attribute("data-at") == "1"
    assert slider.get_attribute("aria-valuetext") == "1"
    label = root.locator("canvas").get_attribute("aria-label") or ""
    assert "H100: at most 989 TFLOP/s and 3.35 TB/s from memory, ridge at 295" in label
    assert "[1, 4096] @ [4096, 4096]: 1 FLOP/byte" in label


@pytest.mark.browser
def test_mouse_and_keyboard_select_points(show: Show) -> None:
    widget = example()
    root = show(widget)
    detail = root.locator(".shardlab-detail")
    press(root, "ArrowRight")
    assert "measured 250 µs: 56 % of the roof" in detail.inner_text()
    assert root.get_attribute("data-selected") == "[4096, 4096] @ [4096, 4096]"
    press(root, "End")
    assert root.get_attribute("data-selected") == "[64, 4096] @ [4096, 4096]"
    press(root, "ArrowLeft", "ArrowLeft", "ArrowLeft")  # the first one stays
    assert root.get_attribute("data-selected") == "[4096, 4096] @ [4096, 4096]"
    press(root, "Escape")
    assert root.get_attribute("data-selected") is None
    assert "[64, 4096]" in detail.inner_text()
    x, y = widget.scene["points"][0]["spots"][0]
    hover(root, x + 4, y)
    assert root.get_attribute("data-selected") == "[4096, 4096] @ [4096, 4096]"
    hover(root, x, (y + BOTTOM) / 2)
    assert root.get_attribute("data-selected") is None
    root.locator("summary").click()
    expect(root.locator("tbody tr")).to_have_count(1 + len(ROWS))
    assert "250 µs" in root.locator("tbody tr").first.inner_text()


@pytest.mark.browser
def test_without_a_slider(show: Show) -> None:
    root = show(roofline_plot(H100, [Work("a copy", 1e9, 1e9)]))
    expect(root.get_by_role("slider")).to_have_count(0)
    assert root.locator(".shardlab-detail").inner_text() == ""
    press(root, "ArrowLeft")
    assert "a copy: 1 FLOP/byte, memory-bound, at least 299 µs" in root.inner_text()
