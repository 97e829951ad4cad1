"""Wrong answers, one file each: which points they lose and how the checker names them.

A file opens with a block of TOML in comments, as inline script metadata does, and goes on with the
cells whose answers are wrong, by grade id.  All other answers are the solution's.

    # /// shardlab-submission
    # lab = "03_ring_all_reduce"
    # loses = {ring_all_reduce = 2.5}
    # says = {ring_all_reduce = "returned the sum, not the mean"}
    # ///
    # %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import jupytext

HEADER = re.compile(r"^# /// shardlab-submission\n((?:#.*\n)+?)# ///$", re.MULTILINE)


@dataclass(frozen=True)
class Submission:
    name: str  # of the file: the mistake
    lab: str
    answers: dict[str, str]  # {grade id: source of the cell}
    loses: dict[str, float]  # {answer: points}
    says: dict[str, str]  # {answer: words of the message}


def read(path: Path) -> Submission:
    text = path.read_text(encoding="utf-8")
    header = HEADER.search(text)
    assert header, f"{path.name} has no header"
    facts = tomllib.loads(re.sub(r"^# ?", "", header[1], flags=re.MULTILINE))
    cells = jupytext.reads(text[header.end() :], fmt="py:percent").cells
    answers = {
        cell.metadata["nbgrader"]["grade_id"]: cell.source
        for cell in cells
        if "nbgrader" in cell.metadata
    }
    return Submission(
        path.name.removesuffix(".nb.py"), facts["lab"], answers, facts["loses"], facts["says"]
    )


def of_lab(lab: str) -> list[Submission]:
    return [read(path) for path in sorted((Path(__file__).parent / lab).glob("*.nb.py"))]


def solution(lab: str) -> dict[str, str]:
    """{grade id: source} of the code answers in the lab's source, in their order."""
    path = Path(__file__).parents[2] / "solutions" / lab / f"{lab}.nb.py"
    return {
        cell.metadata["nbgrader"]["grade_id"]: cell.source
        for cell in jupytext.read(path).cells
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("solution")
    }


def untouched(lab: str) -> dict[str, str]:
    """The same answers as students find them."""
    region = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)
    return {
        grade_id: region.sub("raise NotImplementedError()", source)
        for grade_id, source in solution(lab).items()
    }


def subjects(answers: dict[str, str]) -> dict[str, object]:
    """What the answers define, in one namespace, as in a student's kernel."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec("import torch\nimport torch.distributed as dist", namespace)
    for grade_id, source in answers.items():
        exec(compile(source, f"<{grade_id}>", "exec"), namespace)
    return namespace
