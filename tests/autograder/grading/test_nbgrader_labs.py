"""The other labs through nbgrader's own commands, as test_nbgrader.py does with the ring's."""

from __future__ import annotations

import json

import pytest

from autograder import exercises
from tests.autograder.grading.course import (
    REPO,
    Course,
    cell_of,
    notebook_of,
    source_of,
    with_answers,
)
from tests.submissions import planted

OWN_SANDBOX = "06_offload"  # with DeepSpeed in it: last, for all others share one
LABS = [lab for lab in exercises.labs() if lab not in ("03_ring_all_reduce", OWN_SANDBOX)]
LABS.append(OWN_SANDBOX)

pytestmark = [pytest.mark.nbgrader, pytest.mark.ranks, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Graded: two students share out each lab; every other answer is the solution's."""
    course = Course.begin(tmp_path_factory.mktemp("course"))
    in_turn(course, "generate_assignment")
    for lab in LABS:
        solution, released = course.solution(lab), course.released(lab)
        for student, answers in shared_out(lab).items():
            sources = {answer: source_of(solution, answer) for answer in answers}
            course.hand_in(lab, student, with_answers(released, sources))
    in_turn(course, "autograde")
    return course


def in_turn(course: Course, command: str) -> None:
    done = course.nbgrader_in_turn(*(f"{command} {lab}" for lab in LABS))
    assert done.returncode == 0, done.stderr[-3000:]


def shared_out(lab: str) -> dict[str, list[str]]:
    """{student: answers written}; all others are as released."""
    answers = list(planted.solution(lab))
    return {"even": answers[::2], "odd": answers[1::2]}


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_is_released_and_each_answer_graded_by_itself(course: Course, lab: str) -> None:
    released = course.root / "labs" / notebook_of(lab)
    assert released.read_bytes() == (REPO / "labs" / notebook_of(lab)).read_bytes()

    for student, written in shared_out(lab).items():
        scores = course.scores(lab, student)
        for exercise in exercises.of_lab(lab):
            if exercise.answer in written:
                assert scores.pop(exercise.answer) == exercise.points, exercise.name
                continue
            assert scores.pop(exercise.answer) == 0.0, exercise.name
            check = cell_of(course.autograded(lab, student), f"check_{exercise.answer}")
            said = json.dumps(check["outputs"], ensure_ascii=False)
            assert f"Not written yet: {exercise.answer}." in said
        assert set(scores.values()) <= {0.0}  # questions that nobody wrote anything about
