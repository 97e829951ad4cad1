"""The timeline's lane of states and its critical path in Chromium."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from playwright.sync_api import Locator

from shardlab.widgets import timeline
from shardlab.widgets.timeline_states import LOOKS, merged
from tests.shardlab.widgets.interaction import Show, hover, press
from tests.shardlab.widgets.synthetic import many_spans, ring_all_reduce, traced
from tests.shardlab.widgets.test_timeline_states import two_steps

pytestmark = pytest.mark.browser


def detail(root: Locator) -> str:
    return root.locator(".shardlab-detail").inner_text()


def test_the_mouse_shows_a_state_and_the_call_below_it(show: Show) -> None:
    widget = timeline(traced())
    root, layout = show(widget), widget._layout
    late = next(state for state in widget._lane.states[1] if state.name == "waiting")
    x = layout.x((late.start_s + late.end_s) / 2)
    hover(root, x, layout.top_of_states(1) + layout.state_height / 2)
    assert (
        detail(root)
        == f"rank 1 · waiting: {LOOKS['waiting'].meaning} · 1.50 ms – 3.00 ms (1.50 ms)"
    )
    assert root.get_attribute("data-selected-state") == "waiting"
    hover(root, x, layout.top_of_states(1) + layout.state + 5)
    assert "rank 1 · all_reduce all ranks" in detail(root)
    assert root.get_attribute("data-selected-state") is None


def test_the_keyboard_moves_in_the_lane_of_states_and_back(show: Show) -> None:
    widget = timeline(traced())
    root = show(widget)
    first, second, *_ = (state.name for state in widget._lane.states[0])
    press(root, "s")
    assert root.get_attribute("data-selected-state") == first
    press(root, "ArrowRight")
    assert detail(root).startswith(f"rank 0 · {second}: {LOOKS[second].meaning} · ")
    press(root, "ArrowDown", "ArrowDown")
    assert root.get_attribute("data-selected-rank") == "2"
    press(root, "End")
    last = len(widget._lane.states[2]) - 1
    assert root.get_attribute("data-selected-index") == str(last)
    press(root, "s")  # to the call that is nearest
    assert detail(root).startswith("rank 2 · all_gather")
    press(root, "ArrowLeft")
    assert detail(root).startswith("rank 2 · all_reduce")
    press(root, "S", "Home", "Escape")
    assert detail(root) == ""


def test_the_button_and_its_key_show_the_critical_path(show: Show) -> None:
    root = show(timeline(traced()))
    button = root.get_by_role("button", name="Critical path")
    assert button.get_attribute("aria-pressed") == "false"
    before = pixels(root)
    button.focus()
    root.page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert root.get_attribute("data-path") == "shown"
    assert re.match(r"Critical path of 35\.0 ms, changes rank once: rank 3 ", detail(root))
    assert pixels(root) != before
    press(root, "c")
    assert button.get_attribute("aria-pressed") == "false"
    assert detail(root) == ""
    assert pixels(root) == before
    button.click()
    press(root, "s")
    assert "critical path" not in detail(root)  # rank 0's first step
    press(root, "End")
    assert detail(root).endswith("on the critical path")


def test_zooming_covers_the_lane_and_the_path(show: Show) -> None:
    widget = timeline(traced())
    root, layout = show(widget), widget._layout
    press(root, "c", "+", "+")
    start_s, end_s = (float(root.get_attribute(f"data-view-{e}-s") or 0) for e in ("start", "end"))
    hover(root, layout.left + 1, layout.top_of_states(3) + 3)
    found = next(s for s in widget._lane.states[3] if s.start_s <= start_s + 1e-5 < s.end_s)
    assert f"rank 3 · {found.name}: " in detail(root)
    assert detail(root).endswith("on the critical path")
    press(root, "0")
    assert float(root.get_attribute("data-view-end-s") or 0) > end_s


def test_a_label_starts_the_view_and_zooming_out_shows_all(show: Show) -> None:
    root = show(timeline(two_steps(), label="second"))
    assert "starts at second" in root.inner_text()
    assert float(root.get_attribute("data-view-start-s") or 0) == pytest.approx(19.9)
    assert float(root.get_attribute("data-view-end-s") or 0) == pytest.approx(30.1)
    press(root, "c")
    assert detail(root).startswith("Critical path of 10.0 s in second")
    press(root, "0")
    assert float(root.get_attribute("data-view-start-s") or 0) == 0


def test_words_say_where_the_path_is_when_the_view_shows_none_of_it(show: Show) -> None:
    root = show(timeline(two_steps(), label="second"))
    press(root, "c", "0", "+", "+", *["Shift+ArrowLeft"] * 12)
    assert detail(root).startswith("The critical path is to the right of what is shown: press 0")
    press(root, "0")
    assert detail(root).startswith("Critical path of ")
    press(root, "c", "+", "+")
    assert detail(root) == ""


def test_a_run_without_states_has_no_button_and_no_keys_for_them(show: Show) -> None:
    root = show(timeline(ring_all_reduce(4)))
    assert root.get_by_role("button", name="Critical path").count() == 0
    press(root, "c", "s")
    assert detail(root) == ""
    label = root.locator(".shardlab-plot").get_attribute("aria-label") or ""
    assert "critical path" not in label


def pixels(root: Locator) -> str:
    found: str = root.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    return found


def test_python_and_javascript_merge_states_alike(show: Show) -> None:
    """The page draws the lane's bars with a function of its own, which is also called here."""
    widget = timeline(many_spans(2, 600))
    root, layout = show(widget), widget._layout
    own = widget._lane.states[1]
    expected = len([*merged((layout.x(s.start_s), layout.x(s.end_s), s.name) for s in own)])
    source = widget._esm.replace("export default widget(build);", "")
    bars = root.page.evaluate(
        f"""(scene) => {{
            {source}
            const bars = [];
            const {{ plot: box, start_s: from, end_s: to }} = scene;
            const toX = (time) => box.left + ((time - from) / (to - from)) * (box.right - box.left);
            const lane = unpackStates(scene.states)[1];
            const shares = scene.states.looks.map(() => 0);
            mergedStates(lane, {{ from, to, toX }}, box, shares, (...bar) => bars.push(bar));
            return bars.length;
        }}""",
        widget.scene,
    )
    assert expected > 100
    assert bars == pytest.approx(expected, rel=0.02)  # times are rounded for the page


def test_64_ranks_of_2000_spans_redraw_quickly_enough_to_zoom(
    show: Show, record_property: Callable[[str, object], None]
) -> None:
    """Counts the bars; the time, which depends on the machine's load, is only reported."""
    root = show(timeline(many_spans(64, 2000)))
    press(root, "c")
    took = []
    for key in ("+", "+", "+", "+", "-", "-", "-", "-"):
        press(root, key)
        took.append(float(root.get_attribute("data-redraw-ms") or 0))
        assert int(root.get_attribute("data-drawn") or 0) < 64 * 2000
    record_property("timeline with states: data-redraw-ms", median(took))
    print(f"\n64 ranks of 2000 spans: median {median(took):.1f}, most {max(took):.1f} ms")


@pytest.mark.screenshots
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("n", [4, 64])
def test_screenshots(show: Show, artifacts: Path, n: int, dark: bool) -> None:
    root = show(timeline(traced(n)), dark=dark)
    root.page.set_viewport_size({"width": 1100, "height": 720})
    for name, keys in {"states": ("s", "ArrowRight"), "path": ("Escape", "c")}.items():
        press(root, *keys)
        path = artifacts / f"widget_timeline_{name}_{n}_{'dark' if dark else 'light'}.png"
        root.page.screenshot(path=path)
        assert path.stat().st_size > 0
