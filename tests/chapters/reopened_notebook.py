"""Opens a chapter that has run in JupyterLab again, as a student does the next day."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import nbformat
from nbformat.sign import NotebookNotary
from playwright.sync_api import Locator, expect

from tests.browser.accessibility import serious_findings
from tests.browser.jupyterlab import Cell, JupyterLab, Notebook
from tests.chapters.running_chapter import Chapter

VIEW = "application/vnd.jupyter.widget-view+json"


def reopen(chapter: Chapter, lab: JupyterLab) -> Notebook:
    """The notebook as saved, with its pictures, and with a new kernel that knows none of them."""
    path = lab.server.root / "course/chapters" / f"{chapter.name}-ran.ipynb"
    nbformat.write(chapter.notebook, path)
    # JupyterLab shows live widgets only in trusted notebooks; one that a student ran is trusted.
    notary = NotebookNotary(data_dir=str(lab.server.home / ".local/share/jupyter"))
    notary.sign(nbformat.read(path, as_version=4))
    notebook = lab.open(f"course/chapters/{path.name}")
    assert notebook.errors_and_stderr() == []
    return notebook


def try_the_pictures(
    chapter: Chapter, lab: JupyterLab, artifacts: Path, *, with_axe: bool = False
) -> set[str]:
    """Tries every picture by key and slider, without its kernel; returns the kinds of pictures.

    with_axe: also looks for serious findings of axe-core.
    """
    notebook = reopen(chapter, lab)
    seen = set()
    for cell in with_pictures(notebook, VIEW):
        widget = widget_in(cell)
        seen.add(widget.get_attribute("data-widget") or "")
        play_with(widget, lab, f"cell {cell.index}")
    if with_axe:
        ours = (
            ".jp-Cell-outputArea",
            ".jp-RenderedMarkdown",
        )  # without 40 editors: four times as fast
        panel = f"[id='{notebook.panel}']"
        assert serious_findings(lab.page, ", ".join(f"{panel} {each}" for each in ours)) == []
    lab.screenshot_in_both_themes(artifacts, views_of(notebook, chapter.name[:2]))
    assert lab.errors == []
    notebook.close()
    return seen


def widget_in(cell: Cell) -> Locator:
    """The cell's widget; scrolls again if pictures drawn above have pushed it out of view."""
    for _ in range(18):
        widget = cell.element.locator(".shardlab-widget")
        with contextlib.suppress(AssertionError):
            expect(widget).to_have_count(1, timeout=5_000)
            return widget
    shown = cell.output.inner_html()[:2_000]
    raise AssertionError(f"cell {cell.index} shows {widget.count()} pictures, not one: {shown}")


def play_with(widget: Locator, lab: JupyterLab, name: str) -> None:
    widget.locator(".shardlab-plot").focus()
    before = picture(widget)
    lab.page.keyboard.press("ArrowRight")
    assert picture(widget) != before, f"{name}: a key changes nothing"
    for slider in widget.get_by_role("slider").all():
        slider.focus()
        before = picture(widget)
        at_end = slider.evaluate("(input) => input.value === input.max")
        lab.page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
        assert picture(widget) != before, f"{name}: a slider changes nothing"


def picture(widget: Locator) -> str:
    """The canvas's image and the widget's data attributes."""
    return str(
        widget.evaluate(
            "(root) => root.querySelector('canvas').toDataURL() + JSON.stringify(root.dataset)"
        )
    )


def views_of(notebook: Notebook, number: str) -> dict[str, partial[Locator]]:
    # Plots and widgets: both have an SVG.
    cells = with_pictures(notebook, "image/svg+xml")
    return {f"chapter-{number}-cell-{cell.index}": partial(element_of, cell) for cell in cells}


def element_of(cell: Cell) -> Locator:
    return cell.element


def with_pictures(notebook: Notebook, kind: str) -> list[Cell]:
    return [
        cell
        for cell in notebook.cells()
        if any(kind in output.get("data", {}) for output in cell.outputs())
    ]
