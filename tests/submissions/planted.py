"""Wrong answers, one file each, with the points they lose and the checker's message.

A file starts with TOML in comments, like inline script metadata, followed by the cells with wrong
answers, by grade id.  All other answers are from the solution.

    # /// shardlab-submission
    # lab = "03_ring_all_reduce"
    # loses = {ring_all_reduce = 2.5}
    # says = {ring_all_reduce = "returns the sum, not the mean"}
    # ///
    # %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}

``cheats = true`` marks deliberate cheating; with ``typed = true`` the browser test types the answer,
after running the cell that begins with ``above``.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import jupytext

from autograder.exercises.hidden.answers import code_cells, solution, subjects

__all__ = ["Submission", "code_cells", "of_lab", "read", "solution", "subjects", "untouched"]

HEADER = re.compile(r"^# /// shardlab-submission\n((?:#.*\n)+?)# ///$", re.MULTILINE)


@dataclass(frozen=True)
class Submission:
    name: str  # the file's name, which states the mistake
    lab: str
    cells: str  # percent text, with the wrong answers
    loses: dict[str, float]  # {answer: points}
    says: dict[str, str]  # {answer: part of the message}
    cheats: bool
    typed: bool
    above: str

    @property
    def answers(self) -> dict[str, str]:
        """{grade id: source of the cell}. Parsed only on access: collecting tests needs only names."""
        cells = jupytext.reads(self.cells, fmt="py:percent").cells
        return {
            cell.metadata["nbgrader"]["grade_id"]: cell.source
            for cell in cells
            if "nbgrader" in cell.metadata
        }


def read(path: Path) -> Submission:
    text = path.read_text(encoding="utf-8")
    header = HEADER.search(text)
    assert header, f"{path.name} has no header"
    facts = tomllib.loads(re.sub(r"^# ?", "", header[1], flags=re.MULTILINE))
    return Submission(
        name=path.name.removesuffix(".nb.py"),
        lab=facts["lab"],
        cells=text[header.end() :],
        loses=facts["loses"],
        says=facts["says"],
        cheats=facts.get("cheats", False),
        typed=facts.get("typed", False),
        above=facts.get("above", ""),
    )


@functools.cache
def of_lab(lab: str) -> tuple[Submission, ...]:
    return tuple(read(path) for path in sorted((Path(__file__).parent / lab).glob("*.nb.py")))


def untouched(lab: str) -> dict[str, str]:
    """{grade id: stub}, as in the released lab."""
    region = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)
    return {
        grade_id: region.sub("raise NotImplementedError()", source)
        for grade_id, source in solution(lab).items()
    }
