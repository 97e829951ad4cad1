"""Chapters and labs in the order of the course, found by their folders' names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CHAPTERS = "course/chapters"
LABS = "labs"
FRONT_PAGE = "course/front_page"
NEEDS = "**You need:**"  # the line of a first cell that links to the chapters before
LINKED_CHAPTER = re.compile(r"\]\((?:[^()\s]*/)?(\w+)\.ipynb\)")
# About half of the 238 words a minute at which adults read non-fiction (Brysbaert 2019,
# doi.org/10.1016/j.jml.2019.104047): these pages contain formulas and code.
WORDS_PER_MINUTE = 120


@dataclass(frozen=True)
class Page:
    """A chapter, or a lab as students get it.

    ``path`` is relative to the course's root; ``needs`` are the names of chapters.
    """

    path: PurePosixPath
    title: str  # "04 ZeRO memory math", "Lab 04 ZeRO"
    needs: tuple[str, ...] = ()
    words: int = 0

    @property
    def name(self) -> str:
        """ "04_zero", the same for a chapter and its lab."""
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name.partition("_")[0]

    @property
    def reading_s(self) -> float:
        return 60 * self.words / WORDS_PER_MINUTE


@dataclass(frozen=True)
class Course:
    """All chapters in order, and the lab of each that has one."""

    chapters: tuple[Page, ...]
    labs: Mapping[str, Page]

    def neighbor(self, name: str, step: int) -> Page | None:
        """The chapter that follows the chapter or lab called ``name``, or precedes it (-1)."""
        names = sorted({page.name for page in self.chapters} | {name})
        at = names.index(name) + step
        by_name = {page.name: page for page in self.chapters}
        return by_name.get(names[at]) if 0 <= at < len(names) else None

    def chapter(self, name: str) -> Page | None:
        return next((page for page in self.chapters if page.name == name), None)


def page(path: PurePosixPath, sources: Sequence[str]) -> Page:
    """From the text of its cells."""
    first = sources[0] if sources else ""
    heading = re.match(r"# (.+)", first)
    needs = next((line for line in first.splitlines() if line.startswith(NEEDS)), "")
    title = heading[1].replace(" · ", " ", 1) if heading else path.stem.replace("_", " ")
    words = sum(len(source.split()) for source in sources)
    return Page(path, title, tuple(LINKED_CHAPTER.findall(needs)), words)


def course(notebooks: Mapping[PurePosixPath, Sequence[str]]) -> Course:
    """From {path relative to the root: text of the cells} of all chapters and labs."""
    pages = [page(path, sources) for path, sources in sorted(notebooks.items())]
    chapters = [each for each in pages if each.path.is_relative_to(CHAPTERS)]
    labs = {each.name: each for each in pages if each.path.is_relative_to(LABS)}
    return Course(tuple(chapters), labs)


def installed(root: Path) -> Course:
    """The course in a folder; a notebook that cannot be read is known by its name only."""
    found = [path for folder in (CHAPTERS, f"{LABS}/*") for path in root.glob(f"{folder}/*.ipynb")]
    return course({PurePosixPath(path.relative_to(root)): _sources(path) for path in found})


def _sources(path: Path) -> list[str]:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return ["".join(cell["source"]) for cell in cells]
    except (OSError, ValueError, KeyError, TypeError):
        return []
