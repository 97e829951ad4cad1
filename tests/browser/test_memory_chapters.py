"""A student reads the chapters on memory and bytes, runs them, and plays with the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.jupyterlab import Cell, JupyterLab, Notebook

pytestmark = [pytest.mark.browser, pytest.mark.ranks]

WIDGETS = {  # chapter: the pictures it has to have
    "01_one_device": {"memory-timeline"},
    "02_dp_vs_ddp": {"timeline", "traffic-map"},
    "04_zero": {"memory-bars", "shard-map"},
    "06_offload": {"memory-bars", "offload-times"},
}
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module", params=WIDGETS)
def chapter(desk: JupyterLab, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """After Run All."""
    chapter = desk.open(f"course/chapters/{request.param}.ipynb")
    chapter.run_all()
    yield chapter
    chapter.close()


def with_pictures(chapter: Notebook, *kinds: str) -> list[Cell]:
    return [
        cell
        for cell in chapter.cells()
        if any(kind in output.get("data", {}) for output in cell.outputs() for kind in kinds)
    ]


def shown(cell: Cell) -> Locator:
    return cell.element


def widget_in(cell: Cell) -> Locator:
    found = cell.element.locator(".shardlab-widget")
    expect(found).to_have_count(1)
    return found


def test_it_runs_clean(lab: JupyterLab, chapter: Notebook) -> None:
    assert chapter.complaints() == []
    assert lab.errors == []


def test_in_both_themes(lab: JupyterLab, chapter: Notebook, artifacts: Path) -> None:
    number = Path(chapter.path).stem[:2]
    cells = with_pictures(chapter, "image/svg+xml")  # plots, and widgets, which have one too
    views = {f"chapter-{number}-cell-{cell.index}": partial(shown, cell) for cell in cells}
    lab.photograph(artifacts, views)


def test_its_pictures_answer_without_the_kernel(lab: JupyterLab, chapter: Notebook) -> None:
    """The kernel is ended, and then the keyboard moves what there is to move."""
    chapter.end_kernel()
    seen = set()
    for cell in with_pictures(chapter, VIEW):
        widget = widget_in(cell)
        seen.add(widget.get_attribute("data-widget"))
        widget.locator(".shardlab-plot").focus()
        before = picture(widget)
        lab.page.keyboard.press("ArrowRight")
        assert picture(widget) != before, f"cell {cell.index}: a key changes nothing"
        for slider in widget.get_by_role("slider").all():
            slider.focus()
            before = picture(widget)
            at_end = slider.evaluate("(input) => input.value === input.max")
            lab.page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
            assert picture(widget) != before, f"cell {cell.index}: a slider changes nothing"
    assert seen >= WIDGETS[Path(chapter.path).stem]
    assert lab.errors == []


def picture(widget: Locator) -> str:
    """What the canvas shows and what is written beside it."""
    return str(
        widget.evaluate(
            "(root) => root.querySelector('canvas').toDataURL() + JSON.stringify(root.dataset)"
        )
    )
