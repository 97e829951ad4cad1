"""An instructor releases the lab, grades two students and reads their scores in formgrader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import FrameLocator, expect

from tests.browser.jupyterlab import JupyterLab
from tests.browser.notebooks import LAB, SOLUTION, write_answered
from tests.running_lab import LabServer
from tests.submissions import planted

pytestmark = [pytest.mark.browser, pytest.mark.nbgrader, pytest.mark.ranks]

GRACE = {mistake.name: mistake for mistake in planted.of_lab(LAB)}["sum_instead_of_mean"]
CODE_POINTS = 18.0  # the other 2 are for the question, which is graded by hand


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
    """ada submits the solution, grace one mistake."""
    for student, answers in {"ada": SOLUTION, "grace": SOLUTION | GRACE.answers}.items():
        submitted = lab_server.root / "grading/submitted" / student / LAB / f"{LAB}.ipynb"
        write_answered(submitted, answers)
    nbgrader(lab_server, "generate_assignment", LAB)
    nbgrader(lab_server, "release_assignment", LAB)
    nbgrader(lab_server, "autograde", LAB)
    return lab_server


@pytest.fixture(scope="module")
def formgrader(lab: JupyterLab, graded: LabServer) -> FrameLocator:
    lab.visit()
    lab.menu("Nbgrader", "Formgrader")
    return lab.page.frame_locator("iframe[src*='formgrader']")


def test_the_lab_and_its_submissions_are_listed(formgrader: FrameLocator) -> None:
    row = formgrader.locator("tr", has=formgrader.get_by_role("link", name=LAB, exact=True))
    expect(row.locator(".num-submissions")).to_have_text("2")


def test_both_scores_are_shown(lab: JupyterLab, formgrader: FrameLocator, artifacts: Path) -> None:
    formgrader.locator("tr", has_text=LAB).locator(".num-submissions a").click()
    lost = sum(GRACE.loses.values())
    for student, points in (("ada", CODE_POINTS), ("grace", CODE_POINTS - lost)):
        row = formgrader.locator("tr", has_text=student)
        expect(row.locator(".score")).to_have_text(f"{points:g} / 20")
        expect(row.locator(".status")).to_have_text("needs manual grading")
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
    score = formgrader.get_by_text(f"{CODE_POINTS - lost:g} / 20", exact=True)
    rows.filter(has=score).get_by_role("link", name=re.compile("Submission #")).click()

    expect(formgrader.locator("input.score")).to_have_count(6)
    expect(formgrader.locator("#check_chunk_bounds")).to_have_attribute("placeholder", "2")
    expect(formgrader.locator("#check_ring_all_reduce")).to_have_attribute(
        "placeholder", f"{5 - lost:g}"
    )
    page = formgrader.locator("body")
    expect(page).to_contain_text("returns the sum, not the mean: divide by world_size")
    table = formgrader.locator(".shardlab-check[data-exercise$='.ring_all_reduce']")
    table.scroll_into_view_if_needed()
    lab.screenshot_in_both_themes(
        artifacts, {"formgrader-submission": lambda: lab.page.locator("#main")}
    )


def test_the_assignment_list_offers_the_lab(
    lab: JupyterLab, graded: LabServer, artifacts: Path
) -> None:
    lab.menu("Nbgrader", "Assignment List")
    released = lab.page.locator("#released_assignments_list")
    expect(released).to_contain_text(LAB)
    expect(released.get_by_role("button", name="Fetch")).to_be_visible()
    lab.screenshot_in_both_themes(artifacts, {"assignment-list": lambda: lab.page.locator("#main")})
