"""`python -m autograder grade`: grades everybody once, into nbgrader's gradebook.

Grading itself is faked here; test_grade_class.py runs the real thing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from autograder.__main__ import main
from autograder.grading.command import grade_class as command
from autograder.grading.gradebook.writer import NotWritten, Writer
from autograder.grading.pool import tasks
from autograder.grading.pool.journal import Journal, JournalError
from tests.autograder.grading.copied_course import REPO, Course, with_answers
from tests.autograder.grading.fake_class import FakePool

LAB = "03_ring_all_reduce"
QUESTION = "from_8_to_64_ranks"  # graded manually

pytestmark = [pytest.mark.nbgrader, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Course:
    course = Course.create(tmp_path_factory.mktemp("released"))
    done = course.nbgrader("generate_assignment", LAB)
    assert done.returncode == 0, done.stderr[-3000:]
    return course


@dataclass
class Class:
    course: Course
    capsys: pytest.CaptureFixture[str]
    pool: FakePool = field(default_factory=FakePool)

    def submit(self, **worth: float) -> None:
        for student, points in worth.items():
            answer = {"chunk_bounds": f"# worth {points}\npass"}
            notebook = with_answers(self.course.released(LAB), answer)
            path = self.path("submitted", student)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(notebook))

    def path(self, step: str, student: str) -> Path:
        return self.course.root / "grading" / step / student / LAB / f"{LAB}.ipynb"

    def grade(self, *options: str) -> int:
        """Returns the exit code; ``pool.graded`` then lists who was graded in this run."""
        self.pool.graded.clear()
        return main(["grade", LAB, *options])

    @property
    def output(self) -> str:
        out, err = self.capsys.readouterr()
        return out + err

    @property
    def journal(self) -> Journal:
        return Journal(self.course.root / "grading/records", LAB)

    def points(self) -> dict[str, float | None]:
        """{student: points of the first answer} from the gradebook."""
        with self.gradebook() as gradebook:
            return {
                submission.student.id: grade.auto_score
                for submission in gradebook.assignment_submissions(LAB)
                for grade in submission.notebooks[0].grades
                if grade.name == "check_chunk_bounds"
            }

    def submitted_at(self, student: str, text: str) -> Path:
        path = self.path("submitted", student).with_name("timestamp.txt")
        path.write_text(text)
        return path

    def deduct(self, points_per_day: float) -> None:
        """For work after noon of 2026-10-01."""
        with (self.course.root / "nbgrader_config.py").open("a") as config:
            config.write(f"\nc.LateDays.points_per_day = {points_per_day}\n")
        with self.gradebook() as gradebook:
            gradebook.update_or_create_assignment(LAB, duedate="2026-10-01 12:00")

    def penalties(self) -> dict[str, float]:
        with self.gradebook() as gradebook:
            found = gradebook.assignment_submissions(LAB)
            return {s.student_id: s.late_submission_penalty for s in found}

    def late_lines(self) -> list[str]:
        """What has been printed about late work since ``output`` was read."""
        _, _, lines = self.output.partition("\nLate work:\n")
        return [line.strip() for line in lines.splitlines()]

    def gradebook(self) -> Gradebook:
        return Gradebook(f"sqlite:///{self.course.root}/grading/gradebook.db")


@pytest.fixture
def lab(
    released: Course,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Class:
    """A class without submissions."""
    root = tmp_path / "course"
    subprocess.run(["cp", "-r", released.root, root], check=True)
    monkeypatch.chdir(root)
    a_class = Class(Course(root), capsys)
    monkeypatch.setattr(command, "open_pool", lambda *_: a_class.pool)
    return a_class


def test_a_class_is_graded_once(lab: Class) -> None:
    lab.submit(ann=2, bob=0.5, cid=0)
    assert lab.grade() == 0
    output = lab.output
    assert "[3/3] cid: graded, 0 points" in output
    assert "graded                    3" in output
    assert lab.points() == {"ann": 2, "bob": 0.5, "cid": 0}
    assert lab.journal.students() == ["ann", "bob", "cid"]

    written = lab.path("autograded", "ann").stat().st_mtime_ns
    assert lab.grade("--jobs", "1") == 0
    assert lab.pool.graded == []
    assert "3 submissions, nothing to grade" in lab.output
    assert lab.path("autograded", "ann").stat().st_mtime_ns == written

    lab.submit(bob=1.5, dan=1)
    assert lab.grade() == 0
    assert lab.pool.graded == ["bob", "dan"]
    assert lab.points() == {"ann": 2, "bob": 1.5, "cid": 0, "dan": 1}


def test_a_failing_machine_writes_no_zero(lab: Class) -> None:
    lab.submit(ann=2, bob=1)
    lab.pool.failures = {"bob": "its worker died (killed by SIGKILL)"}
    assert lab.grade() == 3
    output = lab.output
    assert "infrastructure error      1  bob\n" in output
    assert "bob: its worker died (killed by SIGKILL)" in output
    assert lab.points() == {"ann": 2}

    lab.pool.failures = {}
    assert lab.grade() == 0
    assert lab.pool.graded == ["bob"]
    assert lab.points() == {"ann": 2, "bob": 1}

    lab.pool.failures = {"bob": "no memory"}
    lab.submit(bob=2)
    assert lab.grade() == 3
    assert lab.points() == {"ann": 2, "bob": 1}  # the earlier grade is kept
    record = lab.journal.read("bob")
    assert record is not None
    assert record.points["check_chunk_bounds"] == 1


def test_lost_results_are_restored(
    lab: Class, released: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.submit(ann=2, bob=1, cid=0.5)
    written: list[str] = []
    write = Journal.write

    def full_after_one(self: Journal, record: object) -> None:
        if written:
            raise JournalError(
                "bob.json cannot be written (No space left on device): free disk space"
            )
        written.append("ann")
        write(self, record)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "write", full_after_one)
    assert lab.grade() == 3
    assert "No space left on device" in lab.output
    assert lab.points() == {"ann": 2}
    monkeypatch.setattr(Journal, "write", write)
    assert lab.grade() == 0
    assert lab.pool.graded == ["bob", "cid"]
    lab.output  # noqa: B018

    # a broken record, and half a notebook
    lab.journal.path("bob").write_text(lab.journal.path("bob").read_text()[:-50])
    notebook = lab.path("autograded", "cid")
    notebook.chmod(0o600)
    notebook.write_text(notebook.read_text()[:-50])
    assert lab.grade() == 0
    assert lab.pool.graded == ["bob"]
    assert "graded again: unreadable record:\n  bob: not a record" in lab.output
    assert json.loads(notebook.read_text())["cells"]

    # the gradebook: grades are restored from the records once autograded/ has been moved away
    shutil.copy(released.root / "grading/gradebook.db", lab.course.root / "grading")
    assert lab.grade() == 2
    assert "has no submission of ann, bob, cid" in lab.output
    assert lab.points() == {}
    (lab.course.root / "grading/autograded").rename(lab.course.root / "grading/autograded.old")
    assert lab.grade() == 0
    assert lab.pool.graded == []
    assert "has no submission of ann, bob, cid for 03_ring_all_reduce, but " in lab.output
    assert lab.grade() == 0
    assert "has no submission" not in lab.output
    assert lab.points() == {"ann": 2, "bob": 1, "cid": 0.5}


def test_another_gradebook_is_rejected_to_keep_manual_marks(
    lab: Class, released: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.submit(ann=2, **{f"s{number}": 1 for number in range(9)})
    assert lab.grade() == 0
    with lab.gradebook() as gradebook:
        notebook = gradebook.find_submission_notebook(LAB, LAB, "ann")
        notebook.comments[0].manual_comment = "Well put."
        gradebook.db.commit()
    lab.output  # noqa: B018

    other = lab.course.root / "other.db"
    shutil.copy(released.root / "grading/gradebook.db", other)
    with Gradebook(f"sqlite:///{other}") as gradebook:
        gradebook.add_student("ann")
    monkeypatch.setenv("SHARDLAB_DB_URL", f"sqlite:///{other}")
    lab.submit(zoe=1)
    for arguments in (["grade", LAB], ["grade", LAB, "--student", "zoe"], ["grade", "04_zero"]):
        assert main(arguments) == 2
        output = lab.output
        assert "has no submission of ann, s0, s1, s2, s3 and 5 others" in output
        assert "SHARDLAB_DB_URL" in output
        assert "grading/autograded" in output
    with Gradebook(f"sqlite:///{other}") as gradebook:
        assert gradebook.assignment_submissions(LAB) == []
    assert lab.path("autograded", "ann").exists()

    monkeypatch.delenv("SHARDLAB_DB_URL")
    assert main(["grade", "04_zero"]) == 2
    assert "does not contain 04_zero yet" in lab.output  # a new lab is not another gradebook
    assert lab.grade() == 0
    assert lab.pool.graded == ["zoe"]
    with lab.gradebook() as gradebook:
        notebook = gradebook.find_submission_notebook(LAB, LAB, "ann")
        assert notebook.comments[0].manual_comment == "Well put."


def test_records_missing_in_the_gradebook_are_written(
    lab: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.submit(ann=2, bob=1)

    def fails(*_: object) -> None:
        raise NotWritten("the database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", fails)
        assert lab.grade() == 3
    assert lab.journal.students() == ["ann", "bob"]
    assert lab.points() == {}
    assert lab.grade() == 0
    assert lab.pool.graded == []
    assert lab.points() == {"ann": 2, "bob": 1}


def test_a_regrade_shows_changes_and_keeps_manual_marks(
    lab: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.submit(ann=2, bob=1)
    assert lab.grade() == 0
    with lab.gradebook() as gradebook:
        notebook = gradebook.find_submission_notebook(LAB, LAB, "ann")
        for grade in notebook.grades:
            if grade.name == QUESTION:
                grade.manual_score, grade.needs_manual_grade = 1.5, False
        notebook.comments[0].manual_comment = "Well put."
        gradebook.db.commit()

    monkeypatch.setattr(tasks, "code_version", lambda: "another")
    lab.pool.bonus = 0.5
    assert lab.grade() == 0
    assert lab.pool.graded == []
    assert "2 were graded by an older version: grade again with --regrade" in lab.output

    monkeypatch.setattr("builtins.input", lambda: "n")
    assert lab.grade("--regrade") == 0
    assert lab.pool.graded == ["ann", "bob"]
    output = lab.output
    assert "Regraded 2 with the current version: points change for 1.\n" in output
    assert "  bob: 1 → 1.5 (+0.5): chunk_bounds 1 → 1.5\n" in output
    assert "Nothing was changed" in output
    assert f"{LAB}: 2 submissions, 2 regraded, but not written\n" in output
    assert "graded now" not in output
    assert "slowest" not in output
    assert lab.points() == {"ann": 2, "bob": 1}

    assert lab.grade("--regrade", "--yes") == 0
    assert lab.pool.graded == []  # kept from before
    output = lab.output
    assert "bob: 1 → 1.5" in output
    assert f"{LAB}: 2 submissions, 2 regrades written\n" in output
    assert lab.points() == {"ann": 2, "bob": 1.5}
    with lab.gradebook() as gradebook:
        notebook = gradebook.find_submission_notebook(LAB, LAB, "ann")
        (question,) = [grade for grade in notebook.grades if grade.name == QUESTION]
        assert (question.manual_score, question.needs_manual_grade) == (1.5, False)
        assert [comment.manual_comment for comment in notebook.comments].count("Well put.") == 1

    assert lab.grade("--regrade") == 0
    assert lab.pool.graded == []
    output = lab.output
    assert "nothing to grade: what this version of the course has graded is not" in output
    assert "older version" not in output


def test_a_lab_whose_source_was_not_built_is_not_graded(lab: Class) -> None:
    lab.submit(ann=2)
    source = lab.course.root / f"solutions/{LAB}/{LAB}.nb.py"
    source.write_text(source.read_text().replace('"grade": true', '"grade": true, "points": 3', 1))
    for options in ([], ["--regrade", "--yes"]):
        assert lab.grade(*options) == 2
        output = lab.output
        assert "must not set points" in output
        assert "Fix this, then run `python -m autograder build`" in output
    assert lab.pool.graded == []
    assert lab.points() == {}


def test_everybody_with_a_folder_has_a_row(lab: Class) -> None:
    lab.submit(ann=2, eve=1)
    lab.path("submitted", "ben").parent.mkdir(parents=True)
    lab.submit(cas=1)
    lab.path("submitted", "cas").rename(lab.path("submitted", "cas").with_name("homework.ipynb"))
    (lab.course.root / "grading/submitted/dot").symlink_to("ann")
    (lab.path("submitted", "eve").parent / "notes.txt").symlink_to("/etc/passwd")
    with lab.gradebook() as gradebook:
        gradebook.add_student("zoe")
    assert lab.grade() == 0
    assert "1 student in the gradebook without a submission for " in lab.output
    assert lab.points() == {"ann": 2, "ben": 0, "cas": 1, "dot": 0, "eve": 1}
    record = lab.journal.read("ben")
    assert record is not None
    assert "You submitted no notebook" in record.reason
    assert [path.name for path in lab.path("autograded", "eve").parent.iterdir()] == [
        f"{LAB}.ipynb"
    ]


UNUSUAL_NAMES = [
    "O'Brien & Söhne (2)",
    "a+b@x.org",
    "-x",
    "12",
    "$HOME {0} ^",
    "x" * 128,
    "ä" * 120,
]


def test_unusual_names_work_from_grading_to_export(lab: Class) -> None:
    lab.submit(**dict.fromkeys(UNUSUAL_NAMES, 1.5))
    assert lab.grade() == 0
    assert lab.points() == dict.fromkeys(UNUSUAL_NAMES, 1.5)
    done = lab.course.nbgrader("generate_feedback", LAB)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = lab.course.root / "grading/feedback"
    assert {path.parts[-3] for path in pages.glob(f"*/{LAB}/{LAB}.html")} == set(UNUSUAL_NAMES)
    assert main(["export", LAB]) == 0
    exported = lab.output
    assert exported.count(",graded,") == len(UNUSUAL_NAMES)
    assert lab.course.nbgrader("export").returncode == 0


UNUSABLE = {
    "x" * 252: "is longer than 128 characters",
    "😀" * 63: "is longer than 240 bytes",
    "caf\udce9": "is not UTF-8",
    ".hidden": "begins with a dot",
    "...": "begins with a dot",
    "two\nlines": "contains a line break or another unprintable character",
    "ada ": "begins or ends with a space",
    "b[o]b": "contains [",
    "*": "contains *",
    "Lovelace, Ada": "contains ,",
}


def test_an_unusable_name_is_reported_and_others_are_graded(lab: Class) -> None:
    lab.submit(**dict.fromkeys(UNUSABLE, 1), ann=2)
    assert lab.grade() == 3
    assert lab.points() == {"ann": 2}
    output = lab.output
    assert "11 submissions" in output
    assert "not graded: unusable folder name (rename the folder, then " in output
    for name, why in UNUSABLE.items():
        assert f"  {name!r} {why}" in output
    assert main(["report", LAB]) == 0
    output = lab.output
    for name in UNUSABLE:
        assert f"{name!r}: not graded yet. The folder name " in output
    assert main(["export", LAB]) == 0
    assert f"{LAB}: '.hidden' is left out, because its name begins with a dot" in lab.output

    assert lab.grade("--student", "ann") == 0
    assert "unusable folder name" not in lab.output
    assert lab.grade("--student", ".hidden") == 2
    assert "'.hidden' begins with a dot" in lab.output


def test_a_class_of_unusable_names_is_not_empty(lab: Class) -> None:
    lab.submit(**{".hidden": 1})
    assert lab.grade() == 3
    assert "'.hidden' begins with a dot" in lab.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["grade", "03_ring"], "there is no lab '03_ring': choose from 01_one_device, "),
        (
            ["grade", "04_zero"],
            "gradebook does not contain 04_zero yet: run `nbgrader generate_assignment 04_zero`",
        ),
        (["grade", LAB], f"there are no submissions for {LAB}: run `python -m autograder "),
        (["grade", LAB, "--jobs", "0"], "--jobs 0: at least one worker is needed"),
        (["grade", LAB, "--student", "anm"], "anm has not submitted 03_ring_all_reduce: did you "),
    ],
)
def test_wrong_usage_says_what_to_do(lab: Class, arguments: list[str], says: str) -> None:
    if "--student" in arguments:
        lab.submit(ann=1)
    assert main(arguments) == 2
    assert says in lab.output


def test_flags_cannot_be_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):  # rather than regrading
        main(["grade", LAB, "--regrad"])
    assert "unrecognized arguments: --regrad" in capsys.readouterr().err


def test_one_process_at_a_time(lab: Class) -> None:
    lab.submit(ann=1)
    with lab.journal.locked():
        assert lab.grade() == 2
    output = lab.output
    assert f"{LAB} is already being graded by process {os.getpid()}" in output
    assert "grade-on-submit" in output
    assert lab.pool.graded == []


def test_a_killed_run_continues_where_it_stopped(lab: Class, tmp_path: Path) -> None:
    lab.submit(**{f"s{number}": number / 4 for number in range(5)})
    graded, gate = tmp_path / "graded", tmp_path / "gate"
    environment = {
        **os.environ,
        "GRADED": str(graded), "GATE": str(gate), "SLOW": "s2 s3 s4",
        "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    command_line = [sys.executable, "-m", "tests.autograder.grading.fake_class"]
    command_line += ["grade", LAB, "--jobs", "2", "--unsandboxed"]  # fake workers
    first = subprocess.Popen(
        command_line, env=environment, cwd=lab.course.root, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    waiting_for = ["s3: started", "s0: graded", "s1: graded"]
    for line in first.stdout:
        waiting_for = [words for words in waiting_for if words not in line]
        if not waiting_for:
            break
    while len(graded.read_text().split()) < 4:  # "started" is printed before its worker has it
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = set(lab.journal.students())
    assert before == {"s0", "s1"}

    gate.touch()
    second = subprocess.run(command_line, env=environment, cwd=lab.course.root, check=False)
    assert second.returncode == 0
    assert lab.points() == {f"s{number}": number / 4 for number in range(5)}
    counts = sorted(graded.read_text().split())
    assert counts == ["s0", "s1", "s2", "s2", "s3", "s3", "s4"]


def test_without_a_policy_a_manual_penalty_survives_grading(lab: Class) -> None:
    lab.submit(ann=2, bob=2)
    lab.submitted_at("bob", "2026-10-03 11:00 UTC")
    with lab.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate="2026-10-01 12:00")
    assert lab.grade() == 0
    with lab.gradebook() as gradebook:
        for student in ("ann", "bob"):  # on time, and late
            notebook = gradebook.find_submission_notebook(LAB, LAB, student)
            notebook.late_submission_penalty = 1.5
        gradebook.db.commit()
    lab.submit(ann=1, bob=1)  # again, so both are written again
    assert lab.grade() == 0
    assert lab.pool.graded == ["ann", "bob"]
    assert lab.penalties() == {"ann": 1.5, "bob": 1.5}


def test_an_invalid_extension_stops_grading_and_a_valid_one_counts(lab: Class) -> None:
    lab.deduct(points_per_day=0.5)
    lab.submit(ann=2, bob=2)
    for student in ("ann", "bob"):
        lab.submitted_at(student, "2026-10-03 11:00 UTC")  # on the second day
    table = lab.course.root / "grading/extensions.csv"
    table.write_text(f"student,lab,days,until,reason\nann,{LAB},soon,,\n")
    assert lab.grade() == 2
    assert "extensions.csv, line 2: days is 'soon'" in lab.output
    assert lab.pool.graded == []

    table.write_text(f"student,lab,days,until,reason\nann,{LAB},1,,ill\n")
    assert lab.grade() == 0
    table.write_text(f"student,lab,days,until,reason\nann,{LAB},2,,ill\n")
    assert lab.grade() == 0
    assert f"ann, {LAB}: late penalty 0.5 -> 0" in lab.output
    assert lab.penalties() == {"ann": 0, "bob": 1}


def test_grade_prints_each_penalty_that_it_changes_once(lab: Class) -> None:
    lab.deduct(points_per_day=0.5)
    lab.submit(ann=2, bob=2)
    lab.submitted_at("bob", "2026-10-02 11:00:00 UTC\n")
    assert lab.grade() == 0
    assert lab.late_lines() == [f"bob, {LAB}: late penalty 0 -> 0.5"]

    lab.submitted_at("ann", "2026-10-03 11:00 +0000\n")  # the file was missing
    lab.submitted_at("bob", "2026-10-03 11:00:00 UTC\n")
    assert lab.grade() == 0
    assert lab.pool.graded == []
    assert lab.late_lines() == [
        f"ann, {LAB}: late penalty 0 -> 1",
        f"bob, {LAB}: late penalty 0.5 -> 1",
    ]
    assert lab.penalties() == {"ann": 1, "bob": 1}

    lab.submit(bob=1)  # again, and a day later
    lab.submitted_at("bob", "2026-10-04 11:00:00 UTC\n")
    assert lab.grade() == 0
    assert lab.late_lines() == [f"bob, {LAB}: late penalty 1 -> 1.5"]

    assert main(["late"]) == 0
    assert "timestamp.txt" not in lab.output  # both are in the gradebook
    assert lab.grade() == 0
    assert lab.late_lines() == []


def test_an_unreadable_time_is_quoted_and_others_are_graded(lab: Class) -> None:
    lab.deduct(points_per_day=0.5)
    lab.submit(ann=2, bob=1)
    lab.submitted_at("ann", "2026-10-02 11:00:00 UTC\n")
    path = lab.submitted_at("bob", "yesterday evening-ish\n")
    assert lab.grade() == 3
    says = f"{path} contains 'yesterday evening-ish', which is not a time: write one such as "
    says += "2026-10-02 13:00:00 UTC"
    assert f"  bob: {says}" in lab.output
    assert lab.points() == {"ann": 2}
    assert lab.penalties() == {"ann": 0.5}

    lab.submitted_at("bob", "2026-10-03 11:00:00 UTC\n")
    assert lab.grade() == 0
    assert lab.pool.graded == []
    assert lab.penalties() == {"ann": 0.5, "bob": 1}

    lab.submitted_at("bob", "yesterday evening-ish\n")
    assert main(["late"]) == 3
    assert says in lab.output
    assert lab.penalties() == {"ann": 0.5, "bob": 1}


def test_a_declined_regrade_changes_no_penalty(lab: Class, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.deduct(points_per_day=0.5)
    lab.submit(ann=2)
    lab.submitted_at("ann", "2026-10-02 11:00:00 UTC\n")
    assert lab.grade() == 0
    assert lab.late_lines() == [f"ann, {LAB}: late penalty 0 -> 0.5"]
    lab.deduct(points_per_day=1)
    monkeypatch.setattr(tasks, "code_version", lambda: "another")
    monkeypatch.setattr("builtins.input", lambda: "n")
    lab.pool.bonus = -0.5
    assert lab.grade("--regrade") == 0
    output = lab.output
    assert "Nothing was changed" in output
    assert "late penalty" not in output
    assert "Late work was not updated: run `python -m autograder late`" in output
    assert lab.penalties() == {"ann": 0.5}

    assert lab.grade("--regrade", "--yes") == 0
    assert lab.late_lines() == [f"ann, {LAB}: late penalty 0.5 -> 1"]
    assert lab.penalties() == {"ann": 1}
