"""The first cell of each chapter and lab: objectives and prerequisites, in the same form."""

import re
from pathlib import PurePosixPath

import pytest

from autograder.build.points import TABLE
from autograder.build.text import notebook_from_text
from autograder.course.pages import page
from tests.chapters.running_chapter import ROOT

CHAPTERS = sorted((ROOT / "course/chapters").glob("*.nb.py"))
LABS = sorted((ROOT / "solutions").glob("*/*.nb.py"))
HEADING = {"chapters": "**After this chapter you can**", "labs": "**In this lab you**"}
MAX_WORDS = 20  # per objective


def name_of(path):
    return path.name.removesuffix(".nb.py")


@pytest.mark.parametrize("path", [*CHAPTERS, *LABS], ids=lambda path: path.parent.name + path.name)
def test_three_objectives_and_prerequisites(path):
    first = notebook_from_text(path).cells[0].source
    assert (TABLE in first) == (path in LABS)
    heading = HEADING["chapters" if path in CHAPTERS else "labs"]
    after = first.partition(f"\n{heading}\n\n")[2]
    objectives = re.match(r"(- .+;\n){2}- .+\.\n\n(?=\*\*You need:\*\* \S)", after)
    assert objectives, f"after {heading}: three lines, then **You need:**"
    for line in objectives[0].strip().splitlines():
        assert len(line.split()) <= MAX_WORDS + 1
    needs = page(PurePosixPath(path.name), [first]).needs
    known = [name_of(chapter) for chapter in CHAPTERS]
    earlier = [name for name in known if name < name_of(path)]
    assert set(needs) <= set(earlier if path in CHAPTERS else known)
    assert needs or name_of(path) == known[0]


@pytest.mark.parametrize("path", [*CHAPTERS, *LABS], ids=lambda path: path.parent.name + path.name)
def test_links_to_the_lab_and_the_map_are_added_only_by_the_build(path):
    text = path.read_text()
    assert "front_page.ipynb" not in text
    assert f"labs/{name_of(path)}/" not in text
