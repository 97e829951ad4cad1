"""The other labs through nbgrader's own commands, as test_nbgrader.py does with the ring's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autograder import exercises
from tests.autograder.grading.course import REPO, Course, Notebook, notebook_of

LABS = [lab for lab in exercises.labs() if lab != "03_ring_all_reduce"]

pytestmark = [pytest.mark.nbgrader, pytest.mark.ranks, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Course]:
    course = Course.begin(tmp_path_factory.mktemp("course"))

    def grade(lab: str) -> Course:
        assert course.nbgrader("generate_assignment", lab).returncode == 0
        course.hand_in(lab, "solution", course.solution(lab))
        course.hand_in(lab, "untouched", course.released(lab))
        done = course.nbgrader("autograde", lab)
        assert done.returncode == 0, done.stderr[-3000:]
        return course

    return grade


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_is_released_and_graded(graded: Callable[[str], Course], lab: str) -> None:
    course = graded(lab)
    released = course.root / "labs" / notebook_of(lab)
    assert released.read_bytes() == (REPO / "labs" / notebook_of(lab)).read_bytes()

    automatic = {exercise.answer: exercise.points for exercise in exercises.of_lab(lab)}
    scores = course.scores(lab, "solution")
    earned = {answer: scores[answer] for answer in automatic}
    assert earned == automatic, verdicts_of(course.autograded(lab, "solution"))
    # what a person reads has no score yet
    assert {score for answer, score in scores.items() if answer not in automatic} <= {None}
    assert set(course.scores(lab, "untouched").values()) == {0.0}


def verdicts_of(notebook: Notebook) -> str:
    """The seed and the tables of the checks: why an answer did not earn its points."""
    said = [f"seed {notebook['metadata'].get('shardlab')}"]
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade"):
            said += [
                "".join(text) if isinstance(text := output["data"]["text/plain"], list) else text
                for output in cell.get("outputs", [])
                if "data" in output
            ]
    return "\n".join(said)
