"""Feedback pages and formgrader in the browser, with hostile notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.autograder.pages.feedback.graded_course import (
    GradedCourse,
    Submission,
    code_cell,
    fail,
    prose_cell,
    ring_pictures,
)
from tests.autograder.pages.html import hostile
from tests.conftest import STEP_LIMIT_MS
from tests.running_lab import LabServer

pytestmark = [pytest.mark.browser, pytest.mark.nbgrader]

LAB = "01_one_device"
CHECKS = 4
MISTAKE = "counts a target of -100: cross_entropy leaves it out of its mean"

DOT = (  # one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJg"
    "gg=="
)


@pytest.fixture(scope="module")
def graded_course(lab_server: LabServer) -> GradedCourse:
    """ada, whose page has every kind of content, and mallory, whose notebook attacks the page."""
    graded = GradedCourse(lab_server.root, LAB)
    graded.grade(
        "ada",
        Submission(
            failing={"accumulate": fail("accumulate", MISTAKE, ["some targets are -100"], LAB)},
            pictures={"check_accumulate": ring_pictures()},
            comments={"accumulate": "Close. Which sum do you **divide** by?"},
            state="resource limit",
            reason="`DynamicLossScaler`, 3 ranks: the run used more than 2 GB of memory.",
            notes=("The cell `check_accumulate` had been changed: the lab's own text was used.",),
            own_cells=[
                code_cell("1", {"output_type": "stream", "name": "stdout", "text": "hello"})
            ],
        ),
    )
    cells = [code_cell("show()", *outputs) for outputs in hostile.outputs().values()]
    cells += [prose_cell(fragment) for fragment in hostile.FRAGMENTS.values()]
    cells += [prose_cell(source) for source in hostile.MARKDOWN.values()]
    cells.append(prose_cell("![dot](attachment:dot.png)"))
    cells[-1].attachments = {"dot.png": {"image/png": DOT}}
    graded.grade("mallory", Submission(own_cells=cells))
    for student in ("ada", "mallory"):
        (graded.root / "grading/submitted" / student / LAB).mkdir(parents=True)
    return graded


class WatchedPage:
    """A page in a separate context that records, and blocks, requests to anything but ``home``."""

    def __init__(self, browser: Browser, home: str) -> None:
        context = self.context = browser.new_context(viewport={"width": 1200, "height": 1000})
        context.set_default_timeout(STEP_LIMIT_MS)
        self.home = home
        self.foreign_requests: list[str] = []
        self.errors: list[str] = []
        self.page: Page = context.new_page()
        context.on("request", self._record)
        context.route(lambda url: not self._is_allowed(url), lambda route: route.abort())
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _is_allowed(self, url: str) -> bool:
        return url.startswith((self.home, "data:", "about:"))

    def _record(self, request: Request) -> None:
        if not self._is_allowed(request.url):
            self.foreign_requests.append(request.url)

    def assert_nothing_happened(self, title: str) -> None:
        """Checks after clicking every bait ("grade me")."""
        for bait in self.page.get_by_text("grade me").all():
            bait.click(no_wait_after=True)
        assert self.page.evaluate("window.pwned") is None
        assert self.page.title() == title
        assert self.foreign_requests == []
        assert self.context.pages == [self.page]
        assert self.page.frames == [self.page.main_frame]
        assert self.errors == []


@pytest.fixture
def open_watched(browser: Browser) -> Iterator[Callable[[str], WatchedPage]]:
    opened: list[WatchedPage] = []

    def open_window(home: str) -> WatchedPage:
        opened.append(WatchedPage(browser, home))
        return opened[-1]

    yield open_window
    for window in opened:
        window.context.close()


def test_formgrader_shows_a_hostile_notebook_safely(
    graded_course: GradedCourse,
    lab_server: LabServer,
    open_watched: Callable[[str], WatchedPage],
    artifacts: Path,
) -> None:
    with graded_course.gradebook as gradebook:
        submission = gradebook.find_submission_notebook(LAB, LAB, "mallory").id
    window = open_watched(lab_server.url)
    page = window.page
    page.goto(lab_server.url_of("/formgrader/manage_students"))  # logs in
    page.goto(lab_server.url_of(f"/formgrader/submissions/{submission}/"))
    # formgrader's own script has run completely, without MathJax.
    expect(page.locator("#check_accumulate")).to_have_attribute("placeholder", "5")
    expect(page.locator(".shardlab-check")).to_have_count(CHECKS)
    expect(page.locator(".shardlab-check .line.ok").first).to_be_visible()
    expect(page.locator("nav")).to_be_visible()
    assert page.get_by_alt_text("dot").evaluate("image => image.naturalWidth") == 1
    window.assert_nothing_happened(LAB)
    page.screenshot(path=artifacts / "formgrader-hostile.png")


def test_formgraders_button_makes_self_contained_pages(
    graded_course: GradedCourse,
    lab_server: LabServer,
    open_watched: Callable[[str], WatchedPage],
    artifacts: Path,
) -> None:
    window = open_watched(lab_server.url)
    page = window.page
    page.goto(lab_server.url_of("/formgrader/manage_students"))  # logs in
    page.goto(lab_server.url_of("/formgrader/manage_assignments"))
    page.locator("tr", has_text=LAB).locator(".generate-feedback a").click()
    expect(page.get_by_text(f"Successfully generated feedback of '{LAB}'.")).to_be_visible()

    for student in ("ada", "mallory"):
        path = graded_course.root / "grading/feedback" / student / LAB / f"{LAB}.html"
        alone = open_watched(path.as_uri())
        alone.page.goto(path.as_uri())
        expect(alone.page.locator(".shardlab-check")).to_have_count(CHECKS)
        for dot in alone.page.get_by_alt_text("dot").all():
            assert dot.evaluate("image => image.naturalWidth") == 1
        alone.assert_nothing_happened(f"{LAB}: {student}")
        for theme in ("light", "dark"):
            alone.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            alone.page.screenshot(
                path=artifacts / f"feedback-{student}-{theme}.png", full_page=student == "ada"
            )
