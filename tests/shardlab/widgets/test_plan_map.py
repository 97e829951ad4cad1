"""The planner's map: what it shows and where, a layout's mesh and bars, filters and selection."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree

import numpy as np
import pytest
import traitlets
from playwright.sync_api import expect

from shardlab.display.palette import AXES, MEASURED
from shardlab.plan import Cluster, Layout, Plans, plan
from shardlab.plan.known_models import MODELS
from shardlab.plan.layouts import Layouts
from shardlab.plan.published import BLOOM, BLOOM_181B, BLOOM_CLUSTER, MEGATRON_A100
from shardlab.plan.step import step
from shardlab.widgets import PlanMap, plan_map
from shardlab.widgets import plan_map_bars as bars
from shardlab.widgets import plan_map_choice as choice
from shardlab.widgets import plan_map_marks as drawing
from shardlab.widgets.plan_map_mesh import Mesh
from shardlab.widgets.scene import Path, Rect, Text, text_width
from tests.shardlab.widgets.interaction import Show, hover, press

RUNS = [run for run in BLOOM if run.batch == 2048]


@cache
def bloom() -> Plans:
    return plan(BLOOM_181B, BLOOM_CLUSTER, 2048, constants=MEGATRON_A100)


def example() -> PlanMap:
    return plan_map(bloom(), RUNS)


def few() -> PlanMap:
    """Three layouts: the first two are the frontier; the last does not fit."""
    layouts = [
        Layout(data=8, tensor=4, pipeline=12, micro_batch=2, recompute="full"),
        Layout(data=8, tensor=4, pipeline=12, micro_batch=1, sequence_parallel=True),
        Layout(data=32, tensor=4, pipeline=3, micro_batch=1),
    ]
    return plan_map(plan(BLOOM_181B, BLOOM_CLUSTER, 2048, Layouts.of(layouts)), RUNS[:1])


def text_of(widget: PlanMap) -> str:
    return " ".join(ElementTree.fromstring(widget.static_svg()).itertext())


def test_the_frontier_is_what_nothing_beats() -> None:
    memory, seconds = np.array([3.0, 1, 2, 2, 4, 5]), np.array([3.0, 9, 5, 4, 3, 1])
    assert choice.frontier(memory, seconds).tolist() == [1, 3, 0, 5]
    plans = bloom()
    found = choice.frontier(plans.total_bytes, plans.step.seconds)
    for at in found:
        beaten = (plans.total_bytes <= plans.total_bytes[at]) & (
            plans.step.seconds < plans.step.seconds[at]
        )
        assert not beaten.any()
    assert choice.frontier(np.array([]), np.array([])).tolist() == []


def test_of_many_layouts_few_are_shown_but_no_frontier_is_lost() -> None:
    plans, measured = bloom(), choice.measured_layouts(bloom(), RUNS)
    kept = choice.thinned(plans, measured)
    assert len(kept) == len(set(kept)) <= choice.MOST_LAYOUTS < len(plans)
    assert set(measured) <= set(kept)
    assert choice.fastest(plans) in kept
    near = plans.total_bytes <= choice.MOST_MEMORY * plans.cluster.capacity_bytes
    near &= plans.step.seconds <= choice.MOST_TIME * plans.step.seconds[choice.fastest(plans)]
    for field in choice.FILTERS.values():
        column = vars(plans.layouts)[field]
        for value in np.unique(column):
            some = np.flatnonzero((column == value) & near)
            ends = some[choice.frontier(plans.total_bytes[some], plans.step.seconds[some])]
            assert set(ends.tolist()) <= set(kept), (field, value)
    # Of each mesh the fastest that fits.
    layouts = plans.layouts
    meshes = np.stack([layouts.tensor, layouts.pipeline, layouts.context])[:, near & plans.fits]
    shown = {(each.tensor, each.pipeline, each.context) for each in map(layouts.__getitem__, kept)}
    assert shown >= {tuple(each) for each in meshes.T.tolist()}


def test_the_small_print_counts_what_is_shown() -> None:
    widget = example()
    assert f"Shown: {len(widget.shown):,} of {len(bloom()):,} legal layouts" in text_of(widget)
    assert "Dashed: 92 % of 80 GB" in text_of(widget)
    assert "All 3 legal layouts are shown." in few().scene["small"]


def test_places_are_those_of_memory_and_seconds() -> None:
    widget, plans = few(), few().plans
    assert [item["fits"] for item in widget.scene["items"]] == [True, True, False]
    for each, item in zip(widget.shown, widget.scene["items"], strict=True):
        assert item["x"] == pytest.approx(widget.axes.x(each.total_bytes), abs=0.05)
        assert item["y"] == pytest.approx(widget.axes.y(each.step_s), abs=0.05)
        assert (item["x"] > widget.axes.x(widget.limit)) == (not item["fits"])
    assert widget.limit == pytest.approx(0.92 * plans.cluster.capacity_bytes)
    axes = drawing.Axes((1e9, 1e11), (1, 100))
    assert axes.x(1e10) == (drawing.LEFT + drawing.RIGHT) / 2
    assert axes.y(10) == (drawing.TOP + drawing.BOTTOM) / 2


def test_a_published_run_is_where_it_was_measured() -> None:
    widget = few()
    (item,) = [each for each in widget.scene["items"] if "measured" in each]
    assert item["measured"] == pytest.approx(widget.axes.y(RUNS[0].seconds), abs=0.05)
    assert "measured 110 s; planned" in item["text"]
    error = item["seconds"] / RUNS[0].seconds - 1
    assert f"{abs(error) * 100:.1f} % {'more' if error > 0 else 'less'}" in item["text"]
    diamonds = [mark for mark in widget.marks() if isinstance(mark, Path) and mark.fill == MEASURED]
    assert len(diamonds) == 2  # one in the legend
    assert item["row"][-1] == "110 s"


def test_runs_of_something_else_raise() -> None:
    with pytest.raises(ValueError, match="its batch is not the plan's"):
        plan_map(bloom(), [run for run in BLOOM if run.batch == 2016])
    with pytest.raises(ValueError, match="its model is not the plan's"):
        plan_map(bloom(), [replace(RUNS[0], model=MODELS["llama-3-8b"])])
    other = replace(RUNS[0], layout=replace(RUNS[0].layout, micro_batch=64))
    with pytest.raises(ValueError, match="its layout is not one of the plan's"):
        plan_map(bloom(), [other])


def test_a_plan_without_layouts_raises() -> None:
    nothing = bloom().layouts.where(np.zeros(len(bloom()), bool))
    with pytest.raises(ValueError, match="no legal layout"):
        plan_map(plan(BLOOM_181B, BLOOM_CLUSTER, 2048, nothing))


def test_the_bars_have_all_of_a_step_and_of_memory() -> None:
    """Also parts that shardlab.plan may add: none is left out."""
    plans = bloom()
    drawn = [part for parts, _ in bars.STEP.values() for part in parts]
    expert = replace(MODELS["llama-3-8b"], experts=8, experts_per_token=2)
    layout = Layout(data=8, expert=8)
    assert sorted(drawn) == sorted(step(expert, Cluster.of("H100", 8), 8, layout).parts)
    stored = [part for parts, _ in bars.STORED.values() for part in parts]
    assert sorted(stored) == sorted(plans.memory_bytes)
    for each, item in zip(few().shown, few().scene["items"], strict=True):
        for bar, whole, compared in zip(
            few().bars, (each.step_s, each.total_bytes), item["bars"], strict=True
        ):
            width = bars.WIDTH * whole / max(whole, bar.compare[1])
            assert sum(part[1] for part in compared["parts"]) == pytest.approx(width, abs=0.5)
            assert compared["line"] == pytest.approx(
                bars.WIDTH * bar.compare[1] / max(whole, bar.compare[1]), abs=0.05
            )


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        (Mesh(1, 1, 1, 1, 8), ["A replica is one device.", "All are in one node."]),
        (Mesh(8, 1, 1, 1, 8), ["A replica is one device.", "All are in one node."]),
        (Mesh(8, 4, 12, 1, 8), ["A replica is 48 devices.", "A node: this stage of 2 replicas."]),
        (Mesh(32, 1, 1, 2, 8), ["A replica is 2 devices.", "A node: 4 replicas."]),
        (Mesh(2, 8, 2, 16, 8), ["A replica is 256 devices.", "Dashed: nodes."]),
        (Mesh(2, 1, 2, 64, 32), ["A replica is 128 devices.", "A row: 2 nodes."]),
        (Mesh(2, 2, 4, 1, 8), ["A replica is 8 devices.", "A node: 2 stages of all replicas."]),
        (Mesh(3, 3, 12, 1, 8), ["A replica is 36 devices."]),
    ],
)
def test_words_about_a_mesh(mesh, words) -> None:
    assert mesh.words() == words


def test_borders_of_nodes_are_drawn_where_words_say_so() -> None:
    for degrees in [(2, 8, 2, 16), (2, 4, 3, 4), (2, 4, 12, 1), (8, 1, 1, 1), (2, 1, 2, 64)]:
        for per_node in (4, 6, 8, 32):
            mesh = Mesh(*degrees, per_node)
            dashed = [mark for mark in mesh.marks(0, 0) if mark.dash]
            assert bool(dashed) == ("Dashed: nodes." in mesh.words()), mesh


def test_a_mesh_has_its_axes_colors_and_fits() -> None:
    for degrees in [(4, 8, 64, 1024), (1, 1, 1, 64), (64, 1, 1, 1), (2, 8, 1, 1), (2, 1, 12, 3)]:
        mesh = Mesh(*degrees, per_node=8)
        marks = mesh.marks(0, 0)
        fills = {mark.fill for mark in marks} | {mark.stroke for mark in marks}
        for name, degree in zip(("data", "tensor", "pipeline", "context"), degrees, strict=True):
            assert (AXES[name] in fills) == (degree > 1), (degrees, name)
        for mark in marks:
            if isinstance(mark, Rect):
                assert mark.x >= 0
                assert mark.x + mark.width <= 214
            elif isinstance(mark, Text):
                assert mark.x + text_width(mark.text, mark.size) <= 214, mark.text
                assert mark.y <= 260


def test_experts_are_an_axis() -> None:
    model = replace(MODELS["llama-3-8b"], experts=8, experts_per_token=2)
    widget = plan_map(plan(model, Cluster.of("H100", 16), 64))
    for each, item in zip(widget.shown, widget.scene["items"], strict=True):
        words = [mark.get("text") for mark in widget.scene["meshes"][item["mesh"]]]
        assert (f"expert {each.layout.expert}" in words) == (each.layout.expert > 1)


def test_no_text_of_the_legends_is_wider_than_its_place() -> None:
    for name in (*bars.STEP, *bars.STORED):
        assert text_width(f"{name} 88.8 ms", 11) + 15 <= bars.SLOT, name


def test_ticks_are_round_and_few() -> None:
    assert drawing.ticks((4.9, 13)) == [5, 7, 10]
    assert drawing.ticks((4e9, 3e11)) == [5e9, 10e9, 20e9, 50e9, 100e9, 200e9]
    assert len(drawing.ticks((1e-3, 1e3))) <= 7


def test_settings_filter_and_select() -> None:
    widget = example()
    best = widget.shown[widget.selected() or 0]
    assert str(best.layout) == str(bloom().best(1)[0].layout)
    before = widget.static_svg()
    widget.settings = {"tensor": "8", "recompute": "full"}
    found = widget.selected()
    assert found is not None
    assert widget.shown[found].layout.tensor == 8
    assert all(each["filters"][0] == "8" for each in widget.items())
    assert widget.static_svg() != before
    assert "tensor 8, recompute full" in text_of(widget)
    assert str(widget.shown[found].layout) in widget.alternative()
    other = widget.items()[0]["name"]
    widget.settings = {"layout": other}
    assert f"{other}: " in widget.alternative()
    with pytest.raises(traitlets.TraitError, match="tensor=3: must be one of those shown"):
        widget.settings = {"tensor": 3}
    with pytest.raises(traitlets.TraitError, match="expert: expected one of tensor"):
        widget.settings = {"expert": "2"}


def test_filters_that_nothing_passes() -> None:
    widget = few()
    widget.settings = {"pipeline": "3", "recompute": "full"}
    assert widget.selected() is None
    assert widget.alternative().endswith("No layout has these settings.")
    assert "tensor 4" not in text_of(widget)


def test_where_nothing_fits_the_least_memory_is_selected_first() -> None:
    small = replace(BLOOM_CLUSTER, capacity_bytes=1e9)
    widget = plan_map(plan(BLOOM_181B, small, 2048))
    assert widget.bars[0].compare[0] == "least memory"
    assert "0 of 7,227 layouts" in widget.summary()


def test_the_scene_is_plain_and_small() -> None:
    assert len(json.dumps(example().scene)) < 1e6


@pytest.mark.browser
def test_it_draws_the_same_as_the_static_picture(show: Show) -> None:
    widget = example()
    root = show(widget)
    expect(root).to_have_attribute("data-drawn", str(len(widget.marks())))
    widget = example()
    widget.settings = {"pipeline": "24", "tensor": "2"}
    root = show(widget)
    expect(root).to_have_attribute("data-drawn", str(len(widget.marks())))
    assert root.get_attribute("data-shown") == str(len(widget.items()))


@pytest.mark.browser
def test_filters_select_in_the_browser(show: Show) -> None:
    widget = example()
    root = show(widget)
    first = root.get_attribute("data-selected")
    assert first == str(bloom().best(1)[0].layout)
    root.get_by_role("radiogroup", name="tensor").get_by_role("radio", name="8").check()
    assert root.page.evaluate("window.model.get('settings').tensor") == "8"
    widget.settings = {"tensor": "8"}
    assert root.get_attribute("data-shown") == str(len(widget.items()))
    assert root.get_attribute("data-selected") == str(widget.shown[widget.selected() or 0].layout)
    assert "TP 8" in (root.locator(".shardlab-detail").text_content() or "")
    root.locator("summary").click()
    expect(root.locator("tbody tr")).to_have_count(len(widget.items()))
    anything = "window.model.set('settings', {...window.model.get('settings'), tensor: 'any'})"
    root.page.evaluate(anything)  # the kernel may set it too
    assert root.get_attribute("data-selected") == first


@pytest.mark.browser
def test_click_and_keyboard_select_layouts(show: Show) -> None:
    widget = few()
    root = show(widget)
    detail = root.locator(".shardlab-detail")
    items = widget.scene["items"]
    names = [each["name"] for each in items]
    fastest = root.get_attribute("data-selected")
    press(root, "ArrowLeft", "ArrowLeft")
    assert root.get_attribute("data-selected") == names[0]
    root.locator("canvas").click(position={"x": items[2]["x"] + 2, "y": items[2]["y"]})
    assert root.get_attribute("data-selected") == names[2]
    assert "does not fit" in detail.inner_text()
    assert root.page.evaluate("window.model.get('settings').layout") == names[2]
    hover(root, items[0]["x"], items[0]["measured"])
    assert "measured 110 s" in detail.inner_text()
    assert root.get_attribute("data-selected") == names[2]  # only looked at
    hover(root, 600, 200)
    assert "does not fit" in detail.inner_text()
    press(root, "p")
    assert root.get_attribute("data-selected") == names[0]
    by_time = [each["name"] for each in sorted(items, key=lambda each: each["seconds"])]
    press(root, *["ArrowUp"] * 3)
    assert root.get_attribute("data-selected") == by_time[-1]
    press(root, "ArrowDown")
    assert root.get_attribute("data-selected") == by_time[-2]
    press(root, "End")
    assert root.get_attribute("data-selected") == names[0]
    press(root, "Escape")
    assert root.get_attribute("data-selected") == fastest


@pytest.mark.browser
def test_filters_that_nothing_passes_in_the_browser(show: Show) -> None:
    widget = few()
    widget.settings = {"pipeline": "3", "recompute": "full"}
    root = show(widget)
    assert root.get_attribute("data-shown") == "0"
    press(root, "ArrowLeft", "ArrowRight", "ArrowUp", "p", "Home")
    assert root.get_attribute("data-selected") is None
    assert root.locator("canvas").get_attribute("aria-label").endswith("has these settings.")
