"""The tensor split: parts and traffic, and that Python and JavaScript draw the same."""

from __future__ import annotations

import random
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import traitlets
from playwright.sync_api import Browser, expect

from shardlab.estimate.model_traffic import tensor_parallel_layer
from shardlab.run import MeasuredBlock, Run, Traffic
from shardlab.widgets import tensor_split
from shardlab.widgets.picture import asset
from shardlab.widgets.scene import as_json
from shardlab.widgets.tensor_split_marks import bars_of, boxes_of, marks_of, part_box
from shardlab.widgets.tensor_split_model import CUTS, pass_bytes, weight_bytes
from tests.shardlab.widgets.interaction import Show, hover, press, stop_the_clock

GIVEN = tensor_split().settings


@pytest.mark.parametrize("gloo", [False, True])
@pytest.mark.parametrize("cut", ["mlp", "sequence"])
def test_bytes_match_half_a_transformer_layer(cut: str, gloo: bool) -> None:
    """The MLP is one of a layer's two halves; attention has the same traffic."""
    settings = GIVEN | {"cut": cut, "tokens": 2048, "width": 12288, "ranks": 8, "gloo": gloo}
    layer = tensor_parallel_layer(
        2048, 12288, 8, element_bytes=4, sequence_parallel=cut == "sequence",
        reduce_scatter="gloo" if gloo else "ring",
    )  # fmt: skip
    expected = layer.forward_bytes / 2, layer.backward_bytes / 2
    assert pass_bytes(settings) == pytest.approx(expected)
    assert weight_bytes(settings) == 2 * 4 * 12288**2 * 4


@pytest.mark.parametrize("cut", CUTS)
def test_collectives_turn_parts_into_complete_matrices(cut: str) -> None:
    """Only sharded matrices are gathered, only partial sums are added up."""
    steps = CUTS[cut].steps
    for index, step in enumerate(steps):
        if not step.op:
            continue
        ((name, layout),) = step.layouts.items()
        before = CUTS[cut].layouts_after(index - 1).get(name)
        if step.op == "all_gather":
            assert (before, layout) in [
                ("columns", "replicated"),
                ("rows", "replicated"),
                (None, "replicated"),
            ]
        else:
            assert before == "partial"
            assert layout == {"all_reduce": "replicated", "reduce_scatter": "rows"}[step.op]
    last = CUTS[cut].layouts_after(len(steps) - 1)
    assert set(last) == set(boxes_of(CUTS[cut]))
    assert "partial" not in last.values()
    for name in set(CUTS[cut].matrices) & set("WAB"):
        assert last[f"d{name}"] == last[name]  # a gradient is where its weights are


@pytest.mark.parametrize("layout", ["columns", "rows"])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_parts_tile_the_matrix(layout: str, n: int) -> None:
    parts = [part_box(10, 20, 120, 60, layout, rank, n) for rank in range(n)]
    assert sum(width * height for _, _, width, height in parts) == pytest.approx(120 * 60)
    assert parts[0][:2] == (10, 20)
    x, y, width, height = parts[-1]
    assert (x + width, y + height) == pytest.approx((130, 80))


@pytest.mark.parametrize("n", [1, 2, 8, 16])
def test_partial_sums_stay_within_the_matrix(n: int) -> None:
    for rank in range(n):
        x, y, width, height = part_box(0, 0, 76, 110, "partial", rank, n)
        assert min(x, y) >= 0
        assert x + width <= 76 + 1e-9
        assert y + height <= 110 + 1e-9
        assert min(width, height) > 50


def make_run(forward: int, backward: int) -> Run:
    blocks = tuple(
        MeasuredBlock(label, rank, 0, 1, (0, sent) if rank == 0 else (sent, 0))
        for label, sent in (("forward", forward), ("backward", backward))
        for rank in range(2)
    )
    traffic = Traffic(np.zeros((2, 2), dtype=np.int64), "by hand", blocks)
    return Run(2, "cpu", "", [None] * 2, [""] * 2, [""] * 2, traffic, [], 0.1, 0.2)


def test_measured_bytes_are_shown_only_with_the_settings_of_the_run() -> None:
    widget = tensor_split(world_size=2, measured=make_run(1000, 3000))
    assert widget.measured == (1000, 3000)
    assert "measured 2.9 KiB" in widget.static_svg()
    widget.settings = {"step": 3}
    assert widget.measured
    widget.settings = {"tokens": 1024}
    assert widget.measured is None
    assert "measured" not in widget.static_svg()
    bare = Traffic(np.zeros((2, 2), dtype=np.int64), "by hand", ())
    with pytest.raises(ValueError, match='measure\\("forward"\\)'):
        tensor_split(measured=Run(2, "cpu", "", [], [], [], bare, [], 0, 0))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("n", [1, 4, 16])
def test_the_static_picture_shows_all_collectives(cut: str, n: int) -> None:
    widget = tensor_split(cut, world_size=n)
    svg = widget.static_svg()
    ElementTree.fromstring(svg)
    for step in CUTS[cut].steps:
        if step.op:
            assert step.op.replace("_", "-") in svg
    assert CUTS[cut].title in widget.summary()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cut": "diagonal"}, "cut='diagonal': must be one of columns"),
        ({"world_size": 17}, "1 to 16"),
        ({"tokens": 0}, "1 or more"),
        ({"reduce_scatter": "nccl"}, "one of ring, gloo"),
    ],
)
def test_invalid_arguments_raise(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tensor_split(**arguments)


def test_settings_are_checked() -> None:
    widget = tensor_split()
    with pytest.raises(traitlets.TraitError, match="step=9: must be 0 to 6"):
        widget.settings = {"step": 9}
    widget.settings = {"ranks": 2, "step": 6}
    assert widget.settings["width"] == 96


# ---- in a browser ----


@pytest.mark.browser
def test_python_and_javascript_draw_the_same(browser: Browser) -> None:
    draw = random.Random(5)
    cases = []
    for _ in range(40):
        cut = draw.choice(list(CUTS))
        cases.append(
            GIVEN
            | {
                "cut": cut,
                "step": draw.randrange(len(CUTS[cut].steps)),
                "ranks": draw.randint(1, 16),
                "tokens": draw.randint(1, 9000),
                "width": draw.randint(1, 9000),
                "element_bytes": draw.choice([2, 4]),
                "gloo": draw.random() < 0.5,
            }
        )
    page = browser.new_page()
    from_js = page.evaluate(
        f"""([scene, cases]) => {{
            {asset("units.js")}
            {asset("tensor_split_marks.js")}
            return cases.map((each) => [
                ...splitMarks(scene, each), ...splitBars(scene, each, [5e5, 1e6]),
            ]);
        }}""",
        [tensor_split().scene, cases],
    )
    page.close()
    for settings, theirs in zip(cases, from_js, strict=True):
        ours = as_json([*marks_of(settings), *bars_of(settings, (5e5, 1e6))])
        assert [set(mark) for mark in ours] == [
            {key for key, value in mark.items() if (key, value) != ("size", 12)} for mark in theirs
        ]
        for mine, their in zip(ours, theirs, strict=True):
            for key, value in mine.items():
                close = isinstance(value, float)
                assert their[key] == (pytest.approx(value, abs=0.006) if close else value)


@pytest.mark.browser
def test_keys_and_buttons_step_and_play(show: Show) -> None:
    root = show(tensor_split())
    press(root, "ArrowRight", "ArrowRight", "ArrowRight")
    assert root.get_attribute("data-step") == "3"
    assert root.get_attribute("data-op") == "all_reduce"
    assert root.get_attribute("data-step-bytes") == str(2 * 3 * 512 * 96)
    assert "One all-reduce adds up the partial sums." in root.inner_text()
    root.get_by_role("button", name="To the end").click()
    assert root.get_attribute("data-step") == "6"
    assert root.get_by_role("button", name="One step forward").is_disabled()
    stop_the_clock(root)
    press(root, "Home", " ")
    assert root.get_attribute("data-playing") == "true"
    root.page.clock.run_for(2_000)
    assert root.get_attribute("data-step") == "1"
    press(root, " ")
    assert root.get_attribute("data-playing") == "false"
    assert root.page.evaluate("window.model.get('settings').cut") == "mlp"


@pytest.mark.browser
def test_controls_change_the_picture_immediately(show: Show) -> None:
    root = show(tensor_split(world_size=2, measured=make_run(1000, 3000)))
    assert root.get_attribute("data-measured") == "true"
    root.get_by_role("radio", name="with sequence parallelism").check()
    assert root.get_attribute("data-steps") == "9"
    assert root.get_attribute("data-measured") == "false"
    root.get_by_role("slider", name="Ranks").focus()
    root.page.keyboard.press("End")
    assert root.get_attribute("data-ranks") == "8"
    assert root.get_attribute("data-forward-bytes") == str(2 * 7 * 512 * 96 * 4 // 8)
    root.page.evaluate("window.model.set('settings', {...window.model.get('settings'), width: 32})")
    assert root.get_attribute("data-width") == "32"
    root.locator("summary").click()
    expect(root.locator("tbody tr")).to_have_count(9)


@pytest.mark.browser
def test_mouse_and_keyboard_show_a_parts_details(show: Show) -> None:
    root = show(tensor_split())
    detail = root.locator(".shardlab-detail")
    x, y, width, height = boxes_of(CUTS["mlp"])["W₁"]
    hover(root, x + 0.6 * width, y + height / 2)
    text = "rank 2: columns 192 to 288 of W₁'s 384, 36,864 bytes (36.0 KiB)"
    assert detail.inner_text() == text
    press(root, "Escape", "ArrowDown")
    assert detail.inner_text().startswith("X: all of it on every rank, 196,608 bytes")
    press(root, "ArrowDown", "ArrowDown", "ArrowDown")
    assert detail.inner_text() == text
    assert root.get_attribute("data-selected") == "W₁:2"
    press(root, "ArrowRight", "ArrowRight")
    x, y, width, height = boxes_of(CUTS["mlp"])["Y"]
    hover(root, x + 5, y + height - 5)
    assert detail.inner_text().startswith("rank 3: a partial sum of all of Y")


@pytest.mark.screenshots
@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_screenshots(show: Show, artifacts: Path, dark: bool) -> None:
    """Saved as artifacts, for review."""
    for cut, step in (("columns", 3), ("rows", 1), ("mlp", 5), ("sequence", 3), ("sequence", 8)):
        widget = tensor_split(cut, world_size=4, reduce_scatter="gloo")
        widget.settings = {"step": step}
        root = show(widget, dark=dark)
        press(root, "ArrowDown", "ArrowDown")
        theme = "dark" if dark else "light"
        path = artifacts / f"widget_tensor_split_{cut}_{step}_{theme}.png"
        root.page.screenshot(path=path)
        assert path.stat().st_size > 0
