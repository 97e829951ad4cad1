"""The front page's map of the course and list of chapters and labs, as Markdown cells."""

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
from autograder.build.navigation import link
from autograder.course.pages import FRONT_PAGE, WORDS_PER_MINUTE, Course, Page

BOX_PX, ROW_PX = 52, 80  # height of a box, and distance between rows
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


def add_map(
    front_page: NotebookNode, course: Course, exercises: Mapping[str, int], times: Times
) -> None:
    """Insert the map and the list after the first cell. ``exercises``: number in each lab."""
    pictured = new_markdown_cell(course_map(course, times), id="map-of-the-course")
    listed = new_markdown_cell(course_list(course, exercises, times), id="list-of-the-course")
    front_page.cells[1:1] = [pictured, listed]


def course_map(course: Course, times: Times) -> str:
    """Boxes with links and, behind them, arrows from each chapter to those that need it.

    Markdown cells may contain positioned HTML but no SVG, so the arrows are an image. The map needs
    no kernel. GitHub ignores the positions and lists the links one below another.
    """
    here = PurePosixPath(f"{FRONT_PAGE}.ipynb")
    needs = {page.name: page.needs for page in course.chapters}
    placed = places(needs)
    width = min(40.0, 98 / max(Counter(place.row for place in placed.values()).values()))
    boxes = []
    for page in course.chapters:
        place, lab = placed[page.name], course.labs.get(page.name)
        text = f"{_html_link(page, here)}<br>{times.minutes(page)} min"
        if lab:
            words = _html_link(lab, here, f"lab {page.number}")
            text += f" · {words} {times.minutes(lab)} min"
        style = (
            f"position: absolute; left: {100 * place.x - width / 2:.1f}%; width: {width:.1f}%; "
            f"top: {place.row * ROW_PX}px; min-height: {BOX_PX}px; {BOX_STYLE}"
        )
        boxes.append(f'<div style="{style}">{text}</div>')
    height = max(place.row for place in placed.values()) * ROW_PX + BOX_PX
    image = (
        f'<img alt="" src="{_arrows(placed, arrows(needs), height)}" style="position: absolute; '
        f'left: 0px; top: 0px; width: 100%; height: {height}px; max-width: 100%">'
    )
    outer = f'<div style="position: relative; height: {height}px; width: 100%; max-width: 900px">'
    return "\n".join([outer, image, *boxes, "</div>"])


def _html_link(page: Page, start: PurePosixPath, words: str = "") -> str:
    href = os.path.relpath(page.path, start.parent)
    return f'<a href="{href}">{escape(words or page.title)}</a>'


def _arrows(placed: Mapping[str, Place], pairs: Sequence[tuple[str, str]], height: int) -> str:
    """An SVG image as a data URI. It is as wide as the map, so its curves stretch with the page."""
    curves, heads = [], []
    for start, end in pairs:
        x0, y0 = 1000 * placed[start].x, placed[start].row * ROW_PX + BOX_PX
        x1, y1 = 1000 * placed[end].x, placed[end].row * ROW_PX
        bend = (y1 - y0) / 2
        curves.append(f"M{x0:.0f} {y0}C{x0:.0f} {y0 + bend} {x1:.0f} {y1 - bend} {x1:.0f} {y1}")
        heads.append(f"M{x1 - 6:.0f} {y1 - 9}L{x1:.0f} {y1}L{x1 + 6:.0f} {y1 - 9}")
    path = f'<path d="{"".join([*curves, *heads])}" vector-effect="non-scaling-stroke"/>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {height}" '
        f'preserveAspectRatio="none" fill="none" stroke="{INK}" stroke-width="1.5">{path}</svg>'
    )
    return "data:image/svg+xml;base64," + b64encode(svg.encode()).decode()


def course_list(course: Course, exercises: Mapping[str, int], times: Times) -> str:
    here = PurePosixPath(f"{FRONT_PAGE}.ipynb")
    rows = [
        "| chapter | minutes | needs | lab | minutes | answers |",
        "|:---|---:|:---|:---|---:|---:|",
    ]
    for page in course.chapters:
        needed = filter(None, map(course.chapter, page.needs))
        needs = ", ".join(link(chapter, here, chapter.number) for chapter in needed)
        lab = course.labs.get(page.name)
        cells = [link(page, here), f"{times.minutes(page)}", needs, "", "", ""]
        if lab:
            cells[3:] = link(lab, here), f"{times.minutes(lab)}", f"{exercises[page.name]}"
        rows.append(f"| {' | '.join(cells)} |")
    note = (
        f"Minutes: {WORDS_PER_MINUTE} words a minute, plus the time to run all cells "
        f"({times.machine}). The time for writing a lab's answers is not included. A long "
        "chapter can be read in parts: to go on, select the cell where you stopped and choose "
        "*Run → Run All Above Selected Cell*."
    )
    return "\n".join([*rows, "", note])
