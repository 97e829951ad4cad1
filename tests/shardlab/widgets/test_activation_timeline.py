"""The activation timeline: shapes computed by hand, and the selection in Chromium."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from shardlab.display.palette import PARTS
from shardlab.trace.lifetimes import Life, Lifetimes
from shardlab.widgets import activation_timeline
from shardlab.widgets.activation_timeline import LEFT, RIGHT, TEMPORARY
from shardlab.widgets.ribbons import Box, ribbons
from tests.shardlab.widgets.interaction import Show, hover, press

MIB = 2**20


def training(blocks: int = 2, *, checkpoints: bool = False) -> Lifetimes:
    """Each block creates 1 MiB for a short time and keeps 2 MiB; with checkpoints it keeps 0.5 MiB
    and recomputes the others, before a gradient of 1 MiB."""
    lives: list[Life] = []
    at = 0

    def create(name: str, mib: float, lifetime: int, kind: str) -> None:
        nonlocal at
        lives.append(Life(name, "mm", int(mib * MIB), at, at + lifetime, kind))
        at += 1

    per_block = 3 if checkpoints else 1
    for block in range(blocks):
        lifetime = 2 * (blocks - block) - 1 + (blocks - block) * per_block
        create(f"blocks.{block}.up", 1, 2, "temporary")
        create(f"blocks.{block}", 0.5 if checkpoints else 2, lifetime, "kept")
    forward = at
    for block in reversed(range(blocks)):
        if checkpoints:
            create(f"blocks.{block}.up", 1, 2, "recomputed")
            create(f"blocks.{block}", 2, 2, "recomputed")
        create("", 1, 1, "temporary")
    phases = (("forward", 0, forward), ("backward", forward, at))
    return Lifetimes(tuple(lives), at, phases)


RUNS = {"whole": training(), "checkpointed": training(checkpoints=True)}


def test_live_kept_and_peak_bytes_of_the_drawn_runs() -> None:
    whole, checkpointed = RUNS.values()
    assert (whole.live_bytes / MIB).tolist() == [1, 3, 3, 5, 5, 3]
    assert whole.kept_bytes == 4 * MIB
    assert checkpointed.kept_bytes == 1 * MIB
    assert (checkpointed.peak_bytes, checkpointed.peak_at) == (4 * MIB, 5)


def test_a_ribbon_moves_down_when_one_below_it_is_freed() -> None:
    lives = (
        Life("a", "mm", 4, 0, 2, "kept"),
        Life("b", "mm", 2, 1, 4, "kept"),
        Life("c", "mm", 1, 1, 3, "temporary"),
        Life("d", "mm", 8, 2, 4, "recomputed"),
    )
    stack = ribbons(Lifetimes(lives, 4, ()))
    assert [(ribbon.life.module, ribbon.pieces) for ribbon in stack] == [
        ("a", ((0, 2, 0),)),
        ("b", ((1, 2, 4), (2, 4, 0))),
        ("d", ((2, 4, 2),)),
        ("c", ((1, 2, 6), (2, 3, 10))),
    ]
    box = Box(left=0, right=40, top=0, bottom=20, operators=4, max_bytes=20)
    assert stack[0].path(box) == "M0.0 20.0H20.0L20.0 16.0H0.0Z"


def test_colors_show_parts_and_kinds() -> None:
    widget = activation_timeline(RUNS)
    marks = widget.scene["ribbons"]
    assert {mark["fill"] for mark in marks} == {PARTS[0], PARTS[1], TEMPORARY}
    assert {mark["fill"] for mark in marks if mark.get("hatch")} == {PARTS[0], PARTS[1]}
    names = {mark["text"] for mark in widget.scene["background"] if mark["kind"] == "text"}
    assert {"blocks.0", "blocks.1", "recomputed", "temporary", "forward", "backward"} <= names
    alone = activation_timeline(RUNS["whole"])
    assert "recomputed" not in {mark.get("text") for mark in alone.scene["background"]}


def test_the_summary_and_the_static_picture() -> None:
    widget = activation_timeline(RUNS)
    assert widget.summary() == (
        "whole: peak 5.0 MiB, 4.0 MiB kept by forward; "
        "checkpointed: peak 4.0 MiB, 1.0 MiB kept by forward"
    )
    svg = activation_timeline({"<b>&": RUNS["whole"]}).static_svg()
    ElementTree.fromstring(svg)
    assert "<b>" not in svg


def test_invalid_runs_raise() -> None:
    with pytest.raises(ValueError, match="5 runs: pass 1 to 4"):
        activation_timeline({str(i): RUNS["whole"] for i in range(5)})
    with pytest.raises(ValueError, match="created no tensors"):
        activation_timeline(Lifetimes((), 0, ()))


@pytest.mark.browser
def test_mouse_and_keyboard_show_a_tensors_details(show: Show) -> None:
    widget = activation_timeline(RUNS)
    root = show(widget)
    assert root.get_attribute("data-peak-bytes") == f"{5 * MIB} {4 * MIB}"
    panel, scene = widget.scene["panels"][0], widget.scene

    def at(operator: float, mib: float) -> tuple[float, float]:
        x = LEFT + (operator + 0.5) / scene["operators"] * (RIGHT - LEFT)
        height = panel["bottom"] - panel["top"]
        return x, panel["bottom"] - mib * MIB / scene["max_bytes"] * height

    hover(root, *at(3, 3))
    text = root.locator(".shardlab-detail").inner_text()
    assert text == (
        "whole, operator 3, in forward: 5.0 MiB in 3 tensors · blocks.1: mm, 2,097,152 bytes "
        "(2.0 MiB), kept, created by operator 3, freed before 5"
    )
    press(root, "Escape", "p", "ArrowUp", "ArrowUp")
    assert root.locator(".shardlab-detail").inner_text() == text
    press(root, "ArrowRight", "ArrowRight")  # one operator too far for this tensor
    assert root.get_attribute("data-selected-tensor") is None
    assert root.get_attribute("data-selected-bytes") == str(3 * MIB)
    hover(root, *at(9, 1))  # the first run has ended there
    assert root.get_attribute("data-selected-operator") is None
    press(root, "PageDown", "PageDown", "p", "ArrowDown")
    assert root.get_attribute("data-selected-run") == "checkpointed"
    assert root.get_attribute("data-selected-kind") == "recomputed"


@pytest.mark.browser
def test_the_table_has_a_row_for_each_tensor(show: Show) -> None:
    root = show(activation_timeline(RUNS["whole"]))
    root.locator("summary").click()
    root.locator("tbody tr").first.wait_for()
    rows = [row.split() for row in root.locator("tbody tr").all_inner_texts()]
    assert rows[1] == ["blocks.0:", "mm", "kept", "2,097,152", "1", "6"]
    assert len(rows) == 6


@pytest.mark.screenshots
@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_screenshots(show: Show, artifacts: Path, dark: bool) -> None:
    root = show(activation_timeline(RUNS), dark=dark)
    press(root, "p", "ArrowUp")
    root.page.screenshot(
        path=artifacts / f"widget_activation_timeline_{'dark' if dark else 'light'}.png"
    )
