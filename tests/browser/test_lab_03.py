"""A student works on the lab: no answer, a wrong one, its diagnosis, the right one, Validate."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from autograder.course.tries import Tries, from_metadata
from tests.browser.accessibility import serious_findings
from tests.browser.answers import answer, table
from tests.browser.jupyterlab import RUN_LIMIT_MS, JupyterLab, Notebook
from tests.browser.notebooks import LAB, SOLUTION, write_answered
from tests.submissions import planted

pytestmark = pytest.mark.browser

WRONG = {
    mistake.name: source for mistake in planted.of_lab(LAB) for source in mistake.answers.values()
}


@pytest.fixture(scope="module")
def notebook(lab: JupyterLab) -> Iterator[Notebook]:
    """The lab as released, after running its imports."""
    lab.visit(f"labs/{LAB}/{LAB}.ipynb")
    notebook = lab.current()
    notebook.cell("from autograder import check").run()
    yield notebook
    notebook.close()


def validate(lab: JupyterLab, notebook: Notebook, folder: Path, name: str) -> str:
    """Press Validate, take screenshots of its dialog and close it. Returns the dialog's text.

    Retries if the kernel that nbgrader starts died because another process took its port.
    """
    text = ""
    for _ in range(3):
        text = validate_once(lab, notebook, folder, name)
        if "Kernel died before replying" not in text:
            break
    return text


def validate_once(lab: JupyterLab, notebook: Notebook, folder: Path, name: str) -> str:
    notebook.root.get_by_role("button", name="Validate", exact=True).click()
    dialog = lab.page.locator(".jp-Dialog")
    dialog.wait_for(timeout=RUN_LIMIT_MS)
    text = " ".join(dialog.inner_text().split())
    lab.screenshot_in_both_themes(folder, {name: lambda: dialog})
    dialog.get_by_role("button", name="Ok").click()
    return text


def test_an_unwritten_answer_gets_a_friendly_message(notebook: Notebook) -> None:
    for name in planted.solution(LAB):
        notebook.cell(name).run()
        check = notebook.cell(f"check_{name}").run()
        expect(table(check)).to_have_text(f"{name}: not written yet")
        (error,) = [out for out in check.outputs() if out["output_type"] == "error"]
        assert error["ename"] == "CheckFailed"
        assert error["evalue"].startswith(f"Not written yet: {name}. Fill in its cell above")
        assert len(error["traceback"]) == 1, "the student sees no line of the check itself"


def test_hints_open_one_by_one(notebook: Notebook) -> None:
    hints = notebook.cell("Hint 1 · what to count").element.locator("details")
    expect(hints).to_have_count(3)
    for index in range(3):
        body = hints.nth(index).locator("p").last
        expect(body).to_be_hidden()
        hints.nth(index).locator("summary").click()
        expect(body).to_be_visible()


def test_a_wrong_answer_is_diagnosed_and_the_right_one_passes(notebook: Notebook) -> None:
    wrong = answer(notebook, "chunk_bounds", WRONG["skips_the_remainder"])
    expect(wrong).to_have_attribute("data-passed", "false")
    expect(wrong.locator("tr[data-passed='true']")).to_have_count(1)  # 12 elements for 4 ranks
    expect(wrong.locator("[data-diagnosis]").first).to_contain_text("skips the remainder")
    before = saved_tries(notebook)

    right = answer(notebook, "chunk_bounds", SOLUTION["chunk_bounds"])
    expect(right).to_have_attribute("data-passed", "true")
    expect(right).to_contain_text("chunk_bounds: all 4 cases pass")
    after = saved_tries(notebook)
    assert after.total == before.total + 1
    assert 0 < after.to_pass <= after.total


def saved_tries(notebook: Notebook) -> Tries:
    """The counts that the report reads from the notebook as saved by JupyterLab."""
    (known,) = filter(
        None,
        map(
            from_metadata,
            (output.get("metadata") for output in notebook.cell("check_chunk_bounds").outputs()),
        ),
    )
    return known[1]


def test_a_deadlock_is_named_with_the_line_in_the_cell(notebook: Notebook) -> None:
    hangs = answer(notebook, "reduce_scatter", WRONG["both_send_first"])
    diagnosis = hangs.locator("[data-diagnosis]").first
    expect(diagnosis).to_contain_text("call send first and wait for each other")
    expect(diagnosis).to_contain_text("line 8: dist.send(chunks")


def test_the_ring_passes_within_its_budget_and_can_be_played(notebook: Notebook) -> None:
    right = answer(notebook, "reduce_scatter", SOLUTION["reduce_scatter"])
    expect(right).to_have_attribute("data-passed", "true")
    largest = right.locator("tbody tr").last.locator("td.number")
    sent, budget, *_ = (int(re.sub(r"\D", "", text)) for text in largest.all_inner_texts())
    assert 7 / 8 * 2**19 <= sent <= budget <= 1.02 * 7 / 8 * 2**19  # 512 KiB on 8 ranks

    player = notebook.cell("ring_player(run)").run().widget("ring-player")
    expect(player).to_have_attribute("data-steps", "3")
    expect(player).to_have_attribute("data-messages", "12")


@pytest.fixture
def copy(lab: JupyterLab) -> Iterator[Notebook]:
    """A copy with every answer right: Validate saves the notebook that it is run on."""
    path = f"labs/{LAB}/copy.ipynb"
    write_answered(lab.server.root / path, SOLUTION)
    copy = lab.open(path)
    yield copy
    copy.close()


def test_axe_finds_nothing_serious_in_the_lab(notebook: Notebook) -> None:
    assert serious_findings(notebook.page, f"[id='{notebook.panel}']") == []


def test_validate_saves_and_names_what_fails(
    lab: JupyterLab, copy: Notebook, artifacts: Path
) -> None:
    copy.cell("ring_all_reduce").type(WRONG["sum_instead_of_mean"])
    text = validate(lab, copy, artifacts, "validate-fails")
    on_disk = json.loads((lab.server.root / copy.path).read_text())
    saved = {cell["id"]: cell["source"] for cell in on_disk["cells"]}
    assert "".join(saved["ring_all_reduce"]) == WRONG["sum_instead_of_mean"]
    assert text.count("The following cell failed:") == 1
    assert 'check("ring_all_reduce.ring_all_reduce", ring_all_reduce)' in text
    assert "returns the sum, not the mean: divide by world_size" in text

    copy.cell("ring_all_reduce").type(SOLUTION["ring_all_reduce"])
    text = validate(lab, copy, artifacts, "validate-passes")
    assert "Success! Your notebook passes all the tests." in text


@pytest.mark.screenshots
def test_screenshots_in_both_themes(lab: JupyterLab, notebook: Notebook, artifacts: Path) -> None:
    answer(notebook, "ring_all_reduce", WRONG["sends_whole_tensors_around"])
    lab.screenshot_in_both_themes(
        artifacts,
        {
            "lab-03-passes": lambda: notebook.cell("check_reduce_scatter").element,
            "lab-03-over-budget": lambda: notebook.cell("check_ring_all_reduce").element,
            "lab-03-hints": lambda: notebook.cell("Hint 1 · what to count").element,
        },
    )
    answer(notebook, "reduce_scatter", WRONG["both_send_first"])
    lab.screenshot_in_both_themes(
        artifacts,
        {
            "lab-03-fails": lambda: notebook.cell("check_reduce_scatter").element,
            "lab-03-blank": lambda: notebook.cell("check_bytes_per_rank").element,
        },
    )
    assert lab.errors == []
