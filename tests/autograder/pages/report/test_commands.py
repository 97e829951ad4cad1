"""`python -m autograder export` and `report`: results for the instructor."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from autograder import exercises
from autograder.__main__ import main
from autograder.course.tries import Tries
from tests.autograder.pages.feedback.graded_course import (
    LAB,
    QUESTION,
    GradedCourse,
    Submission,
    fail,
    shown,
)

pytestmark = pytest.mark.timeout(600)

OTHER = "01_one_device"
MEAN = "returns the sum, not the mean: divide by world_size"
ORDER = "put the chunks in another order"
RING = exercises.load("ring_all_reduce.ring_all_reduce").cases
HIDDEN = [case.name for case in RING if case.hidden]
RING_NAMES = [case.name for case in RING]
VISIBLE = [case.name for case in RING if not case.hidden]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> GradedCourse:
    graded = GradedCourse(tmp_path_factory.mktemp("course"))
    GradedCourse(graded.root, OTHER)  # without submissions
    (graded.root / "solutions").symlink_to(Path(__file__).parents[4] / "solutions")
    graded.enroll("ada", first_name="Ada", last_name="Lovelace")
    graded.enroll("absent", last_name="=1+2")
    # Outputs of a graded notebook are not the student's own: nothing is read from there.
    forged = {**shown(), "metadata": Tries(99, 99).as_metadata("ring_all_reduce.ring_all_reduce")}
    graded.grade("ada", Submission(manual_score=2.0, outputs={"check_ring_all_reduce": [forged]}))
    for student, mistake, cases in (
        ("ben", MEAN, VISIBLE), ("cyd", MEAN, RING_NAMES), ("dee", ORDER, HIDDEN),
    ):  # fmt: skip
        failing = {"ring_all_reduce": fail("ring_all_reduce", mistake, cases)}
        graded.grade(student, Submission(failing=failing, penalty=1.0 if student == "ben" else 0.0))
    graded.grade(
        "eve",
        Submission(
            unwritten=tuple(e.answer for e in exercises.of_lab(LAB)),
            state="tampering",
            reason="`import ctypes` <b>",
            timing={"ran_s": 80.0, "decided_s": 1.0, "peak_bytes": 3.0 * 2**30},
        ),
    )
    for student, tries in (("fay", Tries(6, 5, {MEAN: 4})), ("gus", Tries(3, 0, {MEAN: 1}))):
        output = {"metadata": tries.as_metadata("ring_all_reduce.ring_all_reduce")}
        path = graded.root / "grading/submitted" / student / LAB / f"{LAB}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"cells": [{"outputs": [output]}]}))
    return graded


@pytest.fixture
def run(
    graded: GradedCourse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a command of `python -m autograder` and returns its output."""
    monkeypatch.chdir(graded.root)

    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    return run


def test_a_row_for_each_student_and_a_column_for_each_exercise(
    run: Callable[..., str], tmp_path: Path
) -> None:
    run("export", LAB, "--to", str(tmp_path / "out/grades.csv"))
    with (tmp_path / "out/grades.csv").open(newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["absent", "ada", "ben", "cyd", "dee", "eve", "fay", "gus"]
    names = [exercise.answer for exercise in exercises.of_lab(LAB)]
    columns = list(rows["ada"])
    assert columns[6 : 6 + len(names) + 1] == [*names, QUESTION]  # in the lab's order
    ada, ben, absent = rows["ada"], rows["ben"], rows["absent"]
    assert (ada["first_name"], ada["ring_all_reduce"], ada["total"], ada["max"]) == (
        "Ada", "5", "24", "24",
    )  # fmt: skip
    half = 5 * len(HIDDEN) / len(RING)
    assert float(ben["ring_all_reduce"]) == pytest.approx(half)
    assert float(ben["total"]) == pytest.approx(17 + half - 1)
    assert (ben["max_so_far"], ben["max"]) == ("22", "24")  # the question is not graded yet
    assert (ben["late_penalty"], ben[QUESTION], ben["to_grade_by_hand"]) == ("1", "", "1")
    assert (absent["state"], absent["total"], absent["chunk_bounds"]) == ("not submitted", "0", "")
    late = ("due_utc", "extended", "days_late", "free_days_used")
    assert [ben[column] for column in late] == ["2026-11-12 12:00:00", "", "1", "0"]
    assert [absent[column] for column in late] == [""] * 4
    assert absent["last_name"] == "'=1+2"  # not a formula
    assert rows["eve"]["state"] == "tampering"
    fay = rows["fay"]
    assert (fay["state"], fay["total"], fay["max_so_far"], fay["max"]) == (
        "not graded yet", "", "", "24",
    )  # fmt: skip


def test_without_a_lab_all_labs_are_exported(run: Callable[..., str]) -> None:
    rows = list(csv.DictReader(run("export").splitlines()))
    assert [row["lab"] for row in rows] == [OTHER] * 6 + [LAB] * 8
    ada_01, ada_03 = (row for row in rows if row["student"] == "ada")
    assert (ada_01["state"], ada_01[f"{OTHER}.accumulate"]) == ("not submitted", "")
    assert ada_03[f"{LAB}.ring_all_reduce"] == "5"


def test_an_unknown_lab_is_rejected_with_a_list_of_labs(
    run: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("export", "report"):
        assert main([command, "03_rign"]) == 2
        assert f"it has: {OTHER}, {LAB}" in capsys.readouterr().err


def test_the_report_counts_points_mistakes_time_and_states(
    run: Callable[..., str], graded: GradedCourse
) -> None:
    output = run("report", LAB)
    states = [line.split() for line in output.splitlines()[2:6]]
    assert states == [
        ["graded", "4"], ["tampering", "1", "eve"], ["not", "graded", "yet", "2", "fay,", "gus"],
        ["not", "submitted", "1", "absent"],
    ]  # fmt: skip
    # Only ada's question is graded: the others' counts neither as 0 nor toward the maximum.
    median = f"{100 * (17 + 5 * len(HIDDEN) / len(RING) - 1) / 22:.0f} %"  # ben's
    assert f"  points: median {median} of the points graded so far, from 0 % to 100 %;" in output
    assert "; 1 late" in output
    assert "4 with an answer that is not graded yet" in output
    assert re.search(rf"{QUESTION} .* 4   2.00 of 2\n", output)
    row = re.search(r"  ring_all_reduce  (.*)", output)
    assert row is not None
    assert row[1].split()[:5] == ["1", "2", "1", "1", "0"]  # full, part, none, stub, pending
    mistakes = [line.strip() for line in output.splitlines() if "  ring_all_reduce: " in line]
    assert mistakes == [
        f"2    2.5  ring_all_reduce: {MEAN}",
        f"1         ring_all_reduce: {ORDER} (in hidden cases only)",
    ]
    assert re.search(r"the notebook's cells +4.0 s +80.0 s +80.0 s", output)
    assert "eve: tampering. `import ctypes` <b>" in output
    assert re.search(r"  bytes_per_rank +0.80  fewer than 10 final scores\n", output)
    # fay's and gus's own checks; gus's has not passed
    assert re.search(r"  ring_all_reduce .* fewer than 10 final scores  5 \(1 of 2\)\n", output)
    assert re.search(r"\n  ben +2026-11-12 12:00 UTC +2026-11-12 14:03 UTC +1 +0 +1\n", output)
    for student in ("ada", "cyd", "dee"):
        assert student not in output  # names only of those that need attention


def test_the_report_names_who_submitted_nothing(
    run: Callable[..., str], graded: GradedCourse, tmp_path: Path
) -> None:
    assert "submitted nothing: absent\n" in run("report", LAB)
    roster = graded.root / "grading/roster.csv"  # `absent` has left the course
    roster.write_text("student\nada\nnewcomer\n")
    page = tmp_path / "page.html"
    try:
        assert "submitted nothing: newcomer\n" in run("report", LAB, "--to", str(page))
        rows = {row["student"]: row for row in csv.DictReader(run("export", LAB).splitlines())}
    finally:
        roster.unlink()
    assert "<p data-absent>newcomer</p>" in page.read_text()
    assert [rows[name]["state"] for name in ("absent", "newcomer")] == ["not submitted"] * 2


def test_the_report_says_which_penalties_the_policy_would_change(
    run: Callable[..., str], graded: GradedCourse
) -> None:
    config = graded.root / "nbgrader_config.py"
    before = config.read_text()
    config.write_text(f"{before}\nc.LateDays.points_per_day = 0.5\n")
    try:
        output = run("report", LAB)
    finally:
        config.write_text(before)
    assert re.search(r"  ben .* 1, should be 0.5: run python -m autograder late\n", output)


def test_an_ungraded_answer_is_not_0_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graded = GradedCourse(tmp_path)
    for student in ("ada", "ben"):
        graded.grade(student, Submission(penalty=1.0))
    monkeypatch.chdir(tmp_path)
    assert main(["report", LAB]) == 0
    output = capsys.readouterr().out
    assert "points: median 21 of 22 points graded so far, from 21 to 21; 2 late" in output
    assert re.search(rf"  {QUESTION} +0 +0 +0 +0 +2   not graded yet\n", output)
    page = (tmp_path / f"grading/reports/{LAB}.html").read_text()
    assert "<strong>21</strong> of 22 points graded so far" in page
    assert "not graded yet</td>" in page
    assert "0.00" not in page


def test_the_report_page_is_self_contained(run: Callable[..., str], tmp_path: Path) -> None:
    run("report", LAB, "--to", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert len(page) < 100_000
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" class="shardlab-static"') == 2
    assert "<script" not in page
    assert not re.search(r"\b(src|href)=\"(?!data:)", page)
    assert page.count("<tr data-late>") == 1
    assert "<code>import ctypes</code> &lt;b&gt;" in page
    assert '<td class="number">5 (1 of 2)</td>' in page
    assert f"{MEAN} (2; tries: 2.5); {ORDER} (1)</td>" in page  # of the exercise
    for hidden in HIDDEN:
        assert hidden not in page
