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

import ast
import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import jupytext
from nbformat import NotebookNode

HEADER = re.compile(r"^# /// shardlab-submission\n((?:#.*\n)+?)# ///$", re.MULTILINE)


@dataclass(frozen=True)
class Submission:
    name: str  # of the file: the mistake
    lab: str
    answers: dict[str, str]  # {grade id: source of the cell}
    loses: dict[str, float]  # {answer: points}
    says: dict[str, str]  # {answer: part of the message}
    cheats: bool
    typed: bool
    above: str


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
        name=path.name.removesuffix(".nb.py"),
        lab=facts["lab"],
        answers=answers,
        loses=facts["loses"],
        says=facts["says"],
        cheats=facts.get("cheats", False),
        typed=facts.get("typed", False),
        above=facts.get("above", ""),
    )


@functools.cache
def of_lab(lab: str) -> tuple[Submission, ...]:
    return tuple(read(path) for path in sorted((Path(__file__).parent / lab).glob("*.nb.py")))


@functools.cache
def code_cells(lab: str) -> tuple[NotebookNode, ...]:
    path = Path(__file__).parents[2] / "solutions" / lab / f"{lab}.nb.py"
    return tuple(cell for cell in jupytext.read(path).cells if cell.cell_type == "code")


def solution(lab: str) -> dict[str, str]:
    """{grade id: source} of the code answers in the lab's source, in order."""
    return {
        cell.metadata["nbgrader"]["grade_id"]: cell.source
        for cell in code_cells(lab)
        if cell.metadata.get("nbgrader", {}).get("solution")
    }


def untouched(lab: str) -> dict[str, str]:
    """The same answers as stubs, as in the released lab."""
    region = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)
    return {
        grade_id: region.sub("raise NotImplementedError()", source)
        for grade_id, source in solution(lab).items()
    }


def subjects(lab: str, answers: dict[str, str]) -> dict[str, object]:
    """The objects that the answers define, in one namespace, as in a student's kernel.

    From the lab's other cells it runs only imports and definitions: no ranks, no figures.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in code_cells(lab):
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if grade_id in answers:
            exec(compile(answers[grade_id], f"<{grade_id}>", "exec"), namespace)
        elif grade_id is None:
            exec(_definitions(cell.source), namespace)
    return namespace


def _definitions(source: str) -> CodeType:
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    tree = ast.parse("".join(line for line in source.splitlines(True) if line[:1] != "%"))
    tree.body = [node for node in tree.body if isinstance(node, kinds) or _is_constant(node)]
    return compile(tree, "<definitions>", "exec")


def _is_constant(node: ast.stmt) -> bool:
    """NAME = ..."""
    return isinstance(node, ast.Assign) and all(
        isinstance(target, ast.Name) and target.id.isupper() for target in node.targets
    )
