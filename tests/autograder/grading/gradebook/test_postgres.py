"""A class in a PostgreSQL gradebook gets the same grades as in nbgrader's SQLite file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from sqlalchemy import create_engine, make_url, text

from autograder import exercises
from autograder.grading.gradebook.database import GradebookError, prepare
from tests.autograder.grading.copied_course import Course, source_of, with_answers
from tests.running_postgres import postgres_or_skip

LAB = "03_ring_all_reduce"
QUESTION = "from_8_to_64_ranks"  # graded manually; nobody answered it here

pytestmark = [pytest.mark.nbgrader, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The ``db_url`` of an empty database; the test is skipped where there is no PostgreSQL."""
    with postgres_or_skip() as db_url:
        yield db_url


@pytest.mark.ranks
def test_a_class_from_release_to_export(server: str, tmp_path: Path) -> None:
    """The points are those that test_nbgrader.py finds in nbgrader's own SQLite file."""
    course = Course.create(tmp_path, server)
    course.leave_out_demonstrations(LAB)
    nbgrader(course, "generate_assignment", LAB)
    lab = course.released(LAB)
    points = {exercise.answer: exercise.points for exercise in exercises.of_lab(LAB)}
    blank = dict.fromkeys(points, "0")  # not an answer, so no ranks are started
    one_answer = {"chunk_bounds": source_of(course.solution(LAB), "chunk_bounds")}
    course.submit(LAB, "ada", with_answers(lab, blank | one_answer))
    course.submit(LAB, "damaged", '{"cells": [')
    nbgrader(course, "autograde", LAB)
    nbgrader(course, "export")

    nothing = {**dict.fromkeys(points, 0.0), QUESTION: 0.0}
    assert course.scores(LAB, "ada") == {**nothing, "chunk_bounds": points["chunk_bounds"]}
    assert course.scores(LAB, "damaged") == nothing
    with (course.root / "grading/grades.csv").open() as file:
        exported = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert exported == {"ada": points["chunk_bounds"], "damaged": 0.0}
    assert not (course.root / "grading/gradebook.db").exists()


def nbgrader(course: Course, *arguments: str) -> None:
    done = course.nbgrader(*arguments)
    assert done.returncode == 0, done.stderr[-3000:]


def test_processes_may_create_the_tables_concurrently(server: str) -> None:
    with create_engine(server, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("CREATE DATABASE shared"))
    shared = make_url(server).set(database="shared").render_as_string(hide_password=False)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(prepare, [shared] * 6))
    with Gradebook(shared) as gradebook:
        assert gradebook.students == []


def test_an_unreachable_server_is_named_without_its_password(server: str) -> None:
    gone = make_url(server).set(password="sesame").update_query_dict({"host": "/tmp/no-such"})
    with pytest.raises(GradebookError, match=r"/tmp/no-such.*SHARDLAB_DB_URL") as caught:
        prepare(gone.render_as_string(hide_password=False))
    assert "sesame" not in str(caught.value)


def test_the_error_for_an_invalid_address_shows_a_valid_one() -> None:
    with pytest.raises(GradebookError, match="postgresql\\+psycopg://user@host/database"):
        prepare("postgres at localhost")
