"""Notebooks that were damaged by accident: each gets the best possible grade.

They are read and rebuilt as for grading; their answers are checked as far as that needs no ranks.
Some of them go through the real command in test_attacks.py.
"""

from __future__ import annotations

import ast
import json
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from autograder.build.cells import find_check, grade_id, is_check
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.lab_cells import lab_cells
from autograder.grading.submission.reader import find_notebook, read_content, read_notebook
from autograder.grading.submission.rebuild import rebuild
from tests.autograder.grading.copied_course import REPO
from tests.submissions.accidents.editing import LAB

ACCIDENTS = sorted(
    path.stem
    for path in (REPO / "tests/submissions/accidents").glob("*.py")
    if path.stem != "editing"
)
WRITTEN = "from_8_to_64_ranks"


def read(folder: str) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads((REPO / folder / LAB / f"{LAB}.ipynb").read_text())
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


@pytest.fixture(scope="module")
def released() -> NotebookNode:
    return nbformat.from_dict(read("labs"))


def graded(released: NotebookNode, folder: Path) -> tuple[NotebookNode, str]:
    """(the notebook to run, all notes for the student)."""
    path, note = find_notebook(folder, LAB, lab_cells(released.cells))
    if path is None:
        return released, note
    try:
        submitted, repairs = read_notebook(read_content(path), lab_cells(released.cells))
    except Unreadable as error:
        return released, f"{note} {error}"
    rebuilt, notes = rebuild(released, submitted)
    return rebuilt, " ".join([note, *repairs, *notes])


def answered(notebook: NotebookNode) -> set[str]:
    """The answers that reach their checks and are not the released stub."""
    namespace: dict[str, Any] = {}
    found = set()
    for cell in notebook.cells:
        if is_check(cell):
            subject = namespace.get(find_check(cell.source).subject)
            if subject is not None and not is_stub(subject):
                found.add(grade_id(cell).removeprefix("check_"))
        elif grade_id(cell) == WRITTEN:
            found |= {WRITTEN} if "latency" in cell.source else set()
        elif cell.cell_type == "code":
            exec(definitions(cell.source), namespace)
    return found


def definitions(source: str) -> Any:
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef)
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if isinstance(node, kinds)]
    return compile(tree, "<answer>", "exec")


def is_stub(subject: FunctionType) -> bool:
    if subject.__name__ == "chunk_bounds" and "Not" not in str(subject.__code__.co_names):
        return bool(subject(10, 4) != [(0, 3), (3, 6), (6, 8), (8, 10)])
    return "NotImplementedError" in subject.__code__.co_names


@pytest.mark.parametrize("name", ACCIDENTS)
def test_an_accident_costs_as_little_as_possible(
    name: str, released: NotebookNode, tmp_path: Path
) -> None:
    accident = import_module(f"tests.submissions.accidents.{name}")
    solved = read("solutions")
    all_answers = answered(nbformat.from_dict(solved))
    assert len(all_answers) == 7
    accident.submit(solved, tmp_path)
    notebook, notes = graded(released, tmp_path)
    lost = getattr(accident, "LOST", ())
    assert answered(notebook) == (set() if lost is True else all_answers - set(lost)), notes
    assert accident.SAYS in notes
    if not accident.SAYS:
        assert notes.strip() == ""
    again = graded(released, tmp_path)
    assert (json.dumps(again[0]), again[1]) == (json.dumps(notebook), notes)


def test_the_expected_name_takes_precedence_over_other_files(tmp_path: Path) -> None:
    for name in (f"{LAB}.ipynb", f"{LAB} (1).ipynb", "a.zip"):
        (tmp_path / name).write_text("{}")
    assert find_notebook(tmp_path, LAB) == (tmp_path / f"{LAB}.ipynb", "")


def test_a_link_is_not_read_as_the_notebook(tmp_path: Path) -> None:
    (tmp_path / "homework.ipynb").symlink_to("/etc/passwd")
    path, note = find_notebook(tmp_path, LAB)
    assert path is None
    assert "You submitted `homework.ipynb`, which is no notebook" in note
