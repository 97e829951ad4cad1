"""A class of students through nbgrader's own command line and into its own gradebook."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nbgrader.api import Gradebook

from autograder import exercises
from tests.submissions import planted

REPO = Path(__file__).parents[3]
LAB = "03_ring_all_reduce"
NOTEBOOK = f"{LAB}/{LAB}.ipynb"
POINTS = {exercise.answer: exercise.points for exercise in exercises.of_lab(LAB)}
QUESTION = "from_8_to_64_ranks"
MISTAKES = {mistake.name: mistake for mistake in planted.of_lab(LAB)}

pytestmark = [pytest.mark.nbgrader, pytest.mark.ranks, pytest.mark.timeout(900)]

Notebook = dict[str, Any]


@dataclass(frozen=True)
class Course:
    """A graded class: a copy of the repository's grading side, and who made which mistake."""

    root: Path
    made_by: dict[str, str]  # {mistake: student}

    def scores(self, student: str) -> dict[str, float]:
        """{answer: points} as the gradebook has them."""
        with Gradebook(f"sqlite:///{self.root}/grading/gradebook.db") as gradebook:
            grades = gradebook.find_submission_notebook(LAB, LAB, student).grades
            return {grade.name.removeprefix("check_"): grade.auto_score for grade in grades}

    def outputs(self, student: str, answer: str) -> str:
        """What the student reads below the check of ``answer``."""
        cell = cell_of(self.autograded(student), f"check_{answer}")
        return json.dumps(cell["outputs"], ensure_ascii=False)

    def autograded(self, student: str) -> Notebook:
        return read(self.root / "grading/autograded" / student / NOTEBOOK)


def nbgrader(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without the venv's bin folder on the PATH, as after `make lab`."""
    return subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=root,
        env={**os.environ, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=800,
    )


def read(path: Path) -> Notebook:
    notebook: Notebook = json.loads(path.read_text())
    return notebook


def cell_of(notebook: Notebook, cell_id: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if cell["id"] == cell_id)


def with_answers(notebook: Notebook, answers: dict[str, str]) -> Notebook:
    changed: Notebook = json.loads(json.dumps(notebook))
    for grade_id, source in answers.items():
        cell_of(changed, grade_id)["source"] = source
    return changed


def share_out(mistakes: list[planted.Submission]) -> list[dict[str, planted.Submission]]:
    """As few students as can make all mistakes, one mistake for each answer."""
    students: list[dict[str, planted.Submission]] = []
    for mistake in mistakes:
        assert len(mistake.answers) == 1
        (answer,) = mistake.answers
        free = next((student for student in students if answer not in student), None)
        if free is None:
            free = {}
            students.append(free)
        free[answer] = mistake
    return students


def hand_in(root: Path, student: str, content: str) -> None:
    path = root / "grading/submitted" / student / NOTEBOOK
    path.parent.mkdir(parents=True)
    path.write_text(content)


def damaged(solution: Notebook, lab: Notebook) -> Notebook:
    """One check deleted, another there twice, a warning on stderr; the long answers are open."""
    easy = {name: source_of(solution, name) for name in ("chunk_bounds", "bytes_per_rank")}
    easy["bytes_per_rank"] = (
        "import sys; print('look out', file=sys.stderr)\n" + easy["bytes_per_rank"]
    )
    notebook = with_answers(lab, easy)
    twice = cell_of(notebook, "check_bytes_per_rank")
    notebook["cells"] = [c for c in notebook["cells"] if c["id"] != "check_chunk_bounds"]
    notebook["cells"].append(twice)
    return notebook


def source_of(notebook: Notebook, cell_id: str) -> str:
    return "".join(cell_of(notebook, cell_id)["source"])


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    root = tmp_path_factory.mktemp("course")
    shutil.copy(REPO / "nbgrader_config.py", root)
    shutil.copytree(REPO / "solutions", root / "solutions")
    assert nbgrader(root, "generate_assignment", LAB).returncode == 0

    solution, lab = read(root / "solutions" / NOTEBOOK), read(root / "labs" / NOTEBOOK)
    easy = {"chunk_bounds": source_of(solution, "chunk_bounds")}
    hand_in(root, "solution", json.dumps(solution))
    hand_in(root, "untouched", json.dumps(lab))
    crash = {**easy, "reduce_scatter": "import os\nos._exit(7)"}
    hand_in(root, "crash", json.dumps(with_answers(lab, crash)))
    hand_in(root, "damaged", json.dumps(damaged(solution, lab)))
    hand_in(root, "damaged_file", '{"cells": [')
    hand_in(root, "zoe_comes_last", json.dumps(with_answers(lab, easy)))
    made_by = {}
    for number, mistakes in enumerate(share_out(list(MISTAKES.values()))):
        answers = {answer: mistake.answers[answer] for answer, mistake in mistakes.items()}
        hand_in(root, f"mistaken{number}", json.dumps(with_answers(lab, answers)))
        made_by.update({mistake.name: f"mistaken{number}" for mistake in mistakes.values()})

    done = nbgrader(root, "autograde", LAB)
    assert done.returncode == 0, done.stderr[-3000:]
    return Course(root, made_by)


def test_the_release_is_the_one_in_git(course: Course) -> None:
    assert (course.root / "labs" / NOTEBOOK).read_bytes() == (REPO / "labs" / NOTEBOOK).read_bytes()


def test_the_solution_earns_full_marks(course: Course) -> None:
    assert course.scores("solution") == {**POINTS, QUESTION: None}  # a person reads that one


def test_an_untouched_lab_earns_nothing(course: Course) -> None:
    assert set(course.scores("untouched").values()) == {0.0}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_costs_its_own_points_and_is_named(course: Course, name: str) -> None:
    ((answer, lost),) = MISTAKES[name].loses.items()
    student = course.made_by[name]
    assert course.scores(student)[answer] == pytest.approx(POINTS[answer] - lost)
    assert MISTAKES[name].says[answer] in course.outputs(student, answer)


def test_a_crashing_kernel_costs_one_answer(course: Course) -> None:
    scores = course.scores("crash")
    assert scores["chunk_bounds"] == POINTS["chunk_bounds"]
    assert scores["reduce_scatter"] == 0
    assert (
        "`reduce_scatter` never reached the check: the cell `reduce_scatter` above failed with "
        "DeadKernel: The kernel died in this cell: it exited with status 7."
    ) in course.outputs("crash", "reduce_scatter")


def test_damaged_cells_and_warnings_cost_nothing(course: Course) -> None:
    scores = course.scores("damaged")
    assert scores["chunk_bounds"] == POINTS["chunk_bounds"]
    assert scores["bytes_per_rank"] == POINTS["bytes_per_rank"]
    note = source_of(course.autograded("damaged"), "note")
    assert "`check_chunk_bounds` was missing: it was put back" in note
    assert "`check_bytes_per_rank` was there 2 times: it was graded once" in note


def test_a_damaged_file_is_a_zero_with_a_reason(course: Course) -> None:
    assert set(course.scores("damaged_file").values()) == {0.0}
    assert "could not be read" in source_of(course.autograded("damaged_file"), "note")


def test_the_next_student_is_graded_too(course: Course) -> None:
    assert course.scores("zoe_comes_last")["chunk_bounds"] == POINTS["chunk_bounds"]


def test_scores_are_exported(course: Course) -> None:
    assert nbgrader(course.root, "export").returncode == 0
    with (course.root / "grading/grades.csv").open() as file:
        exported = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert exported["solution"] == sum(POINTS.values())
    assert exported["untouched"] == 0
    assert exported["zoe_comes_last"] == POINTS["chunk_bounds"]


def test_feedback_names_the_mistake(course: Course) -> None:
    student = course.made_by["skips_the_remainder"]
    assert nbgrader(course.root, "generate_feedback", LAB, "--student", student).returncode == 0
    feedback = course.root / "grading/feedback" / student / f"{LAB}/{LAB}.html"
    assert MISTAKES["skips_the_remainder"].says["chunk_bounds"] in feedback.read_text()


def test_nothing_is_written_outside_grading(course: Course) -> None:
    assert {path.name for path in course.root.iterdir()} == {
        "grading", "labs", "nbgrader_config.py", "solutions",
    }  # fmt: skip


@pytest.mark.parametrize("answer", ["solution", "mistake"])
def test_validate_says_what_a_student_needs(course: Course, answer: str) -> None:
    mistake = MISTAKES["skips_the_remainder"]
    if answer == "solution":
        notebook = read(course.root / "solutions" / NOTEBOOK)
        said = "Success! Your notebook passes all the tests."
    else:
        notebook = with_answers(read(course.root / "labs" / NOTEBOOK), mistake.answers)
        said = mistake.says["chunk_bounds"]
    (course.root / "grading/mine.ipynb").write_text(json.dumps(notebook))
    assert said in nbgrader(course.root, "validate", "grading/mine.ipynb").stdout
