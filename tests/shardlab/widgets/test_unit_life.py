"""The unit life: read from real ranks, simulated, and the same in Python and JavaScript."""

from __future__ import annotations

import gc
import json
import random
import re
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist
import traitlets
from playwright.sync_api import Browser

from shardlab import data, launch, models
from shardlab.run import Run
from shardlab.simulate.fsdp import CATEGORIES, ROOT, StepSettings, simulate_step
from shardlab.widgets import unit_life
from shardlab.widgets.picture import asset
from shardlab.widgets.unit_life_log import read_step
from shardlab.widgets.unit_life_panels import (
    HEAD,
    LEFT,
    LEGEND_HEIGHT,
    RIGHT,
    WIDTH,
    Layout,
    row_height,
)
from tests.shardlab.widgets.interaction import Show, hover, press
from tests.shardlab.widgets.synthetic import ring_all_reduce, training

SIZE = "1M"  # four blocks
PARAMETER_BYTES = 4 * models.count_parameters(models.gpt(SIZE))
ROOT_BYTES = 4 * (256 + 128 + 2) * 128  # token (also the head's), position, norm
UNIT_BYTES = (PARAMETER_BYTES - ROOT_BYTES) // 4
RULES = {  # forward_prefetch, backward_prefetch, reshard_after_forward
    "default": (0, 1, None),
    "two ahead": (2, 2, None),
    "kept whole": (0, 1, False),
}
STEP = {name: 2 * index + 1 for index, name in enumerate(RULES)}  # the second step of each
ACCUMULATE = 2 * len(RULES)
ONLY_ROOT = ACCUMULATE + 2


def train(rules):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    for rule in rules:
        two_steps(*rule)
        gc.collect()  # FSDP's objects form reference cycles
    accumulate()
    root = fully_shard(torch.nn.Linear(4, 4))
    root(torch.ones(1, 4)).sum().backward()


def two_steps(forward, backward, reshard_after_forward):
    from torch.distributed.fsdp import fully_shard

    model = models.gpt(SIZE)
    blocks = list(model.blocks)
    for block in blocks:
        fully_shard(block, reshard_after_forward=reshard_after_forward)
    fully_shard(model)
    for index, block in enumerate(blocks):
        if forward:
            block.set_modules_to_forward_prefetch(blocks[index + 1 : index + 1 + forward])
        if backward > 1:
            block.set_modules_to_backward_prefetch(blocks[max(0, index - backward) : index][::-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        model(*data.batch(step, 2, 32, dist.get_rank(), dist.get_world_size())).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulate():
    from torch.distributed.fsdp import fully_shard

    model = models.gpt("0.1M")
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    for is_last in (False, True):
        model.set_requires_gradient_sync(is_last)
        model.set_reshard_after_backward(is_last)
        model(*data.batch(0, 2, 32, dist.get_rank(), dist.get_world_size())).backward()


@pytest.fixture(scope="module")
def run() -> Run:
    return launch(train, list(RULES.values()), world_size=2, memory=True, device="cpu")


# ---- a run ----


@pytest.mark.ranks
@pytest.mark.parametrize("rules", RULES)
def test_a_run_follows_the_simulated_order_with_the_simulated_bytes(run: Run, rules: str) -> None:
    recorded = read_step(run, STEP[rules])
    settings = recorded.settings()
    assert recorded.sizes == (ROOT_BYTES, *[UNIT_BYTES] * 4)
    assert (settings.units, settings.world_size, settings.overlap) == (4, 2, False)
    forward, backward, reshard = RULES[rules]
    assert settings.reshard_after_forward == (reshard is None)
    assert settings.forward_prefetch == forward
    assert settings.backward_prefetch == (0 if rules == "kept whole" else backward)
    simulated = simulate_step(settings)
    for timeline in recorded.timelines:
        assert timeline.names == ("root", *(f"blocks.{i}" for i in range(4)))
        assert timeline.order == simulated.order
        assert timeline.messages == simulated.messages
        # In a real run, the final norm's gradients exist before the root's other gradients.
        assert 0 <= timeline.peak_bytes - simulated.peak_bytes <= 2 * 128 * 4
        assert {name: values[-1] for name, values in timeline.live.items()} == pytest.approx(
            {name: values[-1] for name, values in simulated.live.items()}, abs=2 * UNIT_BYTES
        )


@pytest.mark.ranks
def test_every_collective_of_a_step_is_in_the_picture(run: Run) -> None:
    for rank, timeline in enumerate(read_step(run, 0).timelines):
        spans = [span for span in timeline.spans if span.kind in ("gather", "reduce")]
        calls = [call for call in run.calls if call.rank == rank][: len(spans)]
        assert [call.op.split("_single")[0] for call in calls] == [
            {"gather": "all_gather", "reduce": "reduce_scatter"}[span.kind] for span in spans
        ]
        assert [span.end_s - span.start_s for span in spans] == pytest.approx(
            [(call.end_s or 0) - call.start_s for call in calls], abs=1e-9
        )


@pytest.mark.ranks
def test_a_unit_computes_only_while_it_is_whole(run: Run) -> None:
    for rules, step in STEP.items():
        for timeline in read_step(run, step).timelines:
            whole = [span for span in timeline.spans if span.kind == "whole"]
            computing = [s for s in timeline.spans if s.kind in ("forward", "backward")]
            assert len(computing) == 10
            for span in computing:
                assert any(
                    each.row == span.row and each.start_s <= span.start_s < span.end_s <= each.end_s
                    for each in whole
                ), span
            assert sum(span.row == ROOT for span in whole) == 1
            assert len(whole) == (5 if rules == "kept whole" else 9)


@pytest.mark.ranks
def test_gradient_accumulation_keeps_units_whole_and_reduces_once(run: Run) -> None:
    first, last = (read_step(run, ACCUMULATE + batch) for batch in (0, 1))
    assert first.sizes == last.sizes  # the root is gathered only in the first micro-batch
    assert first.timelines[0].messages == {"gather": 5, "reduce": 0}
    assert last.timelines[0].messages == {"gather": 2, "reduce": 3}
    for timeline in last.timelines:  # whole since the previous batch
        start_s = min(span.start_s for span in timeline.spans)
        since = {span.row for span in timeline.spans if span[1:3] == ("whole", start_s)}
        assert since == {0, 1, 2}
    ElementTree.fromstring(unit_life(run, step=ACCUMULATE + 1).static_svg())


@pytest.mark.ranks
def test_steps_and_ranks_can_be_chosen(run: Run) -> None:
    first, second, other = (read_step(run, step).timelines[1] for step in (0, 1, 3))
    assert first.order == second.order != other.order
    assert read_step(run, 1 - ONLY_ROOT - 1).timelines[1] == second
    widget = unit_life(run, step=1, rank=1)
    assert [panel.title for panel in widget.panels()] == ["Simulated", "Measured, rank 1"]
    assert "9 all-gathers, 5 reduce-scatters" in widget.summary()
    ElementTree.fromstring(widget.static_svg())
    widget.settings = {"units": 16, "rank": 0}
    assert widget.timeline.messages["gather"] == 33
    with pytest.raises(traitlets.TraitError, match="rank=2: must be from 0 to 1"):
        widget.settings = {"rank": 2}
    with pytest.raises(ValueError, match="step=9: the run recorded 9 passes"):
        unit_life(run, step=9)
    with pytest.raises(ValueError, match="rank=5: must be from 0 to 1"):
        unit_life(run, step=1, rank=5)


@pytest.mark.ranks
def test_a_step_without_units_raises(run: Run) -> None:
    with pytest.raises(ValueError, match="only the root was sharded"):
        unit_life(run, step=ONLY_ROOT)
    with pytest.raises(ValueError, match=r"no unit was recorded: use fully_shard, and launch"):
        unit_life(training(2))
    with pytest.raises(ValueError, match="recorded no memory"):
        unit_life(ring_all_reduce(2))


# ---- a simulation ----


def test_the_static_picture_follows_the_settings() -> None:
    widget = unit_life(units=4, prefetch=2)
    assert widget.settings["forward_prefetch"] == widget.settings["backward_prefetch"] == 2
    before = widget.static_svg()
    widget.settings = {"units": 9}
    assert widget.static_svg() != before
    with pytest.raises(traitlets.TraitError, match="units=0"):
        widget.settings = {"units": 0}
    with pytest.raises(ValueError, match="'layers' is not a setting"):
        unit_life(layers=3)


@pytest.mark.parametrize("units", [1, 4, 16, 60])
def test_text_is_legible_and_inside_the_picture(units: int) -> None:
    texts = re.findall(
        r'<text x="([\d.-]+)".*?font-size="([\d.]+)" text-anchor="(\w+)".*?>(.*?)<',
        unit_life(units=units).static_svg(),
    )
    assert len(texts) > 15
    for x, size, anchor, text in texts:
        width = 0.5 * float(size) * len(text)
        left = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
        assert float(size) >= 11
        assert -1 <= left < left + width <= WIDTH + 32, text


def random_settings(rng: random.Random) -> dict[str, object]:
    return {
        "units": rng.randrange(1, 12),
        "forward_prefetch": rng.randrange(4),
        "backward_prefetch": rng.randrange(4),
        "reshard_after_forward": rng.random() < 0.6,
        "world_size": rng.randrange(2, 65),
        "parameter_bytes": 10 ** rng.uniform(6, 12),
        "root_bytes": rng.choice([0, 1e4, 3e5]),
        "overlap": rng.random() < 0.5,
        "forward_s": 10 ** rng.uniform(-3, 0),
        "backward_ratio": rng.uniform(1, 3),
        "head_s": rng.choice([0, 0.01]),
        "link_bytes_per_s": 10 ** rng.uniform(8, 12),
        "message_s": rng.choice([0, 1e-5, 1e-3]),
        "copy_bytes_per_s": 10 ** rng.uniform(9, 13),
    }


@pytest.mark.browser
def test_python_and_javascript_simulate_the_same(browser: Browser) -> None:
    rng = random.Random(5)
    cases = [random_settings(rng) for _ in range(80)]
    assert set(cases[0]) == set(asdict(StepSettings()))
    page = browser.new_page()
    from_js = page.evaluate(
        f"""(cases) => {{
            {asset("unit_life_model.js")}
            return cases.map((settings) => {{
                const timeline = simulateUnits(settings);
                const [peak, messages] = [peakOfUnits(timeline), messagesOf(timeline)];
                return {{ ...timeline, peak, messages }};
            }});
        }}""",
        cases,
    )
    page.close()
    for settings, theirs in zip(cases, from_js, strict=True):
        mine = simulate_step(StepSettings(**settings))
        assert theirs["names"] == list(mine.names)
        assert [(s["row"], s["kind"]) for s in theirs["spans"]] == [s[:2] for s in mine.spans]
        edges = [edge for s in theirs["spans"] for edge in (s["start"], s["end"])]
        assert edges == pytest.approx([edge for s in mine.spans for edge in s[2:]])
        assert theirs["times"] == pytest.approx(list(mine.times_s))
        for name in CATEGORIES:
            assert theirs["live"][name] == pytest.approx(list(mine.live[name]), abs=1e-3)
        assert theirs["step"] == pytest.approx(mine.step_s)
        assert theirs["peak"]["bytes"] == pytest.approx(mine.peak_bytes)
        assert theirs["messages"] == mine.messages


# ---- in the browser ----


@pytest.mark.browser
def test_sliders_redraw_without_the_kernel(show: Show) -> None:
    root = show(unit_life(units=8))
    image = "canvas => canvas.toDataURL()"
    before = root.locator("canvas").evaluate(image)
    root.get_by_role("slider", name="Units").press("ArrowRight")
    root.get_by_role("slider", name="Prefetch, forward").press("End")
    settings = root.page.evaluate("window.model.get('settings')")
    assert (settings["units"], settings["forward_prefetch"]) == (9, 4)
    expected = unit_life(units=9, forward_prefetch=4).timeline
    assert root.get_attribute("data-units") == "9"
    assert float(root.get_attribute("data-peak-bytes") or 0) == pytest.approx(expected.peak_bytes)
    assert float(root.get_attribute("data-step-s") or 0) == pytest.approx(expected.step_s)
    assert json.loads(root.get_attribute("data-messages") or "") == {"gather": 19, "reduce": 10}
    assert root.locator("canvas").evaluate(image) != before
    root.get_by_role("radio", name="keep whole").check()
    assert json.loads(root.get_attribute("data-messages") or "") == {"gather": 10, "reduce": 10}
    root.get_by_role("radio", name="sequential").check()
    label = root.locator("canvas").get_attribute("aria-label") or ""
    assert "9 units and the root, 8 ranks" in label
    assert "10 all-gathers, 10 reduce-scatters" in label
    root.page.evaluate("window.model.set('settings', {...window.model.get('settings'), units: 3})")
    assert root.get_attribute("data-units") == "3"  # the kernel may set it too


@pytest.mark.browser
def test_mouse_and_keyboard_show_what_happens(show: Show) -> None:
    widget = unit_life(units=4, prefetch=1)
    root = show(widget)
    detail = root.locator(".shardlab-detail")
    press(root, "ArrowRight")
    assert root.get_attribute("data-selected") == "simulated root gather"
    press(root, "ArrowDown", "ArrowRight", "ArrowRight", "ArrowDown")
    assert (root.get_attribute("data-selected") or "").startswith("simulated unit 1")
    press(root, "End")
    assert root.get_attribute("data-selected") == "simulated root reduce"
    assert "Simulated · root: reduce-scatter" in detail.inner_text()
    press(root, "p")
    assert root.get_attribute("data-selected") == "moment"
    assert "together" in detail.inner_text()
    assert "whole: root, unit 1" in detail.inner_text()
    press(root, "Escape")
    assert root.get_attribute("data-selected") is None
    (forward,) = (s for s in widget.timeline.spans if (s.row, s.kind) == (3, "forward"))
    middle = (forward.start_s + forward.end_s) / 2 / widget.timeline.step_s
    x = LEFT + middle * (RIGHT - LEFT)
    top = LEGEND_HEIGHT + HEAD
    hover(root, x, top + 3.5 * row_height(5))
    assert root.get_attribute("data-selected") == "simulated unit 2 forward"
    hover(root, x, top + 5 * row_height(5) + 60)
    assert "Simulated at" in detail.inner_text()
    root.locator("summary").click()
    root.locator("tbody tr").first.wait_for()
    assert root.locator("tbody tr").count() == len(widget.timeline.spans)


@pytest.mark.browser
@pytest.mark.ranks
def test_measured_is_drawn_next_to_simulated(show: Show, run: Run, artifacts: Path) -> None:
    widget = unit_life(run, step=1)
    for dark in (False, True):
        root = show(widget, dark=dark)
        press(root, "ArrowRight", "PageDown", "ArrowDown")
        assert (root.get_attribute("data-selected") or "").startswith("rank 0 blocks.0")
        name = f"widget_unit_life_run_{'dark' if dark else 'light'}.png"
        root.screenshot(path=artifacts / name)
    height = Layout(widget.panels(), widget.settings["parameter_bytes"]).height
    ratio = root.locator("canvas").evaluate("canvas => canvas.style.aspectRatio")
    assert [float(part) for part in ratio.split("/")] == [WIDTH, height]
    measured = read_step(run, 1).timelines
    assert root.get_attribute("data-measured-peak-bytes") == str(round(measured[0].peak_bytes))
    root.get_by_role("radiogroup", name="Rank").get_by_label("1").check()
    assert root.get_attribute("data-measured-peak-bytes") == str(round(measured[1].peak_bytes))
    assert "Measured, rank 1" in (root.locator("canvas").get_attribute("aria-label") or "")
    root.get_by_role("slider", name="Units").press("Home")
    messages = [
        root.get_attribute(f"data-{what}") or "" for what in ("messages", "measured-messages")
    ]
    assert [json.loads(text)["gather"] for text in messages] == [3, 9]
