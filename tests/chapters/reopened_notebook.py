"""Reopens a chapter that has run, as a student does the next day."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nbformat
from nbformat.sign import NotebookNotary
from playwright.sync_api import Locator, expect

from tests.browser.accessibility import serious_findings
from tests.browser.jupyterlab import Cell, JupyterLab, Notebook
from tests.chapters.running_chapter import Chapter

PREDICTIONS = re.compile("<(Prediction|Comparison): ")
VIEW = "application/vnd.jupyter.widget-view+json"
SIZE, SMALL = {"width": 1400, "height": 1000}, {"width": 1100, "height": 720}
MIN_TEXT_PX = 11

# Makes the page record the smallest text drawn on a canvas from then on: [pixels, text].
_RECORD_SMALLEST_TEXT = """() => {
  window.course.least = [Infinity, ""];
  for (const kind of [CanvasRenderingContext2D, OffscreenCanvasRenderingContext2D]) {
    const fillText = (kind.prototype.plain ??= kind.prototype.fillText);
    kind.prototype.fillText = function (text, ...rest) {
      const size = parseFloat(/([\\d.]+)px/.exec(this.font)[1]);
      const px = (size * this.getTransform().d) / devicePixelRatio;
      if (px < course.least[0]) course.least = [px, text];
      return fillText.call(this, text, ...rest);
    };
  }
}"""
# Lists what does not fit in its output, and text of plots that is too small (except exponents).
_TOO_WIDE_OR_SMALL = """(area, least) => {
  const wide = [...area.querySelectorAll(".jp-OutputArea-output, .shardlab-widget, .shardlab-plot")]
    .filter((part) => part.scrollWidth > part.clientWidth + 1)
    .map((part) => `${part.className} is ${part.scrollWidth} px wide, not ${part.clientWidth}`);
  const small = [...area.querySelectorAll(".shardlab-plot-svg text")].flatMap((text) => {
    const parts = [text, ...text.children];
    const sizes = parts.map((part) => parseFloat(getComputedStyle(part).fontSize));
    const { c, d } = text.getScreenCTM(); // of the text's height, also where it is turned
    const px = Math.max(...sizes.slice(text.children.length ? 1 : 0)) * Math.hypot(c, d);
    return px < least ? [`${text.textContent}: ${px.toFixed(1)} px`] : [];
  });
  return [...wide, ...small];
}"""
# Lists controls that are out of view when their picture is scrolled to its top, or that take more
# than half of the window.
_CONTROLS_LOST = """(area) => {
  const notebook = area.closest(".jp-WindowedPanel-outer");
  const top = (part) => part.getBoundingClientRect().top;
  return [...area.querySelectorAll(".shardlab-widget")].flatMap((widget) => {
    const name = widget.dataset.widget;
    const plot = widget.querySelector(".shardlab-plot");
    const head = ":scope > .shardlab-head:has(button, select)";
    const controls = widget.querySelector(`:scope > .shardlab-sticky, ${head}`);
    const others = [...widget.querySelectorAll("input, select, button")];
    if (others.some((each) => !controls?.contains(each))) return [`${name} has other controls`];
    if (!controls) return [];
    plot.scrollIntoView({ block: "start" });
    const hidden = top(notebook) - top(controls);
    const share = controls.offsetHeight / notebook.clientHeight;
    return [
      ...(hidden > 1 ? [`${name}: ${hidden.toFixed()} px of the controls are out of view`] : []),
      ...(share > 0.5 ? [`${name}: controls take ${share.toFixed(2)} of the window`] : []),
    ];
  });
}"""


def reopen(chapter: Chapter, lab: JupyterLab) -> Notebook:
    """The notebook as saved, with its pictures and a new kernel without their widgets."""
    path = lab.server.root / "course/chapters" / f"{chapter.name}-ran.ipynb"
    nbformat.write(chapter.notebook, path)
    # JupyterLab shows live widgets only in trusted notebooks; one that a student ran is trusted.
    notary = NotebookNotary(data_dir=str(lab.server.home / ".local/share/jupyter"))
    notary.sign(nbformat.read(path, as_version=4))
    notebook = lab.open(f"course/chapters/{path.name}")
    assert notebook.errors_and_stderr() == []
    return notebook


def try_the_pictures(
    chapter: Chapter,
    lab: JupyterLab,
    artifacts: Path,
    *,
    also: Callable[[Notebook], None] = lambda notebook: None,
    with_axe: bool = False,
) -> set[str]:
    """Operates every picture by keyboard, without its kernel; returns the kinds of pictures.

    also: what else to try in the open notebook.
    with_axe: also looks for serious findings of axe-core.
    """
    notebook = reopen(chapter, lab)
    opener = notebook.cell("<details open>").element.locator("[data-widget='opener']")
    expect(opener.locator(".shardlab-plot > svg")).to_be_visible()  # in its shadow root
    seen = set()
    for cell in with_pictures(notebook, VIEW):
        widget = cell.widget()
        seen.add(widget.get_attribute("data-widget") or "")
        play_with(widget, lab, f"cell {cell.index}")
    also(notebook)
    if with_axe:
        # Without the 40 editors: with them it would take four times as long.
        ours = (".jp-Cell-outputArea", ".jp-RenderedMarkdown")
        panel = f"[id='{notebook.panel}']"
        assert serious_findings(lab.page, ", ".join(f"{panel} {each}" for each in ours)) == []
    lab.screenshot_in_both_themes(artifacts, views_of(notebook, chapter.name[:2]))
    assert_everything_fits(notebook, lab, artifacts / f"chapter-{chapter.name[:2]}-small")
    assert lab.errors == []
    notebook.close()
    return seen


def assert_everything_fits(notebook: Notebook, lab: JupyterLab, shots: Path) -> None:
    """In a small window nothing is cut off or illegible, and controls stay in view."""
    lab.page.evaluate(_RECORD_SMALLEST_TEXT)
    lab.page.set_viewport_size(SMALL)
    wrong = {}
    for cell in with_pictures(notebook, "image/svg+xml"):
        area = cell.output
        lab.settle()
        if lab.takes_screenshots:
            area.screenshot(path=f"{shots}-cell-{cell.index}.png")
        wrong[cell.index] = area.evaluate(_TOO_WIDE_OR_SMALL, MIN_TEXT_PX - 0.05)
        wrong[cell.index] += area.evaluate(_CONTROLS_LOST)
    least_px, text = lab.page.evaluate("course.least")
    lab.page.set_viewport_size(SIZE)
    cells = {index: found for index, found in wrong.items() if found}
    assert cells == {}, cells
    assert least_px is None or least_px > MIN_TEXT_PX - 0.05, text


def play_with(widget: Locator, lab: JupyterLab, name: str) -> None:
    if widget.get_attribute("data-state") == "waiting":  # for a guess
        widget.get_by_role("button").click()
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
    # Both plots and widgets have an SVG output.
    cells = with_pictures(notebook, "image/svg+xml")
    return {f"chapter-{number}-cell-{cell.index}": partial(element_of, cell) for cell in cells}


def element_of(cell: Cell) -> Locator:
    return cell.element


def with_pictures(notebook: Notebook, kind: str) -> list[Cell]:
    """Cells with an output of this type, except those of predictions and comparisons."""
    return [
        cell
        for cell in notebook.cells()
        if not PREDICTIONS.search(cell.text())
        and any(kind in output.get("data", {}) for output in cell.outputs())
    ]
