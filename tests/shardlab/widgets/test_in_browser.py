"""The widgets in Chromium, on a bare page in place of JupyterLab."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from playwright.sync_api import Browser

from shardlab.errors import DeadlockError, Waiting
from shardlab.widgets import (
    lora_shapes,
    memory_timeline,
    offload_times,
    pipeline_schedule,
    ring_player,
    timeline,
    traffic_map,
    unit_life,
)
from shardlab.widgets.picture import Picture, asset
from shardlab.widgets.units import exact_bytes, format_bytes, format_seconds
from tests.shardlab.widgets.every_widget import EVERY_WIDGET
from tests.shardlab.widgets.interaction import Show, hover, press, stop_the_clock
from tests.shardlab.widgets.synthetic import (
    dense,
    hub,
    make_run,
    on_nodes,
    p2p,
    ring_all_reduce,
    training,
    with_links,
)

pytestmark = pytest.mark.browser

MIB = 2**20


def hung(n: int = 2) -> DeadlockError:
    """Every rank receives from its left neighbor, and none sends."""
    calls = [
        p2p("recv", r, (r - 1) % n, 8, start_s=0.001 + r * 1e-6, end_s=None, world_size=n)
        for r in range(n)
    ]
    table = tuple(Waiting(r, "waiting", "recv", ((r - 1) % n,), "cell 5, line 3") for r in range(n))
    error = DeadlockError("the ranks all wait in recv", table=table, cycle=tuple(range(n))[::-1])
    error.run = make_run(n, calls)
    return error


# ---- traffic map ----


def test_mouse_and_keyboard_show_a_cells_bytes(show: Show) -> None:
    widget = traffic_map(ring_all_reduce(4), 6 * MIB)
    root = show(widget)
    assert root.get_attribute("data-world-size") == "4"
    assert root.get_attribute("data-total-bytes") == str(24 * MIB)
    scene = widget.scene
    hover(root, scene["heat_x"][0] + 3.5 * scene["cell"], scene["top"] + 2.5 * scene["cell"])
    text = "rank 2 → rank 3: 6,291,456 bytes (6.0 MiB)"
    assert root.locator(".shardlab-detail").inner_text() == text
    press(root, "Escape", "ArrowDown", "ArrowDown", "ArrowDown", "End", "ArrowLeft")
    assert root.get_attribute("data-selected") == "2,3"
    assert root.locator(".shardlab-detail").inner_text() == text
    press(root, "End")
    assert "predicted 6,291,456 bytes (6.0 MiB)" in root.locator(".shardlab-detail").inner_text()
    assert root.get_attribute("data-selected-bytes") == str(6 * MIB)


def test_a_cell_names_the_nodes(show: Show) -> None:
    widget = traffic_map(on_nodes(ring_all_reduce(4), 2))
    root = show(widget)
    scene = widget.scene
    hover(root, scene["heat_x"][0] + 2.5 * scene["cell"], scene["top"] + 1.5 * scene["cell"])
    text = "rank 1 on node 0 → rank 2 on node 1: 6,291,456 bytes (6.0 MiB)"
    assert root.locator(".shardlab-detail").inner_text() == text
    assert "24.0 MiB by 4 ranks, 12.0 MiB of it between nodes" in root.inner_text()


def test_the_switch_shows_links_and_keeps_the_choice(show: Show) -> None:
    root = show(traffic_map(with_links(ring_all_reduce(4), 2)))
    assert root.get_attribute("data-mode") == "ranks"
    links = root.get_by_role("radio", name="links of nodes")
    root.get_by_role("radio", name="bytes between ranks").press("ArrowRight")
    assert root.get_attribute("data-mode") == "links"
    assert links.is_checked()
    assert root.page.evaluate("window.model.get('mode')") == "links"
    assert "Links of the nodes" in root.inner_text()
    root.locator("select").select_option("all-gather")
    assert root.get_attribute("data-mode") == "links"
    press(root, "ArrowDown")
    text = root.locator(".shardlab-detail").inner_text()
    assert text.startswith("node 0 sent 3,145,728 bytes (3.0 MiB), on average ")
    # A new scene, as after a guess, keeps it too.
    root.page.evaluate("window.model.set('scene', structuredClone(window.model.get('scene')))")
    assert root.get_attribute("data-mode") == "links"
    root.page.evaluate("window.model.set('mode', 'ranks')")  # the kernel may set it
    assert root.get_attribute("data-mode") == "ranks"
    assert root.get_by_role("radio", name="bytes between ranks").is_checked()
    press(root, "ArrowDown")
    assert root.get_attribute("data-selected") == "0,0"


def test_a_run_without_links_has_no_switch(show: Show) -> None:
    assert show(traffic_map(on_nodes(ring_all_reduce(4), 2))).get_by_role("radio").count() == 0


def test_python_and_javascript_agree_about_links(show: Show) -> None:
    widget = traffic_map(with_links(ring_all_reduce(4), 2), mode="links")
    links = widget._links.links
    root = show(widget)
    rates = {"sent": links.sent_bits_per_s, "received": links.received_bits_per_s}
    rows = {2: (0, "sent"), 3: (0, "received"), 5: (1, "sent"), 6: (1, "received")}
    for row, (node, way) in rows.items():
        press(root, "Escape", *["ArrowDown"] * row, "Home")
        for index in range(len(links.time_s) - 1):
            assert root.get_attribute("data-selected") == f"{node},{way},{index}"
            share = float(root.get_attribute("data-utilization") or -1)
            assert share == pytest.approx(rates[way][index, node] / links.bits_per_s, abs=1e-4)
            press(root, "ArrowRight")
    for block in ("", "all-gather"):
        root.page.evaluate("block => window.model.set('block', block)", block)
        label = root.locator("canvas").get_attribute("aria-label") or ""
        percents = re.findall(r"[\d.]+ %", widget._links.words(block))
        assert len(percents) == 4
        assert re.findall(r"[\d.]+ %", label) == percents


def test_mouse_and_keyboard_show_a_links_moment(show: Show) -> None:
    widget = traffic_map(with_links(ring_all_reduce(4), 2), mode="links")
    root = show(widget)
    layout, times = widget._links, widget._links.links.time_s
    top, bottom = layout._plot(1)
    hover(root, layout.x((times[4] + times[5]) / 2), bottom - 4)
    assert root.get_attribute("data-selected") == "1,received,4"
    text = root.locator(".shardlab-detail").inner_text()
    pattern = r"node 1 received [\d,]+ bytes .* from .* to .*: [\d.]+ Gbit/s, [\d.]+ % of the"
    assert re.match(pattern, text)
    hover(root, layout.x(times[4]) + 1, top + 4)
    assert root.get_attribute("data-selected") == "1,sent,4"
    hover(root, 40, top)
    assert root.get_attribute("data-selected") == "1"
    press(root, "Escape", "ArrowDown", "ArrowDown", "ArrowDown", "End")
    assert root.get_attribute("data-selected") == f"0,received,{len(times) - 2}"
    press(root, "ArrowLeft", "ArrowUp")
    assert root.get_attribute("data-selected") == f"0,sent,{len(times) - 3}"
    root.locator("summary").click()
    root.locator("tbody tr").first.wait_for()
    assert root.locator("tbody tr").count() == 2 * (len(times) - 1)


def test_a_call_names_its_node(show: Show) -> None:
    root = show(timeline(on_nodes(ring_all_reduce(4), 2)))
    press(root, "ArrowDown", "ArrowDown", "ArrowDown")
    assert "rank 2 on node 1 · send → rank 3" in root.locator(".shardlab-detail").inner_text()


def test_the_selector_shows_a_measured_block(show: Show) -> None:
    root = show(traffic_map(ring_all_reduce(4)))
    root.locator("select").select_option("all-gather")
    assert root.get_attribute("data-block") == "all-gather"
    assert root.get_attribute("data-total-bytes") == str(12 * MIB)
    assert root.page.evaluate("window.model.get('block')") == "all-gather"
    root.page.evaluate("window.model.set('block', '')")  # the kernel may set it too
    assert root.get_attribute("data-total-bytes") == str(24 * MIB)


def test_the_table_matches_the_picture(show: Show) -> None:
    root = show(traffic_map(ring_all_reduce(4)))
    assert "4 ranks sent 25,165,824 bytes" in (
        root.locator("canvas").get_attribute("aria-label") or ""
    )
    root.locator("summary").click()
    root.locator("tbody tr").first.wait_for()
    assert root.locator("tbody tr").count() == 4
    assert root.locator("tbody tr").first.inner_text().split() == ["0", "1", str(6 * MIB)]


# ---- ring player ----


def test_the_player_steps_scrubs_and_jumps(show: Show) -> None:
    root = show(ring_player(ring_all_reduce(4)), reduced_motion=True)
    assert root.get_attribute("data-steps") == "6"
    assert root.get_attribute("data-mode") == "cards"
    press(root, "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert root.get_attribute("data-step") == "2"
    assert (
        "rank 0 → rank 1: chunk 3, 1,048,576 bytes" in root.locator(".shardlab-detail").inner_text()
    )
    press(root, "End")
    assert root.get_attribute("data-step") == "6"
    press(root, "Home")
    assert root.get_attribute("data-step") == "0"
    root.locator("input").fill("4.5")
    assert root.get_attribute("data-step") == "4"
    assert root.get_attribute("data-position") == "4.50"


@pytest.mark.parametrize("reduced_motion", [False, True])
def test_the_player_plays_to_the_end_and_stops(show: Show, reduced_motion: bool) -> None:
    root = show(ring_player(ring_all_reduce(2)), reduced_motion=reduced_motion)
    stop_the_clock(root)
    press(root, "Space")
    assert root.get_attribute("data-playing") == "true"
    root.page.clock.run_for(10_000)
    assert root.get_attribute("data-step") == "2"
    assert root.get_attribute("data-playing") == "false"


def test_space_pauses_and_a_step_forward_is_one_step(show: Show) -> None:
    root = show(ring_player(ring_all_reduce(4)))
    stop_the_clock(root)
    press(root, "Space", "Space")
    assert root.get_attribute("data-playing") == "false"
    press(root, "Home", "ArrowRight")
    root.page.clock.run_for(10_000)
    assert root.get_attribute("data-step") == "1"
    assert root.get_attribute("data-playing") == "false"
    assert root.get_attribute("data-position") == "1.00"


def test_a_run_without_chunks_shows_only_bytes(show: Show) -> None:
    root = show(ring_player(hub(4)), reduced_motion=True)
    assert root.get_attribute("data-mode") == "nodes"
    assert "does not show which part" in root.inner_text()
    press(root, "End")
    assert root.get_attribute("data-step") == "4"


def test_a_run_without_messages_shows_only_a_note(show: Show) -> None:
    root = show(ring_player(dense(4)))
    assert root.get_attribute("data-steps") == "0"
    assert root.locator("canvas").count() == 0
    assert "the player draws runs that use send and recv" in root.inner_text()


# ---- timeline ----


def test_the_keyboard_shows_a_calls_details(show: Show) -> None:
    root = show(timeline(ring_all_reduce(4)))
    assert root.get_attribute("data-calls") == "48"
    press(root, "ArrowRight", "ArrowRight", "ArrowDown")
    assert root.get_attribute("data-selected-op") == "recv"
    text = root.locator(".shardlab-detail").inner_text()
    for part in (
        "rank 1",
        "recv ← rank 0",
        "1,048,576 bytes (1.0 MiB)",
        "cell 5, line 4",
        "dist.recv",
    ):
        assert part in text


def test_the_mouse_selects_a_call(show: Show) -> None:
    widget = timeline(ring_all_reduce(4))
    root = show(widget)
    left, top, width, height = widget._layout.box(widget._calls[0])
    hover(root, left + width / 2, top + height / 2)
    assert root.get_attribute("data-selected") == "0"


def test_the_view_zooms_and_pans(show: Show) -> None:
    root = show(timeline(ring_all_reduce(4)))

    def span() -> tuple[float, float]:
        start, end = (root.get_attribute(f"data-view-{edge}-s") for edge in ("start", "end"))
        return float(start or 0), float(end or 0)

    whole = span()
    press(root, "+", "+")
    zoomed = span()
    assert zoomed[1] - zoomed[0] == pytest.approx((whole[1] - whole[0]) / 4)
    press(root, "Shift+ArrowRight")
    assert span()[0] > zoomed[0]
    press(root, "0")
    assert span() == pytest.approx(whole)
    root.get_by_label("Zoom in").click()
    assert span()[1] - span()[0] == pytest.approx((whole[1] - whole[0]) / 2)
    root.locator(".shardlab-plot").focus()
    hover(root, 300, 60)
    _, end = span()
    root.page.mouse.wheel(0, -400)
    root.page.wait_for_function(
        "before => Number(document.querySelector('.shardlab-widget').dataset.viewEndS) < before",
        arg=end,
    )


def test_a_hang_shows_which_rank_waits_for_which(show: Show) -> None:
    root = show(timeline(hung()))
    assert root.get_attribute("data-waits") == "0>1 1>0"
    assert root.get_attribute("data-pending") == "2"
    assert "the ranks all wait in recv" in root.inner_text()
    assert "rank 0 waits for rank 1" in (root.locator("canvas").get_attribute("aria-label") or "")
    press(root, "ArrowRight")
    assert "never ended" in root.locator(".shardlab-detail").inner_text()


# ---- all of them ----


def test_data_is_never_interpreted_as_html(show: Show) -> None:
    error = hung()
    error.headline = "<img src=x onerror='document.title=1'>"
    calls = error.run.calls if error.run else []
    error.run = make_run(
        2, [replace(call, code="<b>bold</b>", source="</script>") for call in calls]
    )
    root = show(timeline(error))
    press(root, "ArrowRight")
    assert "<b>bold</b>" in root.locator(".shardlab-detail").inner_text()
    assert root.locator("img, b").count() == 0
    assert "<img" in root.locator(".shardlab-error").inner_text()


for_every_widget = pytest.mark.parametrize("draw", EVERY_WIDGET.values(), ids=EVERY_WIDGET)
PLOTS = {name: draw for name, draw in EVERY_WIDGET.items() if name != "Prediction"}
# A prediction is a form, which keeps all typed keys; test_prediction_in_browser.py presses them.
for_every_plot = pytest.mark.parametrize("draw", PLOTS.values(), ids=PLOTS)


@for_every_widget
def test_a_removed_widget_stops_listening(show: Show, draw: Callable[[], Picture]) -> None:
    root = show(draw())
    page = root.page
    press(root, "Space")
    page.evaluate("window.cleanUp()")
    before = root.evaluate("node => ({...node.dataset})")
    press(root, "ArrowRight", "End")
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    assert root.evaluate("node => ({...node.dataset})") == before
    assert page.evaluate("window.model.listening()") == 0


@for_every_plot
def test_the_notebook_gets_only_unhandled_keys(show: Show, draw: Callable[[], Picture]) -> None:
    root = show(draw())
    page = root.page
    page.evaluate("window.reached = []")
    page.evaluate("addEventListener('keydown', (event) => window.reached.push(event.key))")
    press(root, "Home", "End", "ArrowLeft", "ArrowRight", "Control+ArrowRight", "j")
    assert page.evaluate("window.reached") == ["Control", "ArrowRight", "j"]


def test_buttons_and_fields_keep_their_own_keys(show: Show) -> None:
    root = show(pipeline_schedule(2, 3))
    stop_the_clock(root)
    play = root.get_by_role("button", name="Play")
    play.press("ArrowRight")
    assert root.get_attribute("data-selected") == "GPipe 0F0"
    play.press("Space")  # handled once, by the button and not by the plot
    assert root.get_attribute("data-playing") == "true"
    root.get_by_role("button", name="Pause").press("Space")
    root.get_by_role("checkbox", name="GPipe").press("Space")
    assert not root.get_by_role("checkbox", name="GPipe").is_checked()
    assert root.get_attribute("data-playing") == "false"
    root.get_by_role("slider", name="Time").press("ArrowLeft")
    assert root.get_attribute("data-selected") is None
    assert float(root.get_attribute("data-time") or 0) > 0


def test_arrow_keys_move_the_players_slider_by_whole_steps(show: Show) -> None:
    root = show(ring_player(ring_all_reduce(4)), reduced_motion=True)
    root.get_by_role("slider", name="Step").press("ArrowRight")
    assert root.get_attribute("data-position") == "1.00"


@for_every_plot
def test_a_change_of_theme_redraws_the_picture(show: Show, draw: Callable[[], Picture]) -> None:
    root = show(draw())
    picture = "canvas => canvas.toDataURL()"
    light = root.locator("canvas").evaluate(picture)
    root.page.evaluate(
        """() => {
            document.documentElement.style.setProperty("--jp-content-font-color1", "#ffffff");
            document.documentElement.style.setProperty("--jp-layout-color0", "#111111");
            document.body.dataset.jpThemeLight = "false";
        }"""
    )
    root.page.wait_for_function(
        "light => document.querySelector('canvas').toDataURL() !== light", arg=light
    )


@pytest.mark.parametrize("name", EVERY_WIDGET)
def test_details_out_of_view_are_repeated_at_the_pointer(show: Show, name: str) -> None:
    root = show(EVERY_WIDGET[name]())
    page, canvas, detail = root.page, root.locator("canvas"), root.locator(".shardlab-detail")
    if not canvas.count() or not detail.count() or root.get_by_role("textbox").count():
        return  # nothing to point at
    tip = root.locator(".shardlab-tip")

    def point_at_something() -> bool:
        box = canvas.bounding_box()
        assert box is not None
        height = min(box["height"], page.viewport_size["height"] - box["y"])
        for step in range(300):
            across, down = step % 20, step // 20
            page.mouse.move(
                box["x"] + box["width"] * (across + 0.5) / 20, box["y"] + height * (down + 0.5) / 15
            )
            if detail.text_content():
                return True
        return False

    page.set_viewport_size({"width": 940, "height": 3000})
    if not point_at_something():
        return  # it selects on a click
    assert tip.count() == 0
    page.mouse.move(0, 0)
    line = detail.bounding_box()
    assert line is not None
    page.set_viewport_size({"width": 940, "height": int(line["y"]) - 4})
    assert point_at_something()
    assert tip.is_visible()
    assert tip.text_content() == detail.text_content()
    shown = tip.bounding_box()
    assert shown is not None
    assert shown["y"] >= 0
    assert shown["y"] + shown["height"] <= page.viewport_size["height"]
    page.mouse.move(0, 0)
    assert tip.count() == 0


def test_units_are_the_same_in_python_and_javascript(browser: Browser) -> None:
    counts = [0, 1, 1023, 1024, 1_023_000, 1_042_944, 2**20 - 1, 6 * MIB, 1.5e9, 2.0**45]
    times = [0, 1e-7, 2.3e-4, 0.9996e-3, 9.996e-3, 0.0153, 0.9995, 1.25, 12.5, 1234]
    page = browser.new_page()
    helpers = asset("units.js")
    from_js = page.evaluate(
        f"""([counts, times]) => {{
            {helpers}
            return [counts.map(formatBytes), counts.map(exactBytes), times.map(formatSeconds)];
        }}""",
        [counts, times],
    )
    page.close()
    assert from_js == [
        [format_bytes(count) for count in counts],
        [exact_bytes(count) for count in counts],
        [format_seconds(seconds) for seconds in times],
    ]


@pytest.mark.parametrize(
    ("widget", "keys", "drawn"),
    [
        (traffic_map(dense(64)), ("ArrowRight",), 64 * 63),
        (ring_player(ring_all_reduce(64, 1000)), ("ArrowRight",), 64 * 64),
        (timeline(ring_all_reduce(64, 1000)), ("ArrowRight",), 2 * 64 * 126),
    ],
    ids=["traffic map", "ring player", "timeline"],
)
def test_a_redraw_of_64_ranks_draws_every_mark(
    show: Show,
    record_property: Callable[[str, object], None],
    widget: Picture,
    keys: tuple[str, ...],
    drawn: int,
) -> None:
    """Counts the marks; the time, which depends on the machine's load, is only reported."""
    root = show(widget, reduced_motion=True)
    press(root, *keys)
    times = root.evaluate(
        """(root, keys) => {
            const plot = root.querySelector(".shardlab-plot");
            const canvas = root.querySelector("canvas");
            const spent = { scripted: [], finished: [] };
            for (let round = 0; round < 30; round += 1) {
                const began = performance.now();
                const key = keys[round % keys.length];
                plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
                spent.scripted.push(Number(root.dataset.redrawMs));
                canvas.getContext("2d").getImageData(0, 0, 1, 1); // waits for the pixels
                spent.finished.push(performance.now() - began);
            }
            return spent;
        }""",
        list(keys),
    )
    assert int(root.get_attribute("data-drawn") or 0) >= drawn
    assert re.fullmatch(r"\d+\.\d\d", root.get_attribute("data-redraw-ms") or "")
    name = root.get_attribute("data-widget")
    for what, took in (("data-redraw-ms", times["scripted"]), ("to the pixels", times["finished"])):
        record_property(f"{name}: {what}", median(took))
        print(f"\n{name} at 64 ranks, {what}: median {median(took):.1f}, least {min(took):.1f} ms")


@pytest.mark.screenshots
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("n", [4, 64])
def test_screenshots(show: Show, artifacts: Path, n: int, dark: bool) -> None:
    """Saved as artifacts, for review."""
    run = ring_all_reduce(n, 262_144)
    ideal = 2 * (n - 1) * 262_144 * 4
    shots = {
        "traffic_map": (traffic_map(run, ideal), ("ArrowRight", "ArrowRight")),
        "ring_player": (ring_player(run), ("ArrowRight",) * n),
        "timeline": (timeline(run), ("ArrowRight",)),
        "timeline_hang": (timeline(hung(n)), ("ArrowRight",)),
    }
    if n == 4:  # these look the same with more ranks
        shots["memory_timeline"] = (memory_timeline(training(n), predicted=39 * MIB), ("p",))
        shots["offload_times"] = (offload_times(world_size=n), ("ArrowRight",))
        every = pipeline_schedule(schedules=["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"])
        shots["pipeline_schedule"] = (every, ("ArrowRight",))
        shots["unit_life"] = (unit_life(units=12), ("ArrowRight",))
        shots["lora_shapes"] = (lora_shapes(), ("ArrowRight",))
    for name, (widget, keys) in shots.items():
        root = show(widget, dark=dark, reduced_motion=True)
        press(root, *keys)
        path = artifacts / f"widget_{name}_{n}_{'dark' if dark else 'light'}.png"
        root.page.screenshot(path=path)
        assert path.stat().st_size > 0
