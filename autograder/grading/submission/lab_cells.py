"""Recognizes a lab's cells by what grading matches them by: a file's name may be anything."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.build.cells import grade_id, is_answer

if TYPE_CHECKING:
    from nbgrader.coursedir import CourseDirectory

BLANK = "raise NotImplementedError()"  # nbgrader's stub for an answer
DEFINITION = re.compile(r"^(?:async +)?(?:def|class) +(\w+)|^(\w+)(?: *:[^=\n]+| *)=(?!=)", re.M)
MIN_CHARS = 40  # of a text that identifies a lab: `import torch` does not

Cells = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class LabCells:
    """What identifies the cells of one lab."""

    ids: frozenset[str]  # of graded and answer cells; others are only numbered
    texts: frozenset[str]  # of the lab's own cells
    names: frozenset[str]  # that answers define

    def count(self, cells: Cells) -> int:
        """How many of ``cells`` are from this lab."""
        return sum(map(self._has, cells))

    def count_written(self, cells: Cells) -> int:
        """How many of ``cells`` define an answer and are not the stub."""
        texts = [str(cell["source"]) for cell in cells]
        return sum(BLANK not in text and bool(self.names & defined(text)) for text in texts)

    def _has(self, cell: Mapping[str, Any]) -> bool:
        text = str(cell["source"])
        has_id = bool({grade_id(cell), cell.get("id")} & self.ids)
        return has_id or text.strip() in self.texts or bool(self.names & defined(text))


Labs = Mapping[str, LabCells]


def lab_cells(cells: Cells) -> LabCells:
    """``cells``: of the lab as released, or of its solution."""
    ids, texts, names = set(), set(), set()
    for cell in cells:
        text = "".join(cell["source"])
        if cell_id := grade_id(cell):
            ids.add(cell_id)
        if not is_answer(cell):
            texts |= {text.strip()} if len(text.strip()) >= MIN_CHARS else set()
        elif cell["cell_type"] == "code":
            found = defined(text)
            names |= {cell_id} if cell_id in found else found
    return LabCells(frozenset(ids), frozenset(texts), frozenset(names))


def cells_of_lab(course: CourseDirectory, lab: str) -> LabCells | None:
    """None if there is no such lab."""
    path = Path(course.format_path(course.source_directory, ".", lab)) / f"{lab}.ipynb"
    return _cells_in(path, path.stat().st_mtime_ns) if path.exists() else None


@functools.lru_cache(maxsize=100)
def _cells_in(path: Path, changed_at_ns: int) -> LabCells:
    return lab_cells(json.loads(path.read_text(encoding="utf-8"))["cells"])


def labs_of(course: CourseDirectory) -> Labs:
    """All labs of the course. A text in several of them identifies none."""
    folder = Path(course.format_path(course.source_directory, ".", "."))
    names = [path.stem for path in folder.glob("*/*.ipynb") if path.parent.name == path.stem]
    found = {name: lab for name in sorted(names) if (lab := cells_of_lab(course, name))}
    counts = Counter(text for lab in found.values() for text in lab.texts)
    shared = {text for text, count in counts.items() if count > 1}
    return {name: replace(lab, texts=lab.texts - shared) for name, lab in found.items()}


def lab_of(cells: Cells, name: str, labs: Labs, wanted: str) -> str:
    """The lab with the most cells in common, ``wanted`` if several have; without any, the one that
    the file's name contains; "" if there is none."""
    cells = list(cells)
    common = {lab: known.count(cells) for lab, known in labs.items()}
    most = max(common.values(), default=0)
    if most == 0:
        return next((lab for lab in labs if _letters(lab) in _letters(name)), "")
    return wanted if common.get(wanted) == most else max(common, key=lambda lab: common[lab])


def defined(source: str) -> set[str]:
    """Names that a cell defines at its top level."""
    return {function or value for function, value in DEFINITION.findall(source)}


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())
