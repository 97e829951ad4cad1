"""formgrader's pages with ClassAPI: nbgrader's own results, with fewer queries to the database."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.server_extensions.formgrader import base, handlers
from nbgrader.utils import to_numeric_tz
from sqlalchemy import Index, create_engine, event, inspect
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from traitlets.config import Config, PyFileConfigLoader

from autograder.grading.gradebook import indexes
from autograder.grading.gradebook.database import prepare
from autograder.pages import formgrader
from autograder.pages.formgrader import api
from autograder.pages.formgrader.api import ClassAPI
from tests.running_lab import ROOT
from tests.running_postgres import postgres_or_skip

LABS = ("one", "two")
ADDITIONS = ("late_penalty", "state")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def db_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('grades') / 'gradebook.db'}"
        return
    with postgres_or_skip() as url:
        yield url


@pytest.fixture(scope="module")
def course(db_url: str, tmp_path_factory: pytest.TempPathFactory) -> CourseDirectory:
    """Students with every kind of grade, and with submissions in every state."""
    root = tmp_path_factory.mktemp("course")
    prepare(db_url)
    with Gradebook(db_url, "shardlab") as gradebook:
        for lab in LABS:
            (root / "source" / lab).mkdir(parents=True)
            gradebook.add_assignment(lab)
            gradebook.add_notebook("work", lab)
            gradebook.add_grade_cell("code", "work", lab, max_score=3, cell_type="code")
            gradebook.add_grade_cell("words", "work", lab, max_score=2, cell_type="markdown")
            gradebook.add_task_cell("task", "work", lab, max_score=1, cell_type="markdown")
            gradebook.add_solution_cell("code", "work", lab)
        for student in ("ada", "bob", "cy", "dee", "eve", "without work"):
            gradebook.add_student(student, last_name=student.upper())
        for lab in LABS:
            grade(gradebook, lab, "ada", code=3, words=None, task=None)
            grade(gradebook, lab, "bob", code=1, words=1.5, task=0.5)
            grade(gradebook, lab, "cy", code=0, words=2, task=None)
            grade(gradebook, lab, "eve", code=2, words=2, task=1)
        manual = gradebook.find_grade("code", "work", "one", "bob")
        manual.manual_score, manual.extra_credit = 2.5, 0.25
        gradebook.find_submission_notebook("work", "one", "bob").flagged = True
        gradebook.add_submission("two", "dee")  # recorded, and never graded
        gradebook.db.commit()
    for lab in LABS:
        for student in ("ada", "bob", "cy", "eve"):
            (root / "autograded" / student / lab).mkdir(parents=True)
            (root / "autograded" / student / lab / "work.ipynb").touch()
        for student in ("ada", "bob", "cy", "eve", "not in the gradebook"):
            (root / "submitted" / student / lab).mkdir(parents=True)
    (root / "autograded/cy/one/work.ipynb").unlink()
    # Submitted again:
    (root / "submitted/eve/two/timestamp.txt").write_text("2026-10-02 13:00:00 UTC")
    (root / "submitted/without work/two").mkdir(parents=True)
    config = Config()
    config.CourseDirectory.update(root=str(root), db_url=db_url, course_id="shardlab")
    config.Exchange.root = str(tmp_path_factory.mktemp("exchange"))
    return CourseDirectory(config=config)


def grade(gradebook: Gradebook, lab: str, student: str, **scores: float | None) -> None:
    submission = gradebook.add_submission(lab, student)
    for cell in submission.notebooks[0].grades:
        cell.auto_score = scores[cell.name]
        cell.needs_manual_grade = scores[cell.name] is None


PAGES: dict[str, Callable[[NbGraderAPI], Any]] = {
    # Only the time zone differs: test_course_time.py.
    "manage assignments": lambda api: [
        {**lab, "duedate_timezone": ""} for lab in api.get_assignments()
    ],
    "manage submissions": lambda api: [api.get_submissions(lab) for lab in LABS],
    "gradebook of a lab": lambda api: api.get_notebooks("one"),
    "submissions to read": lambda api: [api.get_notebook_submissions(lab, "work") for lab in LABS],
    "one submission": lambda api: api.get_notebook_submission_indices("one", "work"),
    "students": lambda api: api.get_students(),
    **{
        student: lambda api, student=student: api.get_student_submissions(student)
        for student in ("ada", "dee", "eve", "without work", "not in the gradebook")
    },
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_same_content_as_nbgraders_own(course: CourseDirectory, page: str) -> None:
    ours = without_additions(PAGES[page](ClassAPI(course, config=course.config)))
    assert ours == PAGES[page](NbGraderAPI(course, config=course.config))
    assert ours


def without_additions(page: Any) -> Any:
    """Nobody is late here: only then are nbgrader's scores the same."""
    if isinstance(page, list):
        return [without_additions(row) for row in page]
    if isinstance(page, dict):
        assert not page.get("late_penalty")
        return {key: value for key, value in page.items() if key not in ADDITIONS}
    return page


def test_a_larger_class_needs_no_more_queries(course: CourseDirectory) -> None:
    few = {page: query_count(course, page) for page in PAGES}
    with Gradebook(course.db_url, "shardlab") as gradebook:
        for student in ("fay", "gus", "hal"):
            gradebook.add_student(student)
            grade(gradebook, "one", student, code=1, words=None, task=1)
            folder = Path(course.root, "autograded", student, "one")
            folder.mkdir(parents=True)
            (folder / "work.ipynb").touch()
            Path(course.root, "submitted", student, "one").mkdir(parents=True)
        gradebook.db.commit()
    assert {page: query_count(course, page) for page in PAGES} == few
    assert 0 not in few.values()


def query_count(course: CourseDirectory, page: str) -> int:
    with counted_queries() as queries:
        PAGES[page](ClassAPI(course, config=course.config))
    return len(queries)


@contextmanager
def counted_queries() -> Iterator[list[str]]:
    """The queries within this block, except those for the schema."""
    queries: list[str] = []

    def record(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "PRAGMA" not in statement and "pg_catalog" not in statement:
            queries.append(statement)

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield queries
    finally:
        event.remove(Engine, "before_cursor_execute", record)


def test_a_gradebook_gets_its_indexes_once(
    course: CourseDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if nbgrader created the tables, or the indexes already exist."""
    monkeypatch.setattr(api, "_indexed", set())
    engine = create_engine(course.db_url)
    with engine.begin() as connection:
        for index in indexes.INDEXES:
            index.drop(connection, checkfirst=True)
    for _ in range(2):
        ClassAPI(course, config=course.config).gradebook.close()
        monkeypatch.setattr(api, "_indexed", set())
    found = {index["name"] for index in inspect(engine).get_indexes("grade")}
    assert "ix_shardlab_grade_notebook_id" in found
    engine.dispose()


def test_a_gradebook_without_indexes_is_still_shown(
    course: CourseDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OperationalError("CREATE INDEX", None, Exception("must be owner of table grade"))

    monkeypatch.setattr(api, "_indexed", set())
    monkeypatch.setattr(Index, "create", refuse)
    assert ClassAPI(course, config=course.config).get_students()
    assert "must be owner of table grade" in caplog.text


def test_the_server_extension_replaces_nbgraders_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "NbGraderAPI", NbGraderAPI)
    monkeypatch.setattr(base.BaseHandler, "render", base.BaseHandler.render)
    monkeypatch.setattr(base.BaseHandler, "gradebook", base.BaseHandler.gradebook)
    monkeypatch.setattr(handlers, "to_numeric_tz", to_numeric_tz)
    formgrader._load_jupyter_server_extension(Mock())
    assert base.NbGraderAPI is ClassAPI
    assert handlers.to_numeric_tz("Europe/Berlin") == "Europe/Berlin"  # for a lab's due date


def test_make_lab_loads_the_extension_only_for_instructors(tmp_path: Path) -> None:
    settings = "jupyter_server_config.py"
    students = tmp_path / "jupyter"
    students.mkdir()
    shutil.copy(ROOT / "jupyter" / settings, students)
    enabled = {
        folder: PyFileConfigLoader(settings, path=str(folder)).load_config().ServerApp
        for folder in (ROOT / "jupyter", students)
    }
    assert enabled[ROOT / "jupyter"].jpserver_extensions["autograder.pages.formgrader"]
    assert "autograder.pages.formgrader" not in enabled[students].jpserver_extensions
