"""Submissions are graded once, as they arrive, and feedback pages are returned.

Grading is faked here; test_on_submit_command.py runs the real thing.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nbgrader.apps import NbGraderApp
from nbgrader.utils import notebook_hash

from autograder.__main__ import main
from autograder.grading.command import grade_class
from autograder.grading.command.lab import LabGrading, UsageError
from autograder.grading.course_error import CourseError
from autograder.grading.gradebook.writer import NotWritten, Writer
from autograder.grading.pool.local import OnStart
from autograder.grading.record.record import Record, Task, failed
from autograder.pages.on_submit import service as service_module
from autograder.pages.on_submit.service import RETRY_S, Service
from tests.autograder.grading.copied_course import Course, with_answers
from tests.autograder.grading.fake_class import FakePool, decide

LAB = "03_ring_all_reduce"
EVERY_S = 2.0

pytestmark = [pytest.mark.nbgrader, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Course:
    course = Course.create(tmp_path_factory.mktemp("released"))
    with (course.root / "nbgrader_config.py").open("a") as config:
        config.write("c.ExchangeCollect.check_owner = False\nc.LateDays.points_per_day = 0.5\n")
    done = course.nbgrader_in_one_process(f"generate_assignment {LAB}", f"release_assignment {LAB}")
    assert done.returncode == 0, done.stderr[-3000:]
    return course


class BusyPool(FakePool):
    """Takes up to two tasks before it grades one; calls ``meanwhile`` for each one graded."""

    meanwhile: Callable[[str], None] = staticmethod(lambda student: None)

    def grade_all(
        self, tasks: Iterable[Task | None], on_start: OnStart | None = None
    ) -> Generator[Record, None, None]:
        waiting, in_flight = iter(tasks), list[Task]()
        while True:
            while len(in_flight) < 2 and (task := next(waiting, None)) is not None:
                assert task.student not in [other.student for other in in_flight]
                in_flight.append(task)
                self.graded.append(task.student)
            if not in_flight:
                return
            task = in_flight.pop(0)
            self.meanwhile(task.student)
            why = self.failures.get(task.student)
            yield failed(task, why) if why else decide(task)


@dataclass
class Term:
    course: Course
    pool: BusyPool = field(default_factory=BusyPool)
    printed: list[str] = field(default_factory=list)
    now_s: float = 0.0
    submissions: int = 0

    def service(self, shows_hidden: bool = False) -> Service:
        return Service(
            [LabGrading(LAB)],
            self.pool,
            shows_hidden=shows_hidden,
            every_s=EVERY_S,
            say=self.printed.append,
            clock=lambda: self.now_s,
        )

    def step(self, service: Service, later_s: float = EVERY_S) -> list[str]:
        """Returns who was graded in this step; ``printed`` then has its lines."""
        self.now_s += later_s
        self.pool.graded.clear()
        self.printed.clear()
        service.step()
        return [*self.pool.graded]

    def submit(self, student: str, worth: float = 0.0) -> Path:
        """As `nbgrader submit` does; returns where the page will be."""
        self.submissions += 1
        at = f"2026-10-01 10:00:{self.submissions:02}.000000 UTC"
        secret = f"secret {self.submissions}"
        folder = self.exchange / "inbound" / f"{student}+{LAB}+{at}+x"
        folder.mkdir()
        answer = {"chunk_bounds": f"# worth {worth}\npass"}
        notebook = with_answers(self.course.released(LAB), answer)
        (folder / f"{LAB}.ipynb").write_text(json.dumps(notebook))
        (folder / "timestamp.txt").write_text(at)
        (folder / "submission_secret.txt").write_text(secret)
        return self.exchange / "feedback" / f"{notebook_hash(secret=secret, notebook_id=LAB)}.html"

    @property
    def exchange(self) -> Path:
        return self.course.root / "grading/exchange/shardlab"

    def points(self, student: str) -> float:
        return self.course.scores(LAB, student)["chunk_bounds"]


@pytest.fixture
def term(released: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Term:
    root = tmp_path / "course"
    subprocess.run(["cp", "-r", released.root, root], check=True)
    monkeypatch.chdir(root)
    monkeypatch.delenv("SHARDLAB_DB_URL", raising=False)
    return Term(Course(root))


def test_each_submission_is_graded_once_and_has_a_page(
    term: Term, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = term.service()
    assert term.step(service) == []
    ann, bob = term.submit("ann", 2), term.submit("bob", 0.5)
    assert term.step(service) == ["ann", "bob"]
    assert ann.exists()
    assert "data-only-visible" in bob.read_text()
    assert [line.partition(", page after")[0] for line in term.printed] == [
        f"2026-10-01 10:00:01 UTC  ann, {LAB}: graded, 2 points",
        f"2026-10-01 10:00:02 UTC  bob, {LAB}: graded, 0.5 points",
    ]
    assert term.step(service) == []
    assert (term.points("ann"), term.points("bob")) == (2, 0.5)

    again = term.submit("ann", 1)
    assert term.step(service) == ["ann"]
    assert again.exists()
    assert term.points("ann") == 1
    assert len(os.listdir(term.course.root / f"grading/earlier/ann/{LAB}")) == 1

    # Another service on the same course, and `grade`, find everything done.
    assert term.step(term.service()) == []
    assert term.printed == []
    monkeypatch.setattr(grade_class, "open_pool", lambda *_: term.pool)
    assert main(["grade", LAB]) == 0
    assert term.pool.graded == []


def test_a_submission_that_is_already_graded_only_needs_a_page(term: Term) -> None:
    page = term.submit("ann", 2)
    term.step(term.service())
    page.unlink()  # as if the service had been killed before it wrote the page
    service = term.service()
    assert term.step(service) == []
    assert page.exists()
    same_notebook = term.submit("ann", 2)
    assert term.step(service) == []
    assert same_notebook.exists()


def test_a_student_who_submits_often_does_not_delay_others(term: Term) -> None:
    service = term.service()
    unread = [term.submit("ann", 0) for _ in range(3)]
    newest, _, _ = term.submit("ann", 2), term.submit("bob"), term.submit("cid")

    def submit_again(student: str) -> None:
        if student == "ann" and term.submissions < 8:
            term.submit("ann", 0.5 * (term.submissions - 6))
            term.now_s += EVERY_S

    term.pool.meanwhile = submit_again
    assert term.step(service) == ["ann", "bob", "cid", "ann", "ann"]
    assert newest.exists()
    assert not any(page.exists() for page in unread)
    assert term.points("ann") == 0.5


def test_grading_is_retried_after_a_failure_of_the_machine(term: Term) -> None:
    service = term.service()
    term.pool.failures = {"ann": "its worker died (killed by SIGKILL)"}
    page = term.submit("ann", 2)
    term.submit("bob", 1)
    assert term.step(service) == ["ann", "bob"]
    assert "ann" in term.printed[0]
    assert "infrastructure error (its worker died (killed by SIGKILL))" in term.printed[0]
    assert term.points("bob") == 1
    assert term.step(service) == []
    assert term.step(service, RETRY_S) == ["ann"]
    assert term.printed == []  # the same error is not reported again
    term.pool.failures = {}
    assert term.step(service, RETRY_S) == ["ann"]
    assert page.exists()


def test_writing_the_gradebook_is_retried(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Writer, record: Record, same_submission: bool = False) -> None:
        raise NotWritten("database is locked")

    service = term.service()
    page = term.submit("ann", 2)
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "write", refuse)
        assert term.step(service) == ["ann"]
    assert not page.exists()
    assert "ann, 03_ring_all_reduce: graded, but without a page yet: database is" in term.printed[0]
    assert term.step(service, RETRY_S) == []  # not graded twice
    assert page.exists()
    assert term.points("ann") == 2


def test_a_broken_submission_gets_a_page_and_does_not_stop_others(term: Term) -> None:
    service = term.service()
    page = term.submit("ann")
    (notebook,) = term.exchange.glob(f"inbound/ann+*/{LAB}.ipynb")
    notebook.unlink()
    notebook.symlink_to(term.course.root / f"solutions/{LAB}/{LAB}.ipynb")  # is not followed
    elsewhere = term.exchange / "inbound" / f"eve+{LAB}+2026-10-01 09:00:00 UTC+x"
    elsewhere.symlink_to(term.course.root / "solutions" / LAB)
    bob = term.submit("bob", 1)
    assert term.step(service) == ["ann", "bob"]
    assert "You submitted no notebook" in page.read_text()
    assert bob.exists()
    assert any("eve+" in line and "it is not a folder" in line for line in term.printed)
    assert any(
        "ann, 03_ring_all_reduce: unreadable file, 0 points" in line for line in term.printed
    )


def test_the_page_is_the_full_feedback_only_on_request(term: Term) -> None:
    """The late penalty, one started day of 0.5 points, is applied as by `grade`."""
    with term.course.gradebook as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate="2026-10-01 09:00:00")
    page = term.submit("ann", 2)
    term.step(term.service(shows_hidden=True))
    assert 'data-total="1.5"' in page.read_text()
    NbGraderApp.clear_instance()
    NbGraderApp.launch_instance(["generate_feedback", LAB])
    NbGraderApp.clear_instance()
    feedback = term.course.root / f"grading/feedback/ann/{LAB}/{LAB}.html"
    assert feedback.read_text() == page.read_text()
    other = term.submit("ann", 1)
    term.step(term.service())
    assert "data-total" not in other.read_text()
    assert "data-total" in page.read_text()


def test_a_changed_course_ends_the_service(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    service = term.service()
    term.submit("ann")
    monkeypatch.setattr(service_module, "code_version_on_disk", lambda: "another")
    with pytest.raises(CourseError, match="start it again"):
        term.step(service)


def test_the_error_without_an_exchange_says_how_to_create_one(term: Term) -> None:
    (term.exchange / "inbound").rmdir()
    with pytest.raises(UsageError, match=f"run `nbgrader release_assignment {LAB}`"):
        term.service()


def test_one_process_at_a_time(term: Term, capsys: pytest.CaptureFixture[str]) -> None:
    with LabGrading(LAB).journal.locked():
        assert main(["grade-on-submit", LAB, "--unsandboxed"]) == 2
    assert f"{LAB} is already being graded by process {os.getpid()}" in capsys.readouterr().err
