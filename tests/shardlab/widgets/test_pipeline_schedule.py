"""The pipeline picture, and that Python and JavaScript simulate the same."""

from __future__ import annotations

import json
import random
import re
from xml.etree import ElementTree

import pytest
import traitlets
from playwright.sync_api import Browser, expect

from shardlab.simulate.pipeline import Costs, IllegalSchedule, Slot, gpipe, one_f_one_b, simulate
from shardlab.widgets import pipeline_schedule
from shardlab.widgets.picture import asset
from shardlab.widgets.pipeline_panels import HEAD, LEFT, LEGEND_HEIGHT, row_height, ticks
from shardlab.widgets.pipeline_schedule import NAMES, schedule_of, timeline_of
from tests.shardlab.widgets.interaction import Show, hover, press, stop_the_clock


def random_settings(rng: random.Random) -> dict[str, object]:
    return {
        "p": rng.randint(1, 6),
        "m": rng.randint(1, 14),
        "v": rng.randint(1, 4),
        "forward": rng.uniform(0.5, 2),
        "backward_input": rng.uniform(0.5, 2),
        "backward_weight": rng.uniform(0.5, 2),
        "send": rng.choice([0, rng.uniform(0, 1)]),
        "shown": list(NAMES),
    }


def measured_slots(schedule, unit_s: float, late_s: float = 0.0):
    """What run_schedule would return from ranks that are exactly as fast as simulated."""
    return [
        [
            Slot(a, 100 + late_s + unit_s * start, 100 + late_s + unit_s * end)
            for a, start, end in each
        ]
        for each in simulate(schedule).slots
    ]


def test_the_static_picture_follows_the_settings() -> None:
    widget = pipeline_schedule()
    svg = widget.static_svg()
    ElementTree.fromstring(svg)
    assert "bubble 37.5% of ideal time, 27.3% of total time · 33" in svg
    assert "GPipe 37.5%, 1F1B 37.5%, ZB-H1 12.5%" in widget.summary()
    widget.settings = {"m": 16, "shown": ["interleaved", "zb-v"]}
    assert "interleaved 1F1B 9.4%, ZB-V 3.1%" in widget.summary()
    assert "5.5" in widget.static_svg()  # 11 chunks of half a share
    with pytest.raises(traitlets.TraitError, match="m=0"):
        widget.settings = {"m": 0}


def test_a_schedule_that_does_not_divide_is_explained() -> None:
    svg = pipeline_schedule(4, 9, 2, ["interleaved"]).static_svg()
    assert "m micro-batches do not divide into equal rounds" in svg
    ElementTree.fromstring(pipeline_schedule(schedules=[]).static_svg())


def test_custom_schedules_are_drawn_and_checked() -> None:
    widget = pipeline_schedule(2, 4, schedules={"mine": gpipe(2, 4)})
    assert "mine 25.0%" in widget.summary()
    with pytest.raises(IllegalSchedule, match="needs its forward first"):
        pipeline_schedule(1, 1, schedules={"mine": [[("B", 0, 0), ("F", 0, 0)]]})
    with pytest.raises(ValueError, match="is the name of a built-in schedule"):
        pipeline_schedule(schedules={"gpipe": gpipe(2, 2)})


def test_a_run_is_drawn_below_the_simulation_of_the_same_schedule() -> None:
    ran = measured_slots(one_f_one_b(2, 4), unit_s=0.01)
    widget = pipeline_schedule(
        2, 4, schedules=["gpipe", "1f1b"], measured={"1f1b": ran}, unit_s=0.01
    )
    _, simulated, measured = widget.panels()
    assert measured.title == "1F1B, measured"
    assert measured.makespan == pytest.approx(simulated.makespan)
    assert measured.over_ideal == pytest.approx(0.25)
    assert "150 ms" in widget.static_svg()
    widget.settings = {"m": 5}
    assert len(widget.panels()) == 2  # no longer the schedule that ran


def test_a_run_on_a_busy_machine_does_not_squeeze_the_simulations() -> None:
    def last_tick(unit_s: float) -> tuple[str, bool]:
        ran = measured_slots(one_f_one_b(2, 4), unit_s)
        options = {"measured": {"1f1b": ran}, "unit_s": 0.01}
        svg = pipeline_schedule(2, 4, schedules=["1f1b"], **options).static_svg()
        assert f"{15 * unit_s:g} s" in svg or f"{15000 * unit_s:g} ms" in svg  # its own time
        return re.findall(r">(\d+) ms</text>", svg)[-1], "1F1B, measured (drawn at 1 : 5)" in svg

    assert last_tick(0.01) == ("150", False)
    assert last_tick(0.05) == ("150", True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"p": 0}, "p=0"),
        ({"v": 9}, "at most 4 chunks"),
        ({"schedules": ["dual"]}, "schedule 'dual': must be one of naive, gpipe"),
        ({"costs": Costs(forward=0)}, "forward=0: must be above 0"),
        ({"costs": Costs(forward=[1, 2, 1, 1])}, "one number for all stages"),
        ({"measured": {"dual": [[Slot(("F", 0, 0), 0, 1)]]}}, "'dual'.: must be one of"),
        ({"measured": {"1f1b": [[], []]}}, "nothing ran"),
        ({"unit_s": 0}, "unit_s=0"),
    ],
)
def test_invalid_arguments_raise(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline_schedule(**given)


def test_ticks_are_round() -> None:
    assert ticks(33) == [0, 5, 10, 15, 20, 25, 30]
    assert ticks(0.0021) == pytest.approx([0, 0.0005, 0.001, 0.0015, 0.002])
    assert len(ticks(7)) == 8


@pytest.mark.browser
def test_python_and_javascript_simulate_the_same(browser: Browser) -> None:
    rng = random.Random(8)
    cases = [random_settings(rng) for _ in range(40)]
    page = browser.new_page()
    from_js = page.evaluate(
        f"""(cases) => {{
            {asset("pipeline_model.js")}
            return cases.map((each) => Object.entries(GENERATORS).map(([name, make]) => {{
                const schedule = make(each);
                return [name, schedule, schedule && simulatePipeline(schedule, each)];
            }}));
        }}""",
        cases,
    )
    page.close()
    for settings, by_name in zip(cases, from_js, strict=True):
        assert [name for name, *_ in by_name] == list(NAMES)
        for name, schedule, theirs in by_name:
            mine, timeline = schedule_of(name, settings, {}), timeline_of(name, settings, {})
            if mine is None or timeline is None:
                assert schedule is None, (name, settings)
                continue
            assert schedule == [[list(action) for action in each] for each in mine], name
            edges = [
                e for each in theirs["slots"] for slot in each for e in (slot["start"], slot["end"])
            ]
            expected = [e for each in timeline.slots for slot in each for e in slot[1:]]
            assert edges == pytest.approx(expected)
            assert theirs["peaks"] == list(timeline.peak_in_flight)
            assert theirs["makespan"] == pytest.approx(timeline.makespan)
            assert theirs["overIdeal"] == pytest.approx(timeline.bubble_over_ideal, abs=1e-9)
            assert theirs["fraction"] == pytest.approx(timeline.bubble_fraction, abs=1e-9)
            assert theirs["spanBubble"] == pytest.approx(timeline.span_bubble, abs=1e-9)


@pytest.mark.browser
def test_sliders_and_schedules_redraw_immediately(show: Show) -> None:
    root = show(pipeline_schedule())
    bubbles = lambda: json.loads(root.get_attribute("data-bubbles") or "{}")  # noqa: E731
    assert bubbles() == {"GPipe": 0.375, "1F1B": 0.375, "ZB-H1": 0.125}
    for _ in range(8):
        root.get_by_role("slider", name="Micro-batches m").press("ArrowRight")
    assert bubbles()["1F1B"] == pytest.approx(3 / 16)
    root.get_by_role("checkbox", name="interleaved 1F1B").check()
    assert bubbles()["interleaved 1F1B"] == pytest.approx(3 / 32, abs=1e-6)
    root.get_by_role("slider", name="Chunks v").press("ArrowRight")
    assert bubbles()["interleaved 1F1B"] == pytest.approx(3 / 48, abs=1e-6)
    assert root.page.evaluate("window.model.get('settings').v") == 3
    root.get_by_role("checkbox", name="GPipe").uncheck()
    assert "GPipe" not in bubbles()
    assert root.get_by_role("checkbox").evaluate_all("all => all.map((each) => each.value)") == [
        *NAMES
    ]
    root.get_by_role("slider", name="Send").press("End")
    assert bubbles()["1F1B"] > 3 / 16
    root.page.evaluate(
        "window.model.set('settings', {...window.model.get('settings'), p: 2, m: 4})"
    )
    assert root.get_attribute("data-p") == "2"  # the kernel may set it too
    height = root.locator("canvas").evaluate("canvas => canvas.clientHeight")
    root.get_by_role("slider", name="Devices p").press("End")
    assert root.locator("canvas").evaluate("canvas => canvas.clientHeight") > height


@pytest.mark.browser
def test_sliders_that_would_change_nothing_are_hidden(show: Show) -> None:
    root = show(pipeline_schedule(2, 3, schedules={"mine": gpipe(2, 3)}))
    sizes = [root.locator(f"[data-setting={name}]") for name in ("p", "m", "v")]
    assert [each.is_visible() for each in sizes] == [False, False, False]
    root.get_by_role("checkbox", name="GPipe").check()
    assert [each.is_visible() for each in sizes] == [True, True, False]
    root.get_by_role("checkbox", name="interleaved 1F1B").check()
    assert [each.is_visible() for each in sizes] == [True, True, True]


@pytest.mark.browser
def test_mouse_and_keyboard_show_an_actions_details(show: Show) -> None:
    root = show(pipeline_schedule(4, 8, schedules=["gpipe", "1f1b"]))
    detail = root.locator(".shardlab-detail")
    press(root, "ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown")
    assert root.get_attribute("data-selected") == "GPipe 1F1"
    assert (
        "GPipe: device 1, forward of micro-batch 1, from 2 to 3; then 2 in" in detail.inner_text()
    )
    press(root, "End", "ArrowDown", "ArrowDown", "ArrowDown", "Home")
    assert root.get_attribute("data-selected") == "1F1B 0F0"
    hover(root, LEFT + 4, LEGEND_HEIGHT + HEAD + 2.5 * row_height(8))
    assert detail.inner_text() == ""  # device 2 idles there
    press(root, "Escape")
    assert root.get_attribute("data-selected") is None
    root.locator("summary").click()
    expect(root.locator("tbody tr")).to_have_count(2)


@pytest.mark.browser
def test_the_clock_plays_and_stops_and_fills_memory(show: Show) -> None:
    root = show(pipeline_schedule(2, 4, schedules=["gpipe"]), reduced_motion=True)
    root.get_by_role("slider", name="Time").fill("200")
    assert root.get_attribute("data-time") == "3.000"
    image = "canvas => canvas.toDataURL()"
    before = root.locator("canvas").evaluate(image)
    stop_the_clock(root)
    press(root, "Space")
    assert root.get_attribute("data-playing") == "true"
    root.page.clock.run_for(4500)
    press(root, "Space")
    assert root.get_attribute("data-playing") == "false"
    assert 3 < float(root.get_attribute("data-time") or 0) < 15
    root.get_by_role("slider", name="Time").fill("1000")
    assert root.get_attribute("data-time") == ""
    assert root.locator("canvas").evaluate(image) != before


@pytest.mark.browser
def test_a_run_is_drawn_only_with_the_settings_of_the_run(show: Show) -> None:
    ran = measured_slots(one_f_one_b(2, 4), unit_s=0.01)
    root = show(pipeline_schedule(2, 4, schedules=["1f1b"], measured={"1f1b": ran}, unit_s=0.01))
    bubbles = json.loads(root.get_attribute("data-bubbles") or "{}")
    assert bubbles["1F1B, measured"] == pytest.approx(0.25, abs=1e-6)
    press(root, "ArrowRight", "ArrowDown", "ArrowDown")
    assert "1F1B, measured: device 0" in root.locator(".shardlab-detail").inner_text()
    note = root.locator("p.shardlab-note")
    expect(note).to_be_hidden()
    root.get_by_role("slider", name="Send").press("ArrowRight")
    assert "do not follow these sliders: the ranks ran with forward 10.0 ms" in note.inner_text()
    root.get_by_role("slider", name="Micro-batches m").press("ArrowRight")
    assert "measured" not in (root.get_attribute("data-bubbles") or "")
    assert "No measured rows of 1F1B: the ranks ran p = 2, m = 4" in note.inner_text()


@pytest.mark.browser
def test_a_slow_run_has_a_scale_of_its_own(show: Show) -> None:
    ran = measured_slots(one_f_one_b(2, 4), unit_s=0.05)
    root = show(pipeline_schedule(2, 4, schedules=["1f1b"], measured={"1f1b": ran}, unit_s=0.01))
    makespans = json.loads(root.get_attribute("data-makespans") or "{}")
    assert makespans == {"1F1B": 15, "1F1B, measured (drawn at 1 : 5)": 75}
    hover(root, LEFT + 20, 62)  # the first action of the simulation, and of the run below it
    simulated = root.locator(".shardlab-detail").inner_text()
    hover(root, LEFT + 20, 140)
    measured = root.locator(".shardlab-detail").inner_text()
    first = "device 0, forward of micro-batch 0, from 0 s to"
    assert simulated.startswith(f"1F1B: {first} 10.0 ms")
    assert measured.startswith(f"1F1B, measured (drawn at 1 : 5): {first} 50.0 ms")
