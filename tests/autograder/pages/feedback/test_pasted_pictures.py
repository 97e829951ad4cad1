"""A picture pasted into a written answer, from the submission to the pages."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from nbconvert.exporters import HTMLExporter
from nbgrader.apps import NbGrader
from nbgrader.server_extensions.formgrader import handlers
from PIL import Image

from autograder.__main__ import main
from autograder.grading.command import grade_class as command
from tests.autograder.grading.copied_course import Course, with_answers
from tests.autograder.grading.fake_class import FakePool

LAB = "03_ring_all_reduce"
QUESTION = "from_8_to_64_ranks"

pytestmark = [pytest.mark.nbgrader, pytest.mark.timeout(600)]


def picture() -> str:
    file = io.BytesIO()
    Image.new("RGB", (400, 300), "teal").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def formgrader_page(path: Path, student: str) -> str:
    """The page that formgrader renders from ``path``, with the current folder's configuration."""
    app = NbGrader()
    app.initialize([])
    app.config.HTMLExporter.template_name = "formgrade"
    app.config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    resources: dict[str, Any] = {
        "assignment_id": LAB, "notebook_id": LAB, "submission_id": "1", "student": student,
        "first_name": "", "last_name": "", "index": 0, "total": 1, "base_url": "",
        "notebook_path": "",
    }  # fmt: skip
    return str(HTMLExporter(config=app.config).from_filename(str(path), resources=resources)[0])


def test_a_pasted_picture_is_shown_to_the_student_and_to_the_grader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course.create(tmp_path)
    assert course.nbgrader("generate_assignment", LAB).returncode == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "open_pool", lambda *_: FakePool())
    text = "As drawn: ![sketch.png](attachment:sketch.png) and ![](attachment:lost.png)"
    notebook = with_answers(course.released(LAB), {QUESTION: text})
    (answer,) = [cell for cell in notebook["cells"] if cell["id"] == QUESTION]
    answer["attachments"] = {"sketch.png": {"image/png": picture()}}
    course.submit(LAB, "ann", json.dumps(notebook))

    assert main(["grade", LAB]) == 0
    done = course.nbgrader("generate_feedback", LAB)
    assert done.returncode == 0, done.stderr[-3000:]
    feedback = (tmp_path / "grading/feedback/ann" / LAB / f"{LAB}.html").read_text()
    autograded = tmp_path / "grading/autograded/ann" / LAB / f"{LAB}.ipynb"
    for page in (feedback, formgrader_page(autograded, "ann")):
        shown = page.partition("As drawn: ")[2].partition("</p>")[0]
        assert f'src="data:image/png;base64,{picture()}"' in shown
        assert "The picture lost.png is not in the notebook that was graded." in shown
