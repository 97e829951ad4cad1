"""A student's kernel may die, hang, flood: the notebook runs to its end."""

import asyncio
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from autograder.grading.kernel import TOO_MUCH, Limits, run_student_kernel

QUICK = Limits(cell_s=3, interrupt_grace_s=1, output_bytes=10_000)


def run(tmp_path: Path, *sources: str, limits: Limits = QUICK) -> list[NotebookNode]:
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    (tmp_path / "deposits").mkdir()
    run_student_kernel(
        notebook, private=tmp_path / "k", deposits=tmp_path / "deposits", limits=limits
    )
    return list(notebook.cells)


def said(cell: NotebookNode) -> str:
    parts = [output.get("text") or output.get("evalue") or "" for output in cell.outputs]
    parts += [output.data.get("text/plain", "") for output in cell.outputs if "data" in output]
    return "\n".join(filter(None, parts))


def test_cells_after_a_dead_kernel_run_with_what_came_before(tmp_path: Path) -> None:
    before, exits, after, crashes, last = run(
        tmp_path,
        "kept = 41\nprint('once')",
        "import os; os._exit(3)",
        "kept += 1",
        "import ctypes; ctypes.string_at(0)",
        "kept",
    )
    assert said(before) == "once\n"
    assert said(exits) == "The kernel died in this cell: it exited with status 3."
    assert after.outputs == []
    assert said(crashes) == "The kernel died in this cell: killed by SIGSEGV."
    assert said(last) == "42"


def test_a_cell_is_stopped_at_its_limit(tmp_path: Path) -> None:
    endless, stubborn, last = run(
        tmp_path,
        "while True: pass",
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(99)",
        "'still here'",
    )
    assert "This cell was stopped after 3 s." in said(endless)
    assert "did not stop when asked to: its kernel was ended." in said(stubborn)
    assert said(last) == "'still here'"


def test_output_is_bounded(tmp_path: Path) -> None:
    lines, image = run(
        tmp_path,
        "for i in range(5000): print(i, flush=i % 100 == 0)",
        "from IPython.display import HTML\nHTML('x' * 20_000)",
    )
    assert sum(len(text) for text in said(lines)) < 20_000
    assert TOO_MUCH in said(lines)
    assert said(image) == TOO_MUCH


def test_a_notebook_that_only_dies_ends(tmp_path: Path) -> None:
    limits = Limits(cell_s=3, deaths=1)
    *dead, unrun = run(tmp_path, *["import os; os._exit(1)"] * 2, "1", limits=limits)
    assert all("died in this cell" in said(cell) for cell in dead)
    assert said(unrun) == "This cell was not run: the kernel had died 2 times."


def test_the_kernel_starts_far_from_the_solutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, deposits = run(
        tmp_path, "import os; os.getcwd()", "print(os.environ['SHARDLAB_DEPOSIT'])"
    )
    assert said(where) == repr(str(tmp_path / "k/kernel0/work"))
    assert said(deposits) == f"{tmp_path / 'deposits'}\n"


def test_formgrader_calls_it_inside_its_event_loop(tmp_path: Path) -> None:
    async def handler() -> list[NotebookNode]:
        return run(tmp_path, "6 * 7")

    (cell,) = asyncio.run(handler())
    assert said(cell) == "42"
