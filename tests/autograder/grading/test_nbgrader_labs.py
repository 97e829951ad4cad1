"""The other labs, graded by nbgrader's own commands as lab 03 is in test_nbgrader.py."""

from __future__ import annotations

import json

import pytest

from autograder import exercises
from tests.autograder.grading.copied_course import (
    REPO,
    Course,
    cell_of,
    notebook_of,
    source_of,
    with_answers,
)
from tests.submissions import planted

# Graded last: their sandbox contains DeepSpeed, and all other labs share one without it.
WITH_DEEPSPEED = ["07_offload", "12_deepspeed"]
LABS = [lab for lab in exercises.labs() if lab not in ("03_ring_all_reduce", *WITH_DEEPSPEED)]
LABS += WITH_DEEPSPEED
ALWAYS = {LABS[0], LABS[-1]}  # one of each sandbox; the others are exhaustive

pytestmark = [pytest.mark.long, pytest.mark.nbgrader, pytest.mark.ranks, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Course:
    """Graded; in each lab, two students have alternate answers of the solution."""
    labs = [lab for lab in LABS if request.config.option.all or lab in ALWAYS]
    course = Course.create(tmp_path_factory.mktemp("course"))
    for_each_lab(course, "generate_assignment", labs)
    for lab in labs:
        solution, released = course.solution(lab), course.released(lab)
        for student, answers in answers_by_student(lab).items():
            sources = {answer: source_of(solution, answer) for answer in answers}
            course.submit(lab, student, with_answers(released, sources))
    for_each_lab(course, "autograde", labs)
    return course


def for_each_lab(course: Course, command: str, labs: list[str]) -> None:
    done = course.nbgrader_in_one_process(*(f"{command} {lab}" for lab in labs))
    assert done.returncode == 0, done.stderr[-3000:]


def answers_by_student(lab: str) -> dict[str, list[str]]:
    """{student: answers written}; all others are as released."""
    answers = list(planted.solution(lab))
    return {"even": answers[::2], "odd": answers[1::2]}


@pytest.mark.parametrize(
    "lab",
    [pytest.param(lab, marks=() if lab in ALWAYS else (pytest.mark.exhaustive,)) for lab in LABS],
)
def test_a_lab_is_released_and_each_answer_graded_by_itself(course: Course, lab: str) -> None:
    released = course.root / "labs" / notebook_of(lab)
    assert released.read_bytes() == (REPO / "labs" / notebook_of(lab)).read_bytes()

    for student, written in answers_by_student(lab).items():
        scores = course.scores(lab, student)
        for exercise in exercises.of_lab(lab):
            if exercise.answer in written:
                assert scores.pop(exercise.answer) == exercise.points, exercise.name
                continue
            assert scores.pop(exercise.answer) == 0.0, exercise.name
            check = cell_of(course.autograded(lab, student), f"check_{exercise.answer}")
            text = json.dumps(check["outputs"], ensure_ascii=False)
            assert f"Not written yet: {exercise.answer}." in text
        assert set(scores.values()) <= {0.0}  # unanswered questions
