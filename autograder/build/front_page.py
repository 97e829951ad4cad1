"""The front page's map of the course and its list of chapters and labs, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from autograder.build.navigation import link
from autograder.course.pages import FRONT_PAGE, WORDS_PER_MINUTE, Course, Page


@dataclass(frozen=True)
class Times:
    """What `python -m autograder times` measured. ``run_s``: seconds by notebook, relative path."""

    machine: str
    run_s: Mapping[str, float]

    def minutes(self, page: Page) -> int:
        """To read ``page``, and to run it if it has been measured; rounded up."""
        return math.ceil((page.reading_s + self.run_s.get(str(page.path), 0.0)) / 60)


def add_map(
    front_page: NotebookNode, course: Course, exercises: Mapping[str, int], times: Times
) -> None:
    """After the first cell; ``exercises``: how many each lab has."""
    pictured = new_markdown_cell(course_map(course, exercises, times), id="map-of-the-course")
    listed = new_markdown_cell(course_list(course, exercises, times), id="list-of-the-course")
    front_page.cells[1:1] = [pictured, listed]


def course_map(course: Course, exercises: Mapping[str, int], times: Times) -> str:
    """A Mermaid diagram, which JupyterLab and GitHub draw: an arrow from each chapter to those
    that need it."""
    names = {page.name for page in course.chapters}
    boxes, arrows = [], []
    for page in course.chapters:
        lines = [f"<b>{page.title}</b>", f"{times.minutes(page)} min"]
        if lab := course.labs.get(page.name):
            lines[1] += f" · lab {times.minutes(lab)} min + {exercises[page.name]} answers"
        boxes.append(f'  c{page.number}["{"<br/>".join(lines)}"]')
        arrows += [f"  c{need[:2]} --> c{page.number}" for need in page.needs if need in names]
    told = "Chapters as boxes. An arrow points from a chapter to each that needs it."
    head = ["flowchart TD", "  accTitle: Map of the course", f"  accDescr: {told}"]
    return "\n".join(["```mermaid", *head, *boxes, *arrows, "```"])


def course_list(course: Course, exercises: Mapping[str, int], times: Times) -> str:
    here = PurePosixPath(f"{FRONT_PAGE}.ipynb")
    rows = ["| chapter | minutes | needs | lab | minutes |", "|:---|---:|:---|:---|:---|"]
    for page in course.chapters:
        needed = filter(None, map(course.chapter, page.needs))
        needs = ", ".join(link(each, here, each.number) for each in needed)
        lab = course.labs.get(page.name)
        cells = [link(page, here), f"{times.minutes(page)}", needs, "", ""]
        if lab:
            cells[3:] = link(lab, here), f"{times.minutes(lab)} + {exercises[page.name]} answers"
        rows.append(f"| {' | '.join(cells)} |")
    said = (
        f"Minutes: {WORDS_PER_MINUTE} words a minute, plus the time to run all cells "
        f"({times.machine}). The time to write a lab's answers is yours and comes on top."
    )
    return "\n".join([*rows, "", said])
