"""The notebooks in this repository: up to date, without outputs, and labs without answers."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from autograder import exercises
from autograder.build.products import check
from autograder.build.text import notebook_from_text

REPO = Path(__file__).parents[3]
SOURCES = sorted((REPO / "solutions").glob("*/*.nb.py"))
# Lines that labs 04 and 11 provide and that the checker also runs next to an answer.
GIVEN = {
    "if self.scaler.step(self.optimizer, self.parameters):",
    "self.scheduler.step()",
    "length = sum(tensor.numel() for tensor in tensors)",
    "flat = tensors[0].new_zeros(length + -length % world_size)",
    "torch.cat([tensor.detach().flatten() for tensor in tensors], out=flat[:length])",
}
SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)


def test_every_notebook_is_up_to_date() -> None:
    assert [f"{drift.path} {drift.why}" for drift in check(REPO)] == []


def test_notebooks_have_no_outputs() -> None:
    made = [path for folder in ("course", "solutions", "labs") for path in notebooks(folder)]
    assert made
    for path in made:
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path


def notebooks(folder: str) -> list[Path]:
    found = sorted((REPO / folder).rglob("*.ipynb"))
    return [path for path in found if ".ipynb_checkpoints" not in path.parts]


def lab_cells(lab: str = "*") -> list[str]:
    """The text of all cells that students get."""
    return [
        "".join(cell["source"])
        for path in notebooks("labs")
        if path.parent.match(lab)
        for cell in json.loads(path.read_text())["cells"]
    ]


def content_lines(lines: str) -> list[str]:
    """Lines with content, unlike `return` or a single bracket."""
    return [line.strip() for line in lines.splitlines() if len(line.strip()) >= 12]


def passages(text: str) -> set[tuple[str, str]]:
    """Pairs of consecutive lines, because `loss.backward()` alone is not secret."""
    return set(pairwise(content_lines(text)))


def answers_and_given(source: Path) -> tuple[list[str], set[str]]:
    """The solutions in a lab, and lines that are no secret, because students get them elsewhere on
    purpose: a signature, an import."""
    answers = [
        answer
        for cell in notebook_from_text(source).cells
        if cell.metadata.get("nbgrader", {}).get("solution")
        for answer in SOLUTION.findall(cell.source) or [cell.source]
    ]
    given = set(content_lines(SOLUTION.sub("", source.read_text().replace("\n# ", "\n"))))
    return answers, given


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_no_solution_reaches_students(source: Path) -> None:
    answers, given = answers_and_given(source)
    secret = {line for answer in answers for line in content_lines(answer)} - given
    assert secret, "no solution found: did its markers change?"
    for text in lab_cells(source.parent.name):
        assert secret & set(content_lines(text)) == set()
    for text in lab_cells():
        for answer in answers:
            leaked = passages(answer) & passages(text)
            assert {pair for pair in leaked if secret.issuperset(pair)} == set()


def test_no_marker_and_no_hidden_case_reaches_students() -> None:
    hidden = {
        case.name
        for lab in exercises.labs()
        for exercise in exercises.of_lab(lab)
        for case in exercise.cases
        if case.hidden
    }
    text = "\n".join(lab_cells())
    for secret in [*hidden, "BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "MARK SCHEME"]:
        assert secret not in text


def test_no_passage_of_the_checker_reaches_students() -> None:
    ours = [REPO / "autograder/exercises", REPO / "autograder/references"]
    files = [path for folder in ours for path in folder.rglob("*") if path.suffix != ".pyc"]
    text = "\n".join(path.read_text("utf-8", "replace") for path in files if path.is_file())
    reached = {pair for cell in lab_cells() for pair in passages(cell)} & passages(text)
    leaked = {pair for pair in reached if len("".join(pair)) > 60 and not GIVEN.issuperset(pair)}
    assert leaked == set()
