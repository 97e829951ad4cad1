"""Links between the notebooks, at the top and the end of each chapter and lab."""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from autograder.build.cells import END_LINKS
from autograder.course.pages import FRONT_PAGE, Course, Page

MAP = "Map of the course"
HEADING = re.compile(r"\A# .*\n*")
LINK = r"\[[^\]\n]*\]\([^)\n]*\)"
LINKS = re.compile(rf"{LINK}(?: · {LINK})*(?:\n\n|\Z)")


def add_links(notebook: NotebookNode, page: Page, course: Course, *, has_map: bool) -> None:
    """Add links below the heading of ``page``'s notebook, and in a separate cell at its end."""
    links = _line_of_links(page, course, has_map)
    first = notebook.cells[0]
    heading = HEADING.match(first.source) if first.cell_type == "markdown" else None
    if links and heading:
        first.source = f"{heading[0].strip()}\n\n{links}\n\n{first.source[heading.end() :]}".strip()
    end = "\n\n".join(filter(None, (_next_steps(page, course, has_map), links)))
    if end:
        notebook.cells.append(new_markdown_cell(f"---\n\n{end}", id=END_LINKS))


def without_links(source: str) -> str:
    """The text of a first cell before ``add_links``."""
    heading = HEADING.match(source)
    if not heading:
        return source
    text = source[heading.end() :]
    return f"{heading[0].strip()}\n\n{LINKS.sub('', text, count=1) if LINKS.match(text) else text}"


def link(page: Page, start: PurePosixPath, words: str = "") -> str:
    """A Markdown link to ``page`` from the notebook ``start``."""
    return f"[{words or page.title}]({os.path.relpath(page.path, start.parent)})"


def _line_of_links(page: Page, course: Course, has_map: bool) -> str:
    """ "← 03 Ring all-reduce · Map of the course · Lab 04 ZeRO · 05 FSDP →" """
    lab = course.labs.get(page.name)
    before = course.chapter(page.name) if page == lab else course.neighbor(page.name, -1)
    after = course.neighbor(page.name, 1)
    links = [
        link(before, page.path, f"← {before.title}") if before else "",
        _link_to_map(page) if has_map else "",
        link(lab, page.path) if lab and page != lab else "",
        link(after, page.path, f"{after.title} →") if after else "",
    ]
    return " · ".join(filter(None, links))


def _next_steps(page: Page, course: Course, has_map: bool) -> str:
    lab, after = course.labs.get(page.name), course.neighbor(page.name, 1)
    if page == lab:
        submit = (
            "When all checks pass, submit this notebook as your course asks. If the toolbar above "
            "has a *Validate* button, as on a hub, press it first."
        )
        then = f" Continue with {link(after, page.path)}." if after else ""
        done = (
            f" The {_link_to_map(page, MAP.lower())} shows what you have done." if has_map else ""
        )
        return f"**Next.** {submit}{then}{done}"
    steps = [link(step, page.path) for step in (lab, after) if step]
    return f"**Next:** {', then '.join(steps)}." if steps else ""


def _link_to_map(page: Page, words: str = MAP) -> str:
    return f"[{words}]({os.path.relpath(f'{FRONT_PAGE}.ipynb', page.path.parent)})"
