"""Links between notebooks, and the front page's map: made from the folders."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.build.front_page import Times, course_map, minutes_note
from autograder.build.map_layout import arrows, places
from autograder.build.navigation import add_links
from autograder.build.times import read_times
from autograder.course.pages import Course, course

REPO = Path(__file__).parents[3]
FIRST = "course/chapters/00_first.ipynb"
SECOND = "course/chapters/02_second.ipynb"
LAB = "labs/02_second/02_second.ipynb"
NOTEBOOKS = {
    PurePosixPath(FIRST): ["# 00 · First\n\nText.", "1 + 1"],
    PurePosixPath(SECOND): ["# 02 · Second\n\n**You need:** [00](00_first.ipynb)."],
    PurePosixPath(LAB): ["# Lab 02 · Second\n\n**You need:** [02](../x/02_second.ipynb)."],
}


@pytest.fixture
def small() -> Course:
    return course(NOTEBOOKS)


def linked(course: Course, path: str, *, has_map: bool = True) -> NotebookNode:
    first, *others = NOTEBOOKS[PurePosixPath(path)]
    notebook = new_notebook(cells=[new_markdown_cell(first), *map(new_code_cell, others)])
    pages = {str(page.path): page for page in (*course.chapters, *course.labs.values())}
    add_links(notebook, pages[path], course, has_map=has_map)
    return notebook


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", text)


def test_a_chapter_links_to_its_neighbors_its_lab_and_the_map(small: Course) -> None:
    notebook = linked(small, SECOND)
    lab = "../../labs/02_second/02_second.ipynb"
    line = notebook.cells[0].source.splitlines()[2]
    assert links(line) == ["00_first.ipynb", "../front_page.ipynb", lab]
    assert line.startswith("[← 00 First](")
    assert notebook.cells[-1].source.endswith(line)
    assert f"**Next:** [Lab 02 Second]({lab})." in notebook.cells[-1].source


def test_a_lab_says_what_to_do_next(small: Course) -> None:
    notebook = linked(small, LAB)
    assert links(notebook.cells[0].source.splitlines()[2]) == [
        "../../course/chapters/02_second.ipynb",
        "../../course/front_page.ipynb",
    ]
    # Only a hub shows the button: `make lab` hides what belongs to nbgrader.
    assert "If the toolbar above has a *Validate* button" in notebook.cells[-1].source


def test_text_and_code_are_unchanged(small: Course) -> None:
    notebook = linked(small, FIRST)
    assert notebook.cells[0].source.startswith("# 00 · First\n\n[Map")
    assert notebook.cells[0].source.endswith("→](02_second.ipynb)\n\nText.")
    assert notebook.cells[1].source == "1 + 1"


def test_without_a_front_page_nothing_links_to_it(small: Course) -> None:
    assert "front_page" not in str(linked(small, SECOND, has_map=False))


def test_a_map_with_links_and_minutes(small: Course) -> None:
    times = Times("a machine", {SECOND: 90.0})
    pictured = course_map(small, times)
    for page in (FIRST, SECOND, LAB):
        assert f'href="{os.path.relpath(page, "course")}"' in pictured
    assert "\n\n" not in pictured  # Markdown would end the HTML there
    words = re.sub(r"<[^>]*>", " ", pictured)
    assert re.search(r"02 Second\s+2 min ·\s+lab 02\s+1 min", words)
    assert "a machine" in minutes_note(times)


def test_transitive_arrows_are_left_out() -> None:
    needs = {"a": (), "b": ("a", "gone"), "c": ("a", "b"), "d": ("a",)}
    assert arrows(needs) == [("a", "b"), ("b", "c"), ("a", "d")]
    placed = places(needs)
    assert [placed[name].row for name in "abcd"] == [0, 1, 2, 1]
    assert placed["b"].x < placed["d"].x


def test_chapters_that_need_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="need each other: a, b"):
        arrows({"a": ("b",), "b": ("a",)})


BUILT = sorted({*REPO.glob("course/**/*.ipynb"), *REPO.glob("labs/*/*.ipynb")})


def test_every_link_between_built_notebooks_works() -> None:
    for path in (path for path in BUILT if ".ipynb_checkpoints" not in path.parts):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        found = [*links(text), *re.findall(r'href="([^"]+)"', text)]
        local = [link for link in found if link.endswith(".ipynb") and "://" not in link]
        assert len(local) >= 2, path
        assert [link for link in local if not (path.parent / link).exists()] == [], path


def test_every_chapter_and_lab_has_been_timed() -> None:
    made = {str(path.relative_to(REPO)) for path in [*REPO.glob("course/chapters/*.nb.py")]}
    made |= {f"labs/{path.parent.name}/{path.name}" for path in REPO.glob("solutions/*/*.nb.py")}
    missing = {name.replace(".nb.py", ".ipynb") for name in made} - set(read_times(REPO).run_s)
    assert missing == set(), "run `python -m autograder times NAME`"
