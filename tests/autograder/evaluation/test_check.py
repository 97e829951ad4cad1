"""check() as a student's cell calls it."""

from __future__ import annotations

import re
import threading

import nbformat
import pytest
from nbclient import NotebookClient

from autograder import CheckFailed, check
from autograder.course.tries import from_metadata
from autograder.guest import answer
from tests import kernels
from tests.submissions import planted

LAB = "03_ring_all_reduce"
NAME = "ring_all_reduce.chunk_bounds"


def chunk_bounds(answers):
    return planted.subjects(LAB, answers)["chunk_bounds"]


@pytest.mark.ranks
def test_right_answer_prints_its_table(capsys):
    check(NAME, chunk_bounds(planted.solution(LAB)))
    shown = capsys.readouterr().out
    assert shown.startswith("✓ chunk_bounds: all 4 cases pass\n")
    assert re.search("✓ 10 elements for 4 ranks +as expected", shown)


@pytest.mark.ranks
def test_wrong_answer_raises_and_names_the_mistake(capsys):
    (wrong,) = [each for each in planted.of_lab(LAB) if each.name == "skips_the_remainder"]
    with pytest.raises(CheckFailed) as caught:
        check(NAME, chunk_bounds(wrong.answers))
    assert isinstance(caught.value, AssertionError)
    assert str(caught.value).startswith(
        "chunk_bounds: 1 of 4 cases pass. 10 elements for 4 ranks: chunk_bounds(10, 4) skips the"
    )
    assert "✗ 10 elements for 4 ranks" in capsys.readouterr().out


@pytest.mark.ranks
def test_a_stub_is_reported_in_one_line():
    with pytest.raises(CheckFailed, match=r"^Not written yet: chunk_bounds\. .*$"):
        check(NAME, chunk_bounds(planted.untouched(LAB)))


@pytest.mark.parametrize("blank", [None, ...])
def test_a_placeholder_needs_no_ranks(blank):
    with pytest.raises(CheckFailed, match="Not written yet: chunk_bounds"):
        check(NAME, blank)


@pytest.mark.ranks
def test_a_notebook_shows_one_table_and_the_line_in_the_students_cell(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (wrong,) = [each for each in planted.of_lab(LAB) if each.name == "both_send_first"]
    call = 'check("ring_all_reduce.reduce_scatter", reduce_scatter)'
    cells = [
        "import torch, torch.distributed as dist\nfrom autograder import check",
        call,
        "print(reduce_scatter)",
        wrong.answers["reduce_scatter"],
        call,
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(
        notebook,
        timeout=120,
        allow_errors=True,
        kernel_name="python3",
        config=kernels.config(tmp_path),
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    (too_early,), (own_mistake,) = (cell.outputs for cell in notebook.cells[1:3])
    assert too_early.traceback == [
        "CheckFailed: reduce_scatter is not defined yet: run the cell above that defines it, then\n"
        "this one."
    ]
    assert own_mistake.ename == "NameError"
    table, error = notebook.cells[-1].outputs  # the table has replaced the progress
    assert 'data-passed="false"' in table.data["text/html"]
    assert "running case" not in table.data["text/html"]
    assert (
        "4 cases               not run\n      fix the case above first" in table.data["text/plain"]
    )
    assert "ranks 0–3 call send first" in table.data["text/plain"]
    assert "cell 4, line 8: dist.send(" in table.data["text/plain"]
    exercise, tries = from_metadata(table.metadata)  # is saved and submitted with the notebook
    assert (exercise, tries.total, tries.to_pass) == ("ring_all_reduce.reduce_scatter", 1, 0)
    assert [count for name, count in tries.mistakes.items() if "call send first" in name] == [1]
    (message,) = error.traceback  # does not repeat the table
    assert message == (
        "CheckFailed: reduce_scatter: 0 of 5 cases pass. The table above shows what to fix."
    )


def test_traceback_in_a_notebook_is_one_wrapped_sentence(monkeypatch):
    assert CheckFailed("why")._render_traceback_() == ["CheckFailed: why"]
    (text,) = CheckFailed("why " * 50)._render_traceback_()
    assert len(text.splitlines()) > 1
    assert all(len(line) < 100 for line in text.splitlines())
    below_table = CheckFailed("why", below_table="see above")
    assert below_table._render_traceback_() == ["CheckFailed: see above"]
    monkeypatch.setenv("NBGRADER_VALIDATING", "1")  # its dialog shows no table
    assert below_table._render_traceback_() == ["CheckFailed: why"]


def test_an_unknown_name_lists_the_existing_ones():
    with pytest.raises(KeyError, match=r"ring_all_reduce\.chunk_bounds"):
        check("ring_all_reduce.chunk_bound", None)
    with pytest.raises(KeyError, match="03_ring_all_reduce"):
        check("nothing.chunk_bounds", None)


def test_an_answer_that_cannot_be_pickled_is_reported():
    lock = threading.Lock()
    with pytest.raises(CheckFailed, match=r"chunk_bounds cannot be sent.*lock"):
        check(NAME, lambda length, world_size: lock)


def test_an_answer_that_is_too_large_is_reported(monkeypatch):
    monkeypatch.setattr(answer, "MAX_ANSWER_BYTES", 1000)
    with pytest.raises(CheckFailed, match=r"chunk_bounds is too large.* the limit is 1,000"):
        check(NAME, b"x" * 2000)
