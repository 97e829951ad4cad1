"""`nbgrader generate_feedback` makes one page for each student."""

from __future__ import annotations

import re
import zipfile

import pytest

from autograder import exercises
from autograder.__main__ import main
from autograder.pages.feedback import FeedbackExporter
from autograder.pages.feedback.exporter import NotInGradebook
from tests.autograder.pages.feedback.graded_course import (
    LAB,
    QUESTION,
    GradedCourse,
    Submission,
    code_cell,
    fail,
    prose_cell,
    ring_pictures,
)
from tests.autograder.pages.html import hostile

pytestmark = [pytest.mark.nbgrader, pytest.mark.timeout(600)]

MISTAKE = "returns the sum, not the mean: divide by world_size"
CASES = exercises.load("ring_all_reduce.ring_all_reduce").cases


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> GradedCourse:
    graded = GradedCourse(tmp_path_factory.mktemp("course"))
    graded.enroll("ada", first_name="Ada", last_name="Lovelace")
    graded.grade(
        "ada",
        Submission(
            failing={"ring_all_reduce": fail("ring_all_reduce", MISTAKE, [CASES[1].name])},
            unwritten=("bytes_per_rank",),
            sources={QUESTION: "Nine times."},
            pictures={"check_ring_all_reduce": ring_pictures()},
            comments={QUESTION: "*Which* term wins?", "ring_all_reduce": "See `op`."},
            manual_score=1.5,
            penalty=1.0,
            state="resource limit",
            reason="`ring_all_reduce`, 4 ranks: used more than 2 GB.",
            notes=("The answer cell `chunk_bounds` appeared 2 times: one was kept.",),
        ),
    )
    hidden = [case.name for case in CASES if case.hidden]
    graded.grade(
        "grace",
        Submission(failing={"ring_all_reduce": fail("ring_all_reduce", MISTAKE, hidden)}),
    )
    graded.grade("hand", Submission(manual_score=2.0, has_record=False))
    html = [code_cell("show()", *outputs) for outputs in hostile.outputs().values()]
    prose = [prose_cell("\n\n".join(hostile.FRAGMENTS.values()))]
    prose += [prose_cell(source) for source in hostile.MARKDOWN.values()]
    tag = hostile.FRAGMENTS["script"]
    graded.grade(
        "mallory",
        Submission(
            own_cells=[*html, *prose],
            sources={QUESTION: tag, "ring_all_reduce": tag},
            outputs={"check_chunk_bounds": []},
            notes=(f"The answer cell `{tag}` was missing.",),
            state="student error",
            reason=f"failed with {tag}",
        ),
    )
    graded.grade("emil", Submission())
    with graded.gradebook as gradebook:  # nbgrader gives 0 points for an unchanged answer
        marked = gradebook.find_submission_notebook(LAB, LAB, "emil")
        grade = next(grade for grade in marked.grades if grade.name == QUESTION)
        grade.auto_score, grade.needs_manual_grade = 0.0, False
        gradebook.db.commit()
    done = graded.nbgrader("generate_feedback", LAB)
    assert done.returncode == 0, done.stderr[-3000:]
    return graded


def text_of(html: str) -> str:
    """Roughly the visible text of the page."""
    body = re.sub(r"<(style|head)\b.*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def row_of(html: str, cell: str) -> str:
    return text_of(html.partition(f'<tr data-exercise="{cell}">')[2].partition("</tr>")[0]).strip()


def test_points_by_exercise_add_up_to_the_total(graded: GradedCourse) -> None:
    page = graded.feedback("ada")
    assert row_of(page, "check_chunk_bounds") == "1 · chunk_bounds 6 of 6 cases 2 / 2"
    assert row_of(page, "check_ring_all_reduce") == "4 · ring_all_reduce 9 of 10 cases 4.5 / 5"
    assert row_of(page, "check_bytes_per_rank") == "5 · bytes_per_rank not written yet 0 / 2"
    assert row_of(page, QUESTION) == "7 · From 8 to 64 ranks graded manually 1.5 / 2"
    assert 'data-total="20.0"' in page  # 2 + 5 + 4 + 4.5 + 4 + 1.5, less 1 for being late
    assert "Late penalty −1" in text_of(page)
    assert "Lab 03 · Ring all-reduce" in text_of(page)
    assert "Ada Lovelace" in text_of(page)
    assert ", due 12 November 2026, 12:00 UTC: late" in text_of(page)


def test_the_failing_case_is_named_with_its_mistake_and_pictures(graded: GradedCourse) -> None:
    card = graded.feedback("ada").partition('id="exercise-4"')[2].partition("</section>")[0]
    assert CASES[1].name in card
    assert f"rank 2 {MISTAKE}" in card
    assert card.count('<svg xmlns="http://www.w3.org/2000/svg" class="shardlab-static"') == 2
    assert "Who sent how much to whom" in card
    assert "<p>See <code>op</code>.</p>" in card


def test_state_repairs_and_comments_are_shown(graded: GradedCourse) -> None:
    page = graded.feedback("ada")
    assert 'data-state="resource limit"' in page
    assert "<code>ring_all_reduce</code>, 4 ranks: used more than 2 GB." in page
    assert "The answer cell <code>chunk_bounds</code> appeared 2 times" in page
    assert "<em>Which</em> term wins?" in page


def test_a_pending_answer_is_not_a_zero(graded: GradedCourse) -> None:
    page = graded.feedback("grace")
    assert row_of(page, QUESTION).endswith("waiting for manual grading ? / 2")
    assert "so far" in text_of(page)
    assert "data-state" not in page


def test_an_empty_written_answer_was_not_graded_by_a_check(graded: GradedCourse) -> None:
    page = graded.feedback("emil")
    assert row_of(page, QUESTION) == "7 · From 8 to 64 ranks empty 0 / 2"
    assert "The answer is empty. A person grades this exercise." in text_of(page)
    assert "Graded by its check" not in page


def test_names_and_inputs_of_hidden_cases_are_not_shown(graded: GradedCourse) -> None:
    page = graded.feedback("grace")
    assert f"a rank {MISTAKE}" in page
    for exercise in exercises.of_lab(LAB):
        for case in exercise.cases:
            assert not case.hidden or case.name not in page
    assert "instructor" not in page
    assert "(length " not in page
    assert "seed" not in text_of(page)


def test_without_a_record_the_page_shows_gradebook_and_notebook(graded: GradedCourse) -> None:
    page = graded.feedback("hand")
    assert 'data-total="24.0"' in page
    assert row_of(page, "check_chunk_bounds").endswith("2 / 2")
    assert "chunk_bounds: all 6 cases pass" in text_of(page)  # in the notebook, as text


def test_pages_are_self_contained_and_small(graded: GradedCourse) -> None:
    for student in ("ada", "grace", "hand", "mallory"):
        page = graded.feedback(student)
        assert len(page) < 400_000
        assert "<script" not in page
        for address in re.findall(r"\b(?:src|href|srcset|action)=\"([^\"]*)\"", page):
            assert address.startswith(("data:", "#")), address
        assert "@import" not in page
        assert page.index("default-src 'none'") < page.index("<style")


def test_a_hostile_notebook_is_shown_as_text(graded: GradedCourse) -> None:
    page = graded.feedback("mallory")
    for attribute in ("onerror=", "onload=", "ontoggle=", "onfocus=", "srcdoc=", "position:fixed"):
        unescaped = re.findall(rf"<[^>]*{attribute}", page)
        assert unescaped == []
    assert page.count('class="shardlab-check"') == 6  # only ours, one for each check
    assert page.count("</body>") == 1


def test_feedback_needs_the_student_in_the_gradebook(graded: GradedCourse) -> None:
    of = {"assignment": LAB, "notebook": LAB, "student": "nobody", "db_url": graded.db_url}
    with pytest.raises(NotInGradebook, match=f"run `nbgrader autograde {LAB} --student nobody`"):
        FeedbackExporter().from_notebook_node(graded.released, {"nbgrader": of})


def test_a_page_older_than_its_grade_is_not_archived(
    graded: GradedCourse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(graded.root)
    archive = ["feedback", LAB, "--archive"]
    assert main(archive) == 0
    assert "out of date" not in capsys.readouterr().out
    record = graded.root / f"grading/records/{LAB}/ada.json"
    record_before = record.read_bytes()
    with graded.gradebook as gradebook:
        marked = gradebook.find_grade(QUESTION, LAB, LAB, "grace")
        marked.manual_score, marked.needs_manual_grade = 1.0, False
        gradebook.db.commit()
        try:
            record.write_bytes(record_before.replace(b"key-of-ada", b"regraded!!"))
            assert main(archive) == 3
        finally:
            record.write_bytes(record_before)
            marked.manual_score, marked.needs_manual_grade = None, True
            gradebook.db.commit()
    printed = capsys.readouterr().out
    assert (
        "since: ada, grace; run `nbgrader generate_feedback 03_ring_all_reduce --force`" in printed
    )
    with zipfile.ZipFile(graded.root / f"grading/feedback-{LAB}.zip") as file:
        assert [name.partition("/")[0] for name in file.namelist()] == ["emil", "hand", "mallory"]
    assert main(archive) == 0
