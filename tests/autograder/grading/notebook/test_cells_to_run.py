"""Grading runs the cells that an answer may depend on, and no others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from autograder import exercises
from autograder.build.cells import grade_id
from autograder.grading.notebook.cells_to_run import cells_to_run
from autograder.grading.notebook.runner import FROM_SUBMISSION, NOT_RUN, run_cells
from autograder.sandbox import Limits
from autograder.sandbox.plain_kernel import start_cells
from tests.submissions import planted

LABS = Path(__file__).parents[4] / "labs"
ANSWER = "def answer(x):\n    return scale * x"


def run_of(*lab: str, answer: str = ANSWER) -> list[str]:
    """Of the lab's own cells, those that run; the answer is after the first of them."""
    first, *others = [new_code_cell(source, id=f"cell-{at}") for at, source in enumerate(lab)]
    cells = [first, new_code_cell(answer, id="answer"), *others]
    to_run = cells_to_run(cells, {"cell-0", *(cell.id for cell in others)})
    assert 1 in to_run
    return [cell.source for at, cell in enumerate(cells) if at in to_run and at != 1]


def test_what_an_answer_uses_runs_and_what_only_shows_does_not() -> None:
    used, shown = "scale = factor", "run = launch(answer, world_size=2)\nrun.traffic"
    assert run_of("import math", used, shown, "factor = 2") == [used, "factor = 2"]


@pytest.mark.parametrize(
    "changes",
    ["scale.append(1)", "scale[0] = 1", "scale.part = 1", "del scale[0]", "fill(scale)",
     "for scale in range(3): pass", "with open('f') as scale: pass", "scale += 1", "(scale := 1)",
     "import scale", "def scale(): pass", "f([scale], key=1)",
     "def later():\n    global scale\n    scale = 1"],
)  # fmt: skip
def test_a_cell_that_may_change_what_an_answer_uses_runs(changes: str) -> None:
    assert run_of("scale = []", changes) == ["scale = []", changes]


@pytest.mark.parametrize(
    "shows",
    ["print(answer(1))", "rows = [scale for scale in (1, 2)]", "show(lambda scale: 1)",
     "def f(scale):\n    scale[0] = 1", "%config A = 1\nshow(2)", "figure.plot(answer)"],
)  # fmt: skip
def test_a_cell_whose_names_no_answer_uses_does_not(shows: str) -> None:
    assert run_of("scale = []", shows) == ["scale = []"]


@pytest.mark.parametrize(
    "answer",
    ["%run other.py", "def answer(:", "answer = eval('scale')", "answer = globals()['scale']",
     "import __main__ as m\nanswer = m.scale", "import sys\nanswer = sys.modules",
     "answer = Out[3]", "answer = _"],
)  # fmt: skip
def test_all_cells_run_if_an_answer_might_find_names_in_other_ways(answer: str) -> None:
    assert run_of("scale = 1", "print(2)", answer=answer) == ["scale = 1", "print(2)"]


@pytest.mark.parametrize("lab", exercises.labs())
def test_no_launch_that_only_shows_something_runs_for_a_solved_lab(lab: str) -> None:
    cells = nbformat.read(LABS / lab / f"{lab}.ipynb", as_version=4).cells
    own = {cell.id for cell in cells if not grade_id(cell)}
    for cell in cells:
        cell.source = planted.solution(lab).get(cell.id, cell.source)
    at_the_top = [
        cell.source
        for at, cell in enumerate(cells)
        if at in cells_to_run(cells, own) and cell.id in own and "= launch(" in f"\n{cell.source}"
    ]
    assert not at_the_top


def test_outputs_of_the_submission_stay_where_grading_runs_nothing() -> None:
    drawn, not_drawn = (new_code_cell("print(3)", id=name) for name in ("drawn", "not-drawn"))
    drawn.outputs = [new_output("stream", name="stdout", text="from the student\n")]
    notebook = new_notebook(cells=[drawn, not_drawn, new_code_cell("print(4)", id="answer")])
    limits = Limits()
    done = run_cells(notebook, partial(start_cells, limits), limits, (), {"drawn", "not-drawn"})
    assert [*done.ends] == [2]
    mark, kept = drawn.outputs
    assert (mark.data, kept.text) == ({"text/plain": FROM_SUBMISSION}, "from the student\n")
    assert [output.data for output in not_drawn.outputs] == [{"text/plain": NOT_RUN}]
