"""An instructor releases the lab, grades two students and reads their scores in formgrader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from playwright.sync_api import FrameLocator, expect

from tests.browser.jupyterlab import JupyterLab
from tests.browser.notebooks import LAB, SOLUTION, write_answered
from tests.running_lab import LabServer
from tests.submissions import planted

pytestmark = [pytest.mark.browser, pytest.mark.nbgrader, pytest.mark.ranks]

GRACE = {mistake.name: mistake for mistake in planted.of_lab(LAB)}["sum_instead_of_mean"]
QUESTION = "from_8_to_64_ranks"
CODE_POINTS = 22.0  # the other 2 are for the question, which is graded by hand


def nbgrader(server: LabServer, *arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=server.root,
        env={
            **{name: value for name, value in os.environ.items() if "JUPYTER" not in name},
            "HOME": str(server.home),
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.fixture(scope="module")
def graded(lab_server: LabServer) -> LabServer:
    """ada submits the solution; grace submits one mistake, a day late."""
    for student, answers in {"ada": SOLUTION, "grace": SOLUTION | GRACE.answers}.items():
        submitted = lab_server.root / "grading/submitted" / student / LAB / f"{LAB}.ipynb"
        write_answered(submitted, answers)
    nbgrader(lab_server, "generate_assignment", LAB)
    nbgrader(lab_server, "release_assignment", LAB)
    nbgrader(lab_server, "autograde", LAB)
    with Gradebook(f"sqlite:///{lab_server.root}/grading/gradebook.db") as gradebook:
        gradebook.update_or_create_student("ada", first_name="Ada", last_name="Lovelace")
        notebook = gradebook.find_submission_notebook(LAB, LAB, "grace")
        notebook.late_submission_penalty = 1.0
        gradebook.db.commit()
    return lab_server


@pytest.fixture(scope="module")
def formgrader(loaded_lab: JupyterLab, graded: LabServer) -> FrameLocator:
    loaded_lab.menu("Nbgrader", "Formgrader")
    return loaded_lab.page.frame_locator("iframe[src*='formgrader']")


def test_the_lab_and_its_submissions_are_listed(formgrader: FrameLocator) -> None:
    row = formgrader.locator("tr", has=formgrader.get_by_role("link", name=LAB, exact=True))
    expect(row.locator(".num-submissions")).to_have_text("2")


def test_both_scores_are_shown(lab: JupyterLab, formgrader: FrameLocator, artifacts: Path) -> None:
    formgrader.locator("tr", has_text=LAB).locator(".num-submissions a").click()
    lost = sum(GRACE.loses.values())
    for student, points in (("ada", CODE_POINTS), ("grace", CODE_POINTS - lost)):
        row = formgrader.locator("tr", has_text=student)
        late = f"{points - 1:g} / 24after a late penalty of 1 point"
        expected = late if student == "grace" else f"{points:g} / 24"
        expect(row.locator(".score")).to_have_text(expected)
        expect(row.locator(".status")).to_have_text("needs manual grading")
    expect(formgrader.locator("tr", has_text="Lovelace, Ada")).to_have_count(1)
    command = f"No class report yet: python -m autograder report {LAB}"
    expect(formgrader.locator(".class-report")).to_have_text(command)
    lab.screenshot_in_both_themes(
        artifacts, {"formgrader-submissions": lambda: lab.page.locator("#main")}
    )


def test_a_submission_can_be_read_and_the_question_graded(
    lab: JupyterLab, formgrader: FrameLocator, artifacts: Path
) -> None:
    formgrader.get_by_role("link", name="Manual Grading").click()
    formgrader.get_by_role("link", name=LAB, exact=True).click()
    expect(formgrader.locator(".breadcrumb .active")).to_have_text(LAB)  # lists one notebook
    formgrader.get_by_role("link", name=LAB, exact=True).click()
    rows = formgrader.locator("tbody tr")
    expect(rows).to_have_count(2)
    lost = sum(GRACE.loses.values())
    late = f"{CODE_POINTS - lost - 1:g} / 24after a late penalty of 1 point"
    rows.filter(has_text=late).get_by_role("link", name=re.compile("Submission #")).click()

    expect(formgrader.locator("input.score")).to_have_count(7)
    expect(formgrader.locator("#check_chunk_bounds")).to_have_attribute("placeholder", "2")
    expect(formgrader.locator("#check_ring_all_reduce")).to_have_attribute(
        "placeholder", f"{5 - lost:g}"
    )
    page = formgrader.locator("body")
    expect(page).to_contain_text("returns the sum, not the mean: divide by world_size")
    assert_readable(formgrader)
    table = formgrader.locator(".shardlab-check[data-exercise$='.ring_all_reduce']")
    table.scroll_into_view_if_needed()
    lab.screenshot_in_both_themes(
        artifacts, {"formgrader-submission": lambda: lab.page.locator("#main")}
    )


def test_written_answers_are_graded_question_by_question(
    lab: JupyterLab, graded: LabServer, formgrader: FrameLocator, artifacts: Path
) -> None:
    formgrader.locator(".breadcrumb").get_by_role("link", name="Manual Grading").click()
    formgrader.get_by_role("link", name="Manage Assignments").click()
    formgrader.locator("tr", has_text=LAB).locator(".num-submissions a").click()
    formgrader.locator("a.written-answers").click()
    progress, points = formgrader.locator("#progress"), formgrader.locator("#points")
    expect(progress).to_have_text("0 of 2 graded")
    expect(formgrader.locator(".answer:visible")).to_contain_text("Nine times")
    expect(formgrader.get_by_text("Lovelace, Ada (ada)")).to_be_hidden()
    body = formgrader.locator("body")
    body.press("1")
    body.press("3")
    expect(points).to_have_value("1")
    formgrader.locator("#reusable").select_option(index=1)
    lab.screenshot_in_both_themes(
        artifacts, {"formgrader-written": lambda: lab.page.locator("#main")}
    )
    formgrader.get_by_role("button", name="Save and next").click()
    expect(progress).to_have_text("1 of 2 graded")
    body.press("0")
    body.press("n")
    expect(progress).to_have_text("2 of 2 graded")
    body.press("p")
    expect(points).to_have_value("1")
    expect(formgrader.locator(".item").nth(2)).to_be_checked()
    formgrader.locator("#names").check()
    expect(formgrader.locator(".answer:visible .student")).to_be_visible()

    with Gradebook(f"sqlite:///{graded.root}/grading/gradebook.db") as gradebook:
        grades = [gradebook.find_grade(QUESTION, LAB, LAB, one) for one in ("ada", "grace")]
        assert sorted(grade.manual_score for grade in grades) == [0, 1]
        assert not any(grade.needs_manual_grade for grade in grades)
        comments = [gradebook.find_comment(QUESTION, LAB, LAB, one) for one in ("ada", "grace")]
        (comment,) = filter(None, (one.manual_comment for one in comments))
        assert comment.startswith("- 1 KB: about 9 times, or in proportion to N (0.5)\n")
        assert "Count the steps of a ring" in comment


def assert_readable(formgrader: FrameLocator) -> None:
    """Student output is in 11 pixels or more, and pictures have no frame."""
    sizes = formgrader.locator(".output pre, .output td").evaluate_all(
        "all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(sizes) >= 11
    frame = formgrader.locator("body").evaluate(
        """body => {
            const picture = body.appendChild(document.createElement("img"));
            const width = getComputedStyle(picture).borderTopWidth;
            picture.remove();
            return width;
        }"""
    )
    assert frame == "0px"


def test_the_assignment_list_offers_the_lab(
    lab: JupyterLab, graded: LabServer, artifacts: Path
) -> None:
    lab.menu("Nbgrader", "Assignment List")
    released = lab.page.locator("#released_assignments_list")
    expect(released).to_contain_text(LAB)
    expect(released.get_by_role("button", name="Fetch")).to_be_visible()
    lab.screenshot_in_both_themes(artifacts, {"assignment-list": lambda: lab.page.locator("#main")})
