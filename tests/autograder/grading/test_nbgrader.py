"""A class of students, graded by nbgrader's own commands into its own gradebook."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass

import pytest

from autograder import exercises
from tests.autograder.grading.copied_course import (
    REPO,
    Course,
    Notebook,
    cell_of,
    notebook_of,
    source_of,
    with_answers,
)
from tests.submissions import planted

LAB = "03_ring_all_reduce"
NOTEBOOK = notebook_of(LAB)
POINTS = {exercise.answer: exercise.points for exercise in exercises.of_lab(LAB)}
QUESTION = "from_8_to_64_ranks"
MISTAKES = {mistake.name: mistake for mistake in planted.of_lab(LAB)}
PLANTED = [  # one for each answer; test_planted.py has all of them
    "skips_the_remainder",
    "stops_one_step_early",
    "receives_from_the_wrong_neighbor",
    "sum_instead_of_mean",
    "forgets_n_minus_1_over_n",
]

pytestmark = [pytest.mark.nbgrader, pytest.mark.ranks, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Class:
    course: Course

    def scores(self, student: str) -> dict[str, float]:
        return self.course.scores(LAB, student)

    def outputs(self, student: str, answer: str) -> str:
        """What the student reads below the check of ``answer``."""
        cell = cell_of(self.course.autograded(LAB, student), f"check_{answer}")
        return json.dumps(cell["outputs"], ensure_ascii=False)


def damaged(solution: Notebook, lab: Notebook) -> Notebook:
    """One check deleted, another one duplicated, a warning on stderr; no long answers."""
    easy = {name: source_of(solution, name) for name in ("chunk_bounds", "bytes_per_rank")}
    easy["bytes_per_rank"] = (
        "import sys; print('look out', file=sys.stderr)\n" + easy["bytes_per_rank"]
    )
    notebook = with_answers(lab, easy)
    twice = cell_of(notebook, "check_bytes_per_rank")
    notebook["cells"] = [c for c in notebook["cells"] if c["id"] != "check_chunk_bounds"]
    notebook["cells"].append(twice)
    return notebook


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Class:
    course = Course.create(tmp_path_factory.mktemp("course"))
    assert course.nbgrader_unforked("generate_assignment", LAB).returncode == 0

    solution, lab = course.solution(LAB), course.released(LAB)
    easy = {"chunk_bounds": source_of(solution, "chunk_bounds")}
    course.submit(LAB, "solution", solution)
    course.submit(LAB, "untouched", lab)
    crash = {**easy, "reduce_scatter": "import os\nos._exit(7)"}
    course.submit(LAB, "crash", with_answers(lab, crash))
    course.submit(LAB, "damaged", damaged(solution, lab))
    course.submit(LAB, "damaged_file", '{"cells": [')
    course.submit(LAB, "zoe_comes_last", with_answers(lab, easy))
    wrong = {grade_id: text for m in PLANTED for grade_id, text in MISTAKES[m].answers.items()}
    course.submit(LAB, "mistaken", with_answers(lab, wrong))

    done = course.nbgrader_unforked("autograde", LAB)
    assert done.returncode == 0, done.stderr[-3000:]
    return Class(course)


def test_the_release_is_the_one_in_git(graded: Class) -> None:
    assert (graded.course.root / "labs" / NOTEBOOK).read_bytes() == (
        REPO / "labs" / NOTEBOOK
    ).read_bytes()


def test_the_solution_earns_full_marks(graded: Class) -> None:
    assert graded.scores("solution") == {**POINTS, QUESTION: None}  # graded manually


def test_an_untouched_lab_earns_nothing(graded: Class) -> None:
    assert set(graded.scores("untouched").values()) == {0.0}


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_costs_its_own_points_and_is_named(graded: Class, name: str) -> None:
    ((answer, lost),) = MISTAKES[name].loses.items()
    assert graded.scores("mistaken")[answer] == pytest.approx(POINTS[answer] - lost, abs=1e-3)
    assert MISTAKES[name].says[answer] in graded.outputs("mistaken", answer)


def test_a_crashing_kernel_costs_one_answer(graded: Class) -> None:
    scores = graded.scores("crash")
    assert scores["chunk_bounds"] == POINTS["chunk_bounds"]
    assert scores["reduce_scatter"] == 0
    assert (
        "`reduce_scatter` never reached the check: the cell `reduce_scatter` above failed with "
        "DeadKernel: The kernel died in this cell: it exited with status 7."
    ) in graded.outputs("crash", "reduce_scatter")


def test_damaged_cells_and_warnings_cost_nothing(graded: Class) -> None:
    scores = graded.scores("damaged")
    assert scores["chunk_bounds"] == POINTS["chunk_bounds"]
    assert scores["bytes_per_rank"] == POINTS["bytes_per_rank"]
    note = source_of(graded.course.autograded(LAB, "damaged"), "note")
    assert "`check_chunk_bounds` was missing: it was restored" in note
    assert "`check_bytes_per_rank` appeared 2 times: it was graded once" in note


def test_a_damaged_file_is_a_zero_with_a_reason(graded: Class) -> None:
    assert set(graded.scores("damaged_file").values()) == {0.0}
    assert "could not be read" in source_of(graded.course.autograded(LAB, "damaged_file"), "note")


def test_the_next_student_is_graded_too(graded: Class) -> None:
    assert graded.scores("zoe_comes_last")["chunk_bounds"] == POINTS["chunk_bounds"]


def test_scores_are_exported(graded: Class) -> None:
    assert graded.course.nbgrader("export").returncode == 0
    with (graded.course.root / "grading/grades.csv").open() as file:
        exported = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert exported["solution"] == sum(POINTS.values())
    assert exported["untouched"] == 0
    assert exported["zoe_comes_last"] == POINTS["chunk_bounds"]


def test_feedback_names_the_mistake(graded: Class) -> None:
    done = graded.course.nbgrader("generate_feedback", LAB, "--student", "mistaken")
    assert done.returncode == 0, done.stderr[-3000:]
    feedback = graded.course.root / "grading/feedback/mistaken" / LAB / f"{LAB}.html"
    assert MISTAKES["skips_the_remainder"].says["chunk_bounds"] in feedback.read_text()


def test_nothing_is_written_outside_grading(graded: Class) -> None:
    assert {path.name for path in graded.course.root.iterdir()} == {
        "grading", "labs", "nbgrader_config.py", "solutions",
    }  # fmt: skip


@pytest.mark.parametrize("answer", ["solution", "mistake"])
def test_validate_reports_success_or_the_mistake(graded: Class, answer: str) -> None:
    mistake = MISTAKES["skips_the_remainder"]
    if answer == "solution":
        notebook = graded.course.solution(LAB)
        message = "Success! Your notebook passes all the tests."
    else:
        notebook = with_answers(graded.course.released(LAB), mistake.answers)
        message = mistake.says["chunk_bounds"]
    (graded.course.root / "grading/mine.ipynb").write_text(json.dumps(notebook))
    assert message in graded.course.nbgrader("validate", "grading/mine.ipynb").stdout
