"""A written question of all students: what the page shows, and how rubrics are validated."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import MissingEntry
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder import exercises
from autograder.build.rubric import RUBRIC, read_rubric, require_rubric
from autograder.build.text import SourceError
from autograder.pages.formgrader.written import answers, page, written_questions
from tests.autograder.pages.feedback.graded_course import (
    LAB,
    QUESTION,
    REPO,
    GradedCourse,
    Submission,
)


def test_the_page_has_each_answer_and_the_rubric(tmp_path: Path) -> None:
    graded = GradedCourse(tmp_path)
    graded.enroll("ann", first_name="Ann", last_name="Lee")
    graded.grade("ann", Submission(sources={QUESTION: "Nine <script>alert(1)</script> **times**"}))
    graded.grade("bob", Submission(manual_score=1.5, comments={QUESTION: "Well put."}))
    graded.grade("cid", Submission())
    (tmp_path / "grading/autograded/cid" / LAB / f"{LAB}.ipynb").unlink()
    (tmp_path / "solutions" / LAB).mkdir(parents=True)
    shutil.copy(REPO / "solutions" / LAB / RUBRIC, tmp_path / "solutions" / LAB)
    config = Config()
    config.CourseDirectory.update(
        root=str(tmp_path), source_directory="solutions", autograded_directory="grading/autograded"
    )
    coursedir = CourseDirectory(config=config)
    with graded.gradebook as gradebook:
        questions = written_questions(gradebook, LAB)
        assert list(questions) == [QUESTION]
        found = {each.student: each for each in answers(gradebook, coursedir, questions[QUESTION])}
        assert set(found) == {"Lee, Ann (ann)", "bob", "cid"}
        assert "<strong>times</strong>" in found["Lee, Ann (ann)"].html
        assert "cannot be read" in found["cid"].html
        bob, ann = found["bob"], found["Lee, Ann (ann)"]
        assert (bob.mark, bob.text, bob.is_graded) == (1.5, "Well put.", True)
        assert (ann.mark, ann.text, ann.is_graded) == (None, "", False)
        assert bob.grade == gradebook.find_grade(QUESTION, LAB, LAB, "bob").id
        assert bob.comment == gradebook.find_comment(QUESTION, LAB, LAB, "bob").id

        shown = page(gradebook, coursedir, LAB, "")
        assert "alert(1)" not in shown
        assert shown.count('class="item"') == 4
        assert 'data-text="Latency limits the small tensor"' in shown
        with pytest.raises(MissingEntry):
            page(gradebook, coursedir, LAB, "reduce_scatter")
        with pytest.raises(MissingEntry):
            page(gradebook, coursedir, "no_lab", "")


def test_extra_credit_is_not_part_of_the_mark(tmp_path: Path) -> None:
    """The page sends both numbers back: a mark that includes extra credit would add it again."""
    graded = GradedCourse(tmp_path)
    graded.grade("ann", Submission(manual_score=2.0))
    graded.grade("bob", Submission())  # waits for a mark
    graded.grade("cid", Submission())  # left it empty, so nbgrader gives 0 points automatically
    with graded.gradebook as gradebook:
        for student, auto in (("ann", None), ("bob", None), ("cid", 0.0)):
            grade = gradebook.find_grade(QUESTION, LAB, LAB, student)
            grade.extra_credit, grade.auto_score = 0.5, auto
        gradebook.db.commit()
        cell = written_questions(gradebook, LAB)[QUESTION]
        found = {each.student: each for each in answers(gradebook, CourseDirectory(), cell)}
    assert {student: (each.mark, each.extra_credit) for student, each in found.items()} == {
        "ann": (2.0, 0.5), "bob": (None, 0.5), "cid": (0.0, 0.5),
    }  # fmt: skip


def test_a_submission_older_than_the_question_does_not_hide_the_others(tmp_path: Path) -> None:
    graded = GradedCourse(tmp_path)
    graded.grade("old", Submission())
    with graded.gradebook as gradebook:
        gradebook.add_grade_cell("added", LAB, LAB, max_score=3, cell_type="markdown")
        gradebook.add_solution_cell("added", LAB, LAB)
    graded.grade("new", Submission())
    with graded.gradebook as gradebook:
        shown = page(gradebook, CourseDirectory(root=str(tmp_path)), LAB, "added")
    assert shown.count('<section class="answer"') == 1
    assert "Not listed, because graded before this question was added: old" in shown


@pytest.mark.parametrize(
    ("rubric", "says"),
    [
        ("[other]", "no written question has this name. The lab has: from_8_to_64_ranks"),
        ("[[{}.items]]\ntext='a'\npoints=2.5", "2.5 points, the question only 2"),
        ("[[{}.items]]\ntext='a'", "expected a line `text` and a number `points`"),
        ("[[{}.items]]\ntext='a'\npoints=nan", "must be a number"),
        ("[{}]\ncomments='a'", "must be a list"),
        ("[{}]\nitem=1", "expected only"),
        ("[", "cannot be read"),
    ],
)
def test_the_build_rejects_an_invalid_rubric(tmp_path: Path, rubric: str, says: str) -> None:
    notebook = nbformat.read(REPO / "solutions" / LAB / f"{LAB}.ipynb", as_version=4)
    require_rubric(tmp_path, notebook)  # none is needed
    assert read_rubric(tmp_path) == {}
    (tmp_path / RUBRIC).write_text(rubric.format(QUESTION))
    with pytest.raises(SourceError) as error:
        require_rubric(tmp_path, notebook)
    assert says in str(error.value)


@pytest.mark.parametrize("lab", exercises.labs())
def test_each_written_question_has_a_rubric(lab: str) -> None:
    folder = REPO / "solutions" / lab
    notebook = nbformat.read(folder / f"{lab}.ipynb", as_version=4)
    require_rubric(folder, notebook)
    points = {
        cell.metadata.nbgrader.grade_id: cell.metadata.nbgrader.points
        for cell in notebook.cells
        if cell.cell_type == "markdown" and cell.metadata.get("nbgrader", {}).get("grade")
    }
    rubric = {
        name: sum(max(item.points, 0) for item in question.items)
        for name, question in read_rubric(folder).items()
    }
    assert rubric == points
