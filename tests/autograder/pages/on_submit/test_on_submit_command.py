"""From `nbgrader submit` to `nbgrader fetch_feedback`: the real command in the real sandbox."""

from __future__ import annotations

import getpass
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.autograder.grading.copied_course import REPO, Course, source_of, with_answers

LAB = "03_ring_all_reduce"

pytestmark = [pytest.mark.nbgrader, pytest.mark.ranks, pytest.mark.timeout(600)]

ME = getpass.getuser()
AS_STUDENT = "--Exchange.assignment_dir=student"


@contextmanager
def running(course: Course) -> Iterator[subprocess.Popen[str]]:
    """The service, killed when the block ends."""
    command = [sys.executable, "-m", "autograder", "grade-on-submit", LAB, "--jobs", "1"]
    with subprocess.Popen(
        [*command, "--every", "0.1"],
        cwd=course.root,
        env={**course.environment, "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as service:
        try:
            yield service
        finally:
            if service.poll() is None:
                service.kill()


def line_with(service: subprocess.Popen[str], text: str) -> str:
    """The next line of output that contains ``text``."""
    lines = []
    assert service.stdout is not None
    for line in service.stdout:
        lines.append(line)
        if text in line:
            return line
    raise AssertionError("".join(lines))


def submit(course: Course, content: str) -> None:
    path = course.root / "student" / LAB / f"{LAB}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    nbgrader(course, f"submit {LAB} {AS_STUDENT}")


def fetched(course: Course) -> list[str]:
    """The pages that the student has fetched, the oldest submission first."""
    folder = course.root / "student" / LAB / "feedback"
    return [path.read_text() for path in sorted(folder.glob(f"*/{LAB}.html"))]


def nbgrader(course: Course, *commands: str) -> None:
    done = course.nbgrader_in_one_process(*commands)
    assert done.returncode == 0, done.stderr[-3000:]


def row_of(page: str, cell: str) -> str:
    row = page.partition(f'<tr data-exercise="{cell}">')[2].partition("</tr>")[0]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)).strip()


def test_students_fetch_a_page_for_each_submission(tmp_path: Path) -> None:
    course = Course.create(tmp_path)
    nbgrader(course, f"generate_assignment {LAB}", f"release_assignment {LAB}")
    answer = source_of(course.solution(LAB), "chunk_bounds")
    with running(course) as service:
        line_with(service, "Watching ")
        submit(course, '{"cells": [')
        assert "unreadable file, 0 points" in line_with(service, "page after")
        submit(course, json.dumps(with_answers(course.released(LAB), {"chunk_bounds": answer})))
        line = line_with(service, "page after")
        assert re.search(rf"UTC  {ME}, {LAB}: graded, 2 points, page after \d+ s", line)
        service.send_signal(signal.SIGINT)
        assert "run the same command to continue" in line_with(service, "Stopped.")
        assert service.wait(60) == 130

    nbgrader(course, f"fetch_feedback {LAB} {AS_STUDENT}")
    broken, page = fetched(course)
    assert "could not be read" in broken
    assert row_of(page, "check_chunk_bounds") == "1 · chunk_bounds 4 of 4 visible cases"
    assert row_of(page, "check_all_gather").endswith("not written yet")
    assert "hidden case:" not in page

    nbgrader(
        course,
        f"generate_feedback {LAB}",
        f"release_feedback {LAB}",
        f"fetch_feedback {LAB} {AS_STUDENT}",
    )
    unchanged, full = fetched(course)
    assert unchanged == broken
    assert row_of(full, "check_chunk_bounds") == "1 · chunk_bounds 6 of 6 cases 2 / 2"
