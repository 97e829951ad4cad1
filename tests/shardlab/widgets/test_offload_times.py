"""The offload picture: its numbers, the same in Python and JavaScript."""

from __future__ import annotations

import random
from dataclasses import asdict
from xml.etree import ElementTree

import pytest
import traitlets
from playwright.sync_api import Browser

from shardlab.estimate.offload import PLACEMENTS
from shardlab.widgets import offload_times
from shardlab.widgets.offload_model import ROWS, held_bytes, outcome, outcomes
from shardlab.widgets.picture import asset
from tests.shardlab.widgets.interaction import Show, press

GIVEN = offload_times().settings


def random_settings(rng: random.Random) -> dict[str, object]:
    return {
        "parameters": 10 ** rng.uniform(7, 12),
        "tokens_per_step": 10 ** rng.uniform(2, 7),
        "device_flops_per_s": 10 ** rng.uniform(11, 15),
        "link_bytes_per_s": 10 ** rng.uniform(9, 12),
        "host_parameters_per_s": 10 ** rng.uniform(8, 11),
        "nvme_bytes_per_s": 10 ** rng.uniform(8, 11),
        "world_size": rng.randrange(1, 1025),
        "capacity_bytes": 10 ** rng.uniform(9, 12),
        "layers": rng.randrange(1, 200),
        "overlap": rng.random() < 0.5,
        "delayed_update": rng.random() < 0.5,
    }


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("delayed", [True, False])
def test_bars_fill_the_step(placement: str, overlap: bool, delayed: bool) -> None:
    """Each is within its part, and the last one ends with the step."""
    result = outcome(GIVEN | {"overlap": overlap, "delayed_update": delayed}, placement)
    for bar in result.bars:
        start_s, end_s = result.parts[bar.part]
        assert start_s - 1e-9 <= bar.start_s < bar.end_s <= end_s + 1e-9
        assert bar.piece in ROWS
    assert max(bar.end_s for bar in result.bars) == pytest.approx(result.step_s)
    computing = [bar for bar in result.bars if bar.piece == "compute"]
    assert sum(bar.end_s - bar.start_s for bar in computing) == pytest.approx(result.compute_s)
    if not overlap and not (delayed and placement == "zero-offload"):
        edges = [0.0, *(bar.end_s for bar in result.bars)]
        assert [bar.start_s for bar in result.bars] == pytest.approx(edges[:-1])


def test_13_billion_parameters_fit_on_one_32_gb_device() -> None:
    """ZeRO-Offload, arXiv 2101.06840: 13B on one V100 with 32 GB, 16Ψ = 208 GB without."""
    fitting = {name: held_bytes(13e9, name, 1, 40)[0] for name in PLACEMENTS}
    assert fitting["device"] == 208e9
    assert fitting["zero-offload"] == 26e9 < 32e9
    assert fitting["nvme"] == 4 * 13e9 / 40


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_bytes_of_all_places_add_up(placement: str) -> None:
    """16Ψ on one rank; with offloaded parameters, one layer and its gradients count twice."""
    twice = 4 * 1e9 / 10 if placement in ("parameters", "nvme") else 0
    assert sum(held_bytes(1e9, placement, 1, 10)) == 16e9 + twice


def test_the_ratio_shrinks_with_the_batch() -> None:
    small, large = (outcomes(GIVEN | {"tokens_per_step": tokens}) for tokens in (1024, 1024 * 1024))
    for name in PLACEMENTS[1:]:
        assert (
            small[name].step_s / small["device"].step_s
            > large[name].step_s / large["device"].step_s
        )


def test_sliders_include_the_given_values() -> None:
    widget = offload_times(1.3e9, tokens_per_step=3000, world_size=6)
    values = {name: values for name, _, values, _ in widget.scene["sliders"]}
    assert 1.3e9 in values["parameters"]
    assert 3000 in values["tokens_per_step"]
    assert 6 in values["world_size"]
    assert all(each == sorted(each) for each in values.values())


def test_the_static_picture_follows_the_settings() -> None:
    widget = offload_times()
    ElementTree.fromstring(before := widget.static_svg())
    assert "optimizer on host 12.3 s (fits)" in widget.summary()
    widget.settings = {"placement": "nvme", "world_size": 8}
    assert widget.settings["parameters"] == GIVEN["parameters"]
    assert widget.static_svg() != before
    with pytest.raises(traitlets.TraitError, match="link_bytes_per_s=0"):
        widget.settings = {"link_bytes_per_s": 0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"placement": "cloud"}, "placement='cloud': must be one of 'device'"),
        ({"world_size": 0}, "world_size=0"),
        ({"layers": 0}, "layers=0"),
        ({"capacity_bytes": -1}, "above 0"),
    ],
)
def test_invalid_arguments_raise(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        offload_times(**given)


@pytest.mark.browser
def test_python_and_javascript_compute_the_same(browser: Browser) -> None:
    rng = random.Random(6)
    cases = [random_settings(rng) for _ in range(60)]
    page = browser.new_page()
    from_js = page.evaluate(
        f"""(cases) => {{
            {asset("offload_model.js")}
            return cases.map((each) => PLACEMENTS.map((name) => offloadOutcome(each, name)));
        }}""",
        cases,
    )
    page.close()
    for settings, by_placement in zip(cases, from_js, strict=True):
        for (name, mine), theirs in zip(outcomes(settings).items(), by_placement, strict=True):
            expected = asdict(mine)
            bars = [tuple(bar.values()) for bar in expected.pop("bars")]
            assert [(b["part"], b["piece"]) for b in theirs["bars"]] == [bar[:2] for bar in bars]
            ends = [edge for b in theirs["bars"] for edge in (b["start"], b["end"])]
            assert ends == pytest.approx([edge for bar in bars for edge in bar[2:]], abs=1e-9), name
            for part, span in expected.pop("parts").items():
                assert theirs["parts"][part] == pytest.approx(span)
            for key, value in expected.items():
                assert theirs[key] == pytest.approx(value), (name, key)


@pytest.mark.browser
def test_a_slider_changes_the_picture_immediately(show: Show) -> None:
    root = show(offload_times())
    image = "canvas => canvas.toDataURL()"
    before = root.locator("canvas").evaluate(image)
    root.get_by_role("slider", name="Parameters").focus()
    root.page.keyboard.press("ArrowRight")
    settings = root.page.evaluate("window.model.get('settings')")
    assert settings["parameters"] == 12.5e9
    assert float(root.get_attribute("data-step-s") or 0) == pytest.approx(
        outcome(settings, "zero-offload").step_s
    )
    assert root.get_attribute("data-fits") == "true"
    assert root.locator("canvas").evaluate(image) != before
    root.get_by_role("radio", name="sequential").check()
    step_s = outcome(settings | {"overlap": False}, "zero-offload").step_s
    assert float(root.get_attribute("data-step-s") or 0) == pytest.approx(step_s)
    root.page.evaluate(
        "window.model.set('settings', {...window.model.get('settings'), parameters: 1e7})"
    )
    assert root.get_attribute("data-parameters") == "10000000"  # the kernel may set it too


@pytest.mark.browser
def test_mouse_and_keyboard_show_placements_and_bars(show: Show) -> None:
    widget = offload_times()
    root = show(widget)
    detail = root.locator(".shardlab-detail")
    press(root, "ArrowRight", "End")
    assert root.get_attribute("data-selected") == "update to_device"
    assert "host → device: parameters, 1.25 s (20 GB at 16 GB/s), in update" in detail.inner_text()
    press(root, "ArrowUp")
    assert root.get_attribute("data-placement") == "swap"
    assert "40 GB on the device, 120 GB on the host: does not fit in 32 GB" in detail.inner_text()
    scene = widget.scene
    root.locator("canvas").click(position={"x": 300, "y": scene["all_top"] + 4.5 * scene["row"]})
    assert root.get_attribute("data-placement") == "nvme"
    assert root.get_by_role("radio", name="on NVMe").is_checked()
    assert "on NVMe 100 s (fits)" in (root.locator("canvas").get_attribute("aria-label") or "")
