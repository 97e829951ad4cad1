"""The front page's map of the course, as a Markdown cell."""

from __future__ import annotations

import math
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import PurePosixPath

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from autograder.build.map_layout import Place, arrows, places
from autograder.course.pages import FRONT_PAGE, WORDS_PER_MINUTE, Course, Page

BOX_PX, LINE_PX, GAP_PX = 52, 20, 28  # a box, one more line in it, and what is between rows
INK = "#888888"  # legible on light and dark pages
BOX_STYLE = (
    f"box-sizing: border-box; border: 1px solid {INK}; border-radius: 6px; padding: 6px 4px; "
    "background-color: rgba(128, 128, 128, 0.1); font-size: 12px; line-height: 1.6; "
    "text-align: center"
)


@dataclass(frozen=True)
class Times:
    """Times from `python -m autograder times`. ``run_s``: seconds by relative notebook path."""

    machine: str
    run_s: Mapping[str, float]

    def minutes(self, page: Page) -> int:
        """Time to read ``page`` and, if it has been measured, to run it; rounded up."""
        return math.ceil((page.reading_s + self.run_s.get(str(page.path), 0.0)) / 60)


def add_map(front_page: NotebookNode, course: Course, times: Times) -> None:
    """Insert the map after the first cell."""
    source = f"{course_map(course, times)}\n\n{minutes_note(times)}"
    front_page.cells.insert(1, new_markdown_cell(source, id="map-of-the-course"))


def course_map(course: Course, times: Times) -> str:
    """Boxes with links and, behind them, arrows from each chapter to those that need it.

    Markdown cells may contain positioned HTML but no SVG, so the arrows are an image. The map needs
    no kernel. GitHub ignores the positions and lists the links one below another.
    """
    here = PurePosixPath(f"{FRONT_PAGE}.ipynb")
    needs = {page.name: page.needs for page in course.chapters}
    placed = places(needs)
    widths = {
        row: min(32.0, 98 / boxes)
        for row, boxes in Counter(place.row for place in placed.values()).items()
    }
    rows = _rows({page: placed[page.name].row for page in course.chapters}, widths)
    boxes = []
    for page in course.chapters:
        place, lab = placed[page.name], course.labs.get(page.name)
        text = f"{_html_link(page, here)}<br>{times.minutes(page)} min"
        if lab:
            words = _html_link(lab, here, f"lab {page.number}")
            text += f" · {words} {times.minutes(lab)} min"
        width, (top, bottom) = widths[place.row], rows[place.row]
        style = (
            f"position: absolute; left: {100 * place.x - width / 2:.1f}%; width: {width:.1f}%; "
            f"top: {top}px; min-height: {bottom - top}px; {BOX_STYLE}"
        )
        boxes.append(f'<div style="{style}">{text}</div>')
    height = max(bottom for _, bottom in rows.values())
    image = (
        f'<img alt="" src="{_arrows(placed, arrows(needs), rows)}" style="position: absolute; '
        f'left: 0px; top: 0px; width: 100%; height: {height}px; max-width: 100%">'
    )
    outer = f'<div style="position: relative; height: {height}px; width: 100%; max-width: 900px">'
    return "\n".join([outer, image, *boxes, "</div>"])


def _rows(row_of: Mapping[Page, int], widths: Mapping[int, float]) -> dict[int, tuple[int, int]]:
    """{row: (top, bottom)} in pixels. A row is higher if, on a small screen, a title needs two
    lines: in 24 % of it there is room for 22 letters."""
    rows: dict[int, tuple[int, int]] = {}
    top = 0
    for row in sorted(widths):
        longest = max(len(page.title) for page, its in row_of.items() if its == row)
        rows[row] = (top, top + BOX_PX + LINE_PX * (longest > 0.9 * widths[row]))
        top = rows[row][1] + GAP_PX
    return rows


def _html_link(page: Page, start: PurePosixPath, words: str = "") -> str:
    href = os.path.relpath(page.path, start.parent)
    return f'<a href="{href}">{escape(words or page.title)}</a>'


def _arrows(
    placed: Mapping[str, Place],
    pairs: Sequence[tuple[str, str]],
    rows: Mapping[int, tuple[int, int]],
) -> str:
    """An SVG image as a data URI. It is as wide as the map, so its curves stretch with the page."""
    curves, heads = [], []
    for start, end in pairs:
        x0, y0 = 1000 * placed[start].x, rows[placed[start].row][1]
        x1, y1 = 1000 * placed[end].x, rows[placed[end].row][0]
        bend = (y1 - y0) / 2
        curves.append(f"M{x0:.0f} {y0}C{x0:.0f} {y0 + bend} {x1:.0f} {y1 - bend} {x1:.0f} {y1}")
        heads.append(f"M{x1 - 6:.0f} {y1 - 9}L{x1:.0f} {y1}L{x1 + 6:.0f} {y1 - 9}")
    height = max(bottom for _, bottom in rows.values())
    path = f'<path d="{"".join([*curves, *heads])}" vector-effect="non-scaling-stroke"/>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {height}" '
        f'preserveAspectRatio="none" fill="none" stroke="{INK}" stroke-width="1.5">{path}</svg>'
    )
    return "data:image/svg+xml;base64," + b64encode(svg.encode()).decode()


def minutes_note(times: Times) -> str:
    return (
        f"Minutes: {WORDS_PER_MINUTE} words a minute, plus the time to run all cells "
        f"({times.machine}). The time for writing a lab's answers is not included. A long "
        "chapter can be read in parts: to go on, select the cell where you stopped and choose "
        "*Run → Run All Above Selected Cell*."
    )
