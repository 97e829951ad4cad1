"""A student works on every lab but lab 03: one exercise of each, wrong, then right.

test_lab_03.py tests everything that all labs have in common.  The mistakes to type are marked in
tests/submissions/.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from autograder import exercises
from tests.browser.answers import answer
from tests.browser.jupyterlab import JupyterLab, Notebook
from tests.browser.notebooks import solution_of
from tests.submissions import planted

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.ranks]

TYPED = {
    lab: mistake for lab in exercises.labs() for mistake in planted.of_lab(lab) if mistake.typed
}


@pytest.fixture(params=TYPED)
def notebook(loaded_lab: JupyterLab, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """The lab as released, after running the cells above the exercise."""
    notebook = loaded_lab.open(f"labs/{request.param}/{request.param}.ipynb")
    notebook.cell("from autograder import check").run()
    if above := TYPED[request.param].above:
        notebook.cell(above).run()
    yield notebook
    notebook.close()


def test_a_wrong_answer_is_diagnosed_and_the_right_one_passes(
    lab: JupyterLab, notebook: Notebook, artifacts: Path
) -> None:
    name = Path(notebook.path).stem
    mistake = TYPED[name]
    ((grade_id, source),) = mistake.answers.items()
    wrong = answer(notebook, grade_id, source)
    expect(wrong).to_have_attribute("data-passed", "false")
    expect(wrong.locator("[data-diagnosis]").first).to_contain_text(mistake.says[grade_id])
    check = notebook.cell(f"check_{grade_id}")
    lab.screenshot_in_both_themes(artifacts, {f"lab-{name[:2]}-fails": lambda: check.element})

    right = answer(notebook, grade_id, solution_of(name)[grade_id])
    expect(right).to_have_attribute("data-passed", "true")
    assert lab.errors == []
