"""A lab's questions stay once it has grades: refused before anything is deleted, or dropped."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from nbgrader.apps import NbGrader
from nbgrader.converters import GenerateAssignment
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory

from autograder.__main__ import main
from autograder.build.points import add_points
from autograder.build.text import SourceError, notebook_from_text
from autograder.grading.command import grade_class
from tests.autograder.grading.copied_course import Course, Notebook, cell_of, with_answers
from tests.autograder.grading.fake_class import FakePool

LAB = "03_ring_all_reduce"
QUESTION = "from_8_to_64_ranks"

pytestmark = [
    pytest.mark.nbgrader,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning"),  # nbgrader's own queries
]


def change(course: Course, edit: Callable[[Notebook], None]) -> None:
    path = course.root / f"solutions/{LAB}/{LAB}.ipynb"
    notebook = json.loads(path.read_text())
    edit(notebook)
    path.write_text(json.dumps(notebook))


def generate() -> str:
    """What it says, if it refuses."""
    app = NbGrader()
    app.initialize([])
    course = CourseDirectory(parent=app, assignment_id=LAB)
    try:
        GenerateAssignment(coursedir=course, parent=app).start()
    except NbGraderException as error:
        return str(error)
    return ""


def snapshot(course: Course) -> dict[Path, bytes]:
    files = (course.root / "labs").rglob("*.ipynb")
    return {path: path.read_bytes() for path in files}


def test_questions_of_a_graded_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course.create(tmp_path)
    monkeypatch.delenv("SHARDLAB_DB_URL", raising=False)
    monkeypatch.chdir(course.root)
    monkeypatch.setattr(grade_class, "open_pool", lambda *_: FakePool())
    (course.root / f"solutions/{LAB}/{LAB}.nb.py").unlink()  # its build is not what is tested
    assert generate() == ""
    answers = {"chunk_bounds": "# worth 2\npass", QUESTION: "Because."}
    course.submit(LAB, "ada", with_answers(course.released(LAB), answers))
    assert main(["grade", LAB]) == 0

    def add(notebook: Notebook) -> None:
        for name in ("chunk_bounds", "check_chunk_bounds"):
            added = copy.deepcopy(cell_of(notebook, name))
            added["id"] = added["metadata"]["nbgrader"]["grade_id"] = f"{name}_2"
            notebook["cells"].append(added)

    def remove(notebook: Notebook) -> None:
        notebook["cells"] = notebook["cells"][:-8]

    solution = course.solution(LAB)
    before = snapshot(course)
    assert before
    for edit, how in ((add, "added: check_chunk_bounds_2"), (remove, "removed: ")):
        change(course, edit)
        said = generate()
        assert "has grades of 1 student in the gradebook" in said
        assert how in said
        assert "set its points to 0" in said
        assert snapshot(course) == before
        change(course, lambda notebook: notebook.update(solution))
    assert main(["grade", LAB]) == 0

    def drop(notebook: Notebook) -> None:
        for name in (QUESTION, "check_reduce_scatter"):
            cell_of(notebook, name)["metadata"]["nbgrader"]["points"] = 0

    with course.gradebook as gradebook:
        gradebook.find_grade(QUESTION, LAB, LAB, "ada").manual_score = 1.5
        gradebook.find_comment(QUESTION, LAB, LAB, "ada").manual_comment = "Well put."
        gradebook.db.commit()
    change(course, drop)
    assert generate() == ""
    assert main(["grade", LAB, "--regrade", "--yes"]) == 0
    with course.gradebook as gradebook:
        submission = gradebook.find_submission(LAB, "ada")
        assert (submission.score, submission.max_score) == (2, 17)
        assert not submission.needs_manual_grade
        comment = gradebook.find_comment(QUESTION, LAB, LAB, "ada").manual_comment
        assert comment == "Well put.\n(1.5 points before this question was dropped.)"


@pytest.mark.parametrize("points", ["-1", "True", "'2'", "float('nan')"])
def test_points_that_are_no_number_stop_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: str
) -> None:
    source = tmp_path / "a.nb.py"
    source.write_text('# %% nbgrader={"grade_id": "x", "grade": true}\ncheck("lab.x", x)\n')
    monkeypatch.setattr("autograder.exercises.points_of", lambda _: eval(points))
    with pytest.raises(SourceError, match=r"cell 'x': lab.x has points="):
        add_points(source, notebook_from_text(source))
