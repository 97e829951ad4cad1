"""The notebooks in this repository: built from their texts, empty, and labs without answers."""

import json
import re
from pathlib import Path

import pytest

from autograder import build, exercises

REPO = Path(__file__).parents[3]
SOURCES = sorted((REPO / "solutions").glob("*/*.nb.py"))
SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)


def test_every_notebook_is_what_its_source_makes() -> None:
    assert [f"{drift.path} {drift.why}" for drift in build.check(REPO)] == []


def test_notebooks_hold_no_outputs() -> None:
    made = [path for folder in ("course", "solutions", "labs") for path in notebooks(folder)]
    assert made
    for path in made:
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path


def notebooks(folder: str) -> list[Path]:
    found = sorted((REPO / folder).rglob("*.ipynb"))
    return [path for path in found if ".ipynb_checkpoints" not in path.parts]


def lab_text() -> str:
    """All that students are given, as they read it."""
    return "\n".join(
        "".join(cell["source"])
        for path in notebooks("labs")
        for cell in json.loads(path.read_text())["cells"]
    )


def telling(lines: str) -> set[str]:
    """Lines that say something: not `return`, not a lone bracket."""
    return {line.strip() for line in lines.splitlines() if len(line.strip()) >= 12}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_no_solution_reaches_students(source: Path) -> None:
    notebook = build.notebook_from_text(source)
    secret: set[str] = set()
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            marked = SOLUTION.findall(cell.source)
            secret |= telling("\n".join(marked) if marked else cell.source)
    # A line that students are given elsewhere on purpose (a signature, an import) is no secret.
    given = telling(SOLUTION.sub("", source.read_text().replace("\n# ", "\n")))
    assert secret - given, "no solution found: does this test still know how they are marked?"
    assert (secret - given) & telling(lab_text()) == set()


def test_no_marker_and_no_hidden_case_reaches_students() -> None:
    hidden = {
        case.name
        for lab in exercises.labs()
        for exercise in exercises.of_lab(lab)
        for case in exercise.cases
        if case.hidden
    }
    text = lab_text()
    for secret in [*hidden, "BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "MARK SCHEME"]:
        assert secret not in text


def test_no_line_of_the_checker_reaches_students() -> None:
    ours = [REPO / "autograder/exercises", REPO / "autograder/references"]
    files = [path for folder in ours for path in folder.rglob("*") if path.suffix != ".pyc"]
    text = "\n".join(path.read_text("utf-8", "replace") for path in files if path.is_file())
    lines = {line for line in telling(text) if len(line) > 30}
    common = {"from collections.abc import Callable", "import torch.distributed as dist"}
    assert (lines & telling(lab_text())) - common == set()
