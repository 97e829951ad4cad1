"""A real class, graded by our command with two workers and by nbgrader's with one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from autograder.grading.pool.journal import Journal
from autograder.grading.record.pictures import MAX_BYTES
from autograder.grading.record.record import GRADED, STUDENT_ERROR, UNREADABLE, Record
from tests.autograder.grading.copied_course import REPO, Course, Notebook, source_of, with_answers

LAB = "03_ring_all_reduce"

pytestmark = [pytest.mark.nbgrader, pytest.mark.ranks, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Graded:
    records: dict[str, Record]
    scores: dict[str, dict[str, float]]


@dataclass(frozen=True)
class BothCommands:
    by_command: Graded
    by_nbgrader: Graded
    output: str


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> BothCommands:
    course = Course.create(tmp_path_factory.mktemp("course"))
    course.leave_out_demonstrations(LAB)
    assert course.nbgrader("generate_assignment", LAB).returncode == 0
    for student, notebook in submissions(course).items():
        course.submit(LAB, student, notebook)
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "grade", LAB, "--jobs", "2"],
        cwd=course.root,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    by_command = results_of(course)
    journal = Journal(course.root / "grading/records", LAB)
    for student in by_command.records:
        journal.path(student).unlink()
    again = course.nbgrader("autograde", LAB, "--force")
    assert again.returncode == 0, again.stderr[-3000:]
    return BothCommands(by_command, results_of(course), done.stdout)


def submissions(course: Course) -> dict[str, Notebook | str]:
    solution, lab = course.solution(LAB), course.released(LAB)
    easy = {name: source_of(solution, name) for name in ("chunk_bounds", "bytes_per_rank")}
    return {
        "right": with_answers(lab, {**easy, "all_gather": source_of(solution, "all_gather")}),
        "wrong": with_answers(
            lab, {**easy, "all_gather": "def all_gather(buffer, rank, world_size):\n    pass"}
        ),
        "crash": with_answers(lab, {**easy, "reduce_scatter": "import os\nos._exit(7)"}),
        "no_notebook": '{"cells": [',
    }


def results_of(course: Course) -> Graded:
    journal = Journal(course.root / "grading/records", LAB)
    records = {student: journal.read(student) for student in journal.students()}
    return Graded(
        {student: record for student, record in records.items() if record is not None},
        {student: course.scores(LAB, student) for student in records},
    )


def test_both_commands_give_identical_records(graded: BothCommands) -> None:
    for student, record in graded.by_command.records.items():
        again = graded.by_nbgrader.records[student]
        assert again.decided() == record.decided()
        assert again.key == record.key
        assert record.timing != again.timing or student == "no_notebook"


def test_nbgraders_own_command_fills_the_same_gradebook(graded: BothCommands) -> None:
    assert graded.by_nbgrader.scores == graded.by_command.scores


def test_each_submission_ends_in_its_state(graded: BothCommands) -> None:
    records = graded.by_command.records
    assert {student: record.state for student, record in records.items()} == {
        "right": GRADED, "wrong": GRADED, "crash": STUDENT_ERROR, "no_notebook": UNREADABLE,
    }  # fmt: skip
    assert "exited with status 7" in records["crash"].reason
    assert "could not be read" in records["no_notebook"].reason
    assert "graded                    2" in graded.output
    assert "student error             1" in graded.output
    assert "unreadable file           1" in graded.output
    assert f"no_notebook: {records['no_notebook'].reason}" in graded.output


def test_points_match_the_verdicts(graded: BothCommands) -> None:
    for student, record in graded.by_command.records.items():
        scores = graded.by_command.scores[student]
        for name, points in record.points.items():
            assert scores[name.removeprefix("check_")] == points
            assert record.verdicts[name]["points"] == points
    assert graded.by_command.records["right"].points["check_all_gather"] == 4
    assert graded.by_command.records["wrong"].points["check_all_gather"] == 0


def test_pictures_are_of_the_students_own_run(graded: BothCommands) -> None:
    records = graded.by_command.records
    traffic, calls = records["right"].pictures["check_all_gather"]
    assert traffic["title"].startswith("Who sent how much to whom")
    assert calls["title"].startswith("Which rank was in which call")
    for record in records.values():
        assert all(
            picture["svg"].startswith("<svg") and len(picture["svg"]) <= MAX_BYTES
            for pictures in record.pictures.values()
            for picture in pictures
            if "rows" not in picture
        )
    assert records["no_notebook"].pictures == {}
