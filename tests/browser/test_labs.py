"""A student works on the labs, but for the ring's: one exercise of each, wrong, then right.

The ring's lab, test_lab_03.py, goes through everything that all labs have in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.answers import answer
from tests.browser.jupyterlab import JupyterLab, Notebook
from tests.browser.notebooks import solution_of
from tests.submissions import planted

pytestmark = [pytest.mark.browser, pytest.mark.ranks]

WRONG = {  # lab: one of its planted mistakes
    "01_one_device": "takes_the_mean_of_means",
    "02_dp_vs_ddp": "hub_sums_without_dividing",
    "04_zero": "forgets_padding",
    "06_offload": "updates_stale_16_bit_weights",
    "07_tensor_parallel": "bias_on_every_rank",
    "08_pipeline": "receives_without_requires_grad",
    "09_activation_checkpointing": "random_state_not_restored",
    "10_save_resume": "every_rank_writes_the_index",
}
ABOVE = {"10_save_resume": "def shard_name"}  # what its answer calls, besides the imports


@pytest.fixture(params=WRONG)
def notebook(desk: JupyterLab, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """The lab as released, with what stands above its first exercise run."""
    notebook = desk.open(f"labs/{request.param}/{request.param}.ipynb")
    notebook.cell("from autograder import check").run()
    if request.param in ABOVE:
        notebook.cell(ABOVE[request.param]).run()
    yield notebook
    notebook.close()


def test_a_wrong_answer_is_diagnosed_and_the_right_one_passes(
    lab: JupyterLab, notebook: Notebook, artifacts: Path
) -> None:
    name = Path(notebook.path).stem
    (mistake,) = (each for each in planted.of_lab(name) if each.name == WRONG[name])
    ((grade_id, source),) = mistake.answers.items()
    wrong = answer(notebook, grade_id, source)
    expect(wrong).to_have_attribute("data-passed", "false")
    expect(wrong.locator("[data-diagnosis]").first).to_contain_text(mistake.says[grade_id])
    check = notebook.cell(f"check_{grade_id}")
    lab.photograph(artifacts, {f"lab-{name[:2]}-fails": lambda: check.element})

    right = answer(notebook, grade_id, solution_of(name)[grade_id])
    expect(right).to_have_attribute("data-passed", "true")
    assert lab.errors == []
