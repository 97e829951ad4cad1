"""The page without hidden cases: nothing on it depends on them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Any

import nbformat
import pytest

from autograder import exercises
from autograder.grading.record.marks import write_verdict
from autograder.grading.record.record import GRADED, Record, State
from autograder.pages.feedback.visible_page import visible_page
from autograder.pages.scores import Mark, Scores
from tests.autograder.pages.feedback.graded_course import (
    LAB,
    REPO,
    Submission,
    fail,
    ring_pictures,
    verdict_of,
)

MISTAKE = "returns the sum, not the mean: divide by world_size"
CASES = exercises.load("ring_all_reduce.ring_all_reduce").cases
HIDDEN = [case.name for case in CASES if case.hidden]
VISIBLE = [case.name for case in CASES if not case.hidden]
RELEASED = nbformat.read(REPO / "labs" / LAB / f"{LAB}.ipynb", as_version=4)
NAMES = {f"check_{exercise.answer}": exercise.name for exercise in exercises.of_lab(LAB)}
AT = datetime(2026, 11, 12, 11, 3)


def record_of(
    submission: Submission,
    state: State = GRADED,
    reason: str = "",
    note: str = "",
    missing: tuple[str, ...] = (),
) -> Record:
    verdicts = {
        cell: replace(verdict_of(name, submission), note=note) for cell, name in NAMES.items()
    }
    notebook = nbformat.from_dict(RELEASED)
    for cell in notebook.cells:
        if cell.id in verdicts:
            why = f"`{cell.id}` never reached the check." if cell.id in missing else ""
            write_verdict(cell, verdicts[cell.id], why)
    return Record(
        LAB, "ada", "key", "hash", state, reason,
        notebook=dict(notebook),
        points={cell: verdict.points for cell, verdict in verdicts.items()},
        verdicts={cell: verdict.to_plain() for cell, verdict in verdicts.items()},
        pictures=dict(submission.pictures),
        flags=("uses ctypes",),
        timing={"ran_s": 4.0},
    )  # fmt: skip


def page_of(record: Record, **about: Any) -> str:
    points = sum(record.points.values())
    marks = {"check_ring_all_reduce": Mark(points, 17.0, False, False)}
    return visible_page(LAB, Scores("ada", submitted_at=AT, marks=marks, **about), record)


def text_of(html: str) -> str:
    body = re.sub(r"<(style|head)\b.*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def failing_hidden_cases(**facts: Any) -> Submission:
    return Submission(
        failing={"ring_all_reduce": fail("ring_all_reduce", MISTAKE, HIDDEN, **facts)}
    )


@pytest.fixture(scope="module")
def right_page() -> str:
    return page_of(record_of(Submission()))


def test_a_right_answer_passes_its_visible_cases(right_page: str) -> None:
    text = text_of(right_page)
    assert f"{len(VISIBLE)} of {len(VISIBLE)} visible cases" in text
    assert f"all {len(VISIBLE)} visible cases pass" in text
    assert "From 8 to 64 ranks" in text
    assert "submitted 12 November 2026, 11:03 UTC" in text
    assert "hidden case:" not in text
    assert not re.search(r"\d points", text.partition("Your notebook")[0])


@pytest.mark.parametrize(
    "record",
    [
        record_of(failing_hidden_cases()),
        record_of(
            failing_hidden_cases(), note="Every case with N = 4 passes, and no case with another N."
        ),
        record_of(failing_hidden_cases(record_is_right=False)),
        record_of(
            failing_hidden_cases(violation="resource limit"),
            "resource limit",
            f"ring_all_reduce, hidden case: a rank {MISTAKE}",
        ),
        record_of(
            failing_hidden_cases(violation="tampering"),
            "tampering",
            f"ring_all_reduce, hidden case: a rank {MISTAKE}",
        ),
        record_of(Submission(pictures={"check_ring_all_reduce": ring_pictures()})),
    ],
    ids=["wrong", "pattern", "forged memory", "limit", "tampering", "pictures"],
)
def test_hidden_cases_do_not_change_the_page(record: Record, right_page: str) -> None:
    assert page_of(record) == right_page


def test_marks_comments_and_penalty_do_not_change_the_page(right_page: str) -> None:
    assert (
        page_of(record_of(Submission()), penalty=1.0, comments={"chunk_bounds": "Good"})
        == right_page
    )


def test_a_visible_case_that_fails_is_explained() -> None:
    failing = fail("ring_all_reduce", MISTAKE, [VISIBLE[1], *HIDDEN])
    text = text_of(page_of(record_of(Submission(failing={"ring_all_reduce": failing}))))
    assert f"{len(VISIBLE) - 1} of {len(VISIBLE)} visible cases" in text
    assert f"rank 2 {MISTAKE}" in text
    assert f"a rank {MISTAKE}" not in text


def test_a_state_that_visible_cases_explain_is_kept() -> None:
    failing = fail("ring_all_reduce", MISTAKE, [VISIBLE[0], *HIDDEN], violation="resource limit")
    reason = f"ring_all_reduce, {VISIBLE[0]}: rank 2 {MISTAKE}"
    page = page_of(
        record_of(Submission(failing={"ring_all_reduce": failing}), "resource limit", reason)
    )
    assert 'data-state="resource limit"' in page
    assert reason in text_of(page)


def test_an_answer_that_never_reached_its_check_is_named() -> None:
    cell, why = "check_bytes_per_rank", "`check_bytes_per_rank` never reached the check."
    missing = fail("bytes_per_rank", "no answer was submitted", was_run=False)
    hidden = fail("ring_all_reduce", MISTAKE, HIDDEN, violation="resource limit")
    reason = f"ring_all_reduce, hidden case: a rank {MISTAKE}"
    both = Submission(failing={"bytes_per_rank": missing, "ring_all_reduce": hidden})
    page = page_of(record_of(both, "resource limit", reason, missing=(cell,)))
    assert 'data-state="student error"' in page
    assert page.count(why.replace(f"`{cell}`", f"<code>{cell}</code>")) == 2
    only_missing = Submission(failing={"bytes_per_rank": missing})
    assert page == page_of(record_of(only_missing, "student error", why, missing=(cell,)))
