"""The script of an answer under a real torchrun: the check's verdict, in its words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder import exercises
from autograder.__main__ import main
from autograder.evaluation.present import as_text
from autograder.job.check_in_job import verdict_in_job
from autograder.job.script import script_of
from shardlab.export.needed import CannotExport
from tests.running_lab import ROOT
from tests.submissions import planted
from tests.torchrun import torchrun

pytestmark = pytest.mark.long
LAB = "03_ring_all_reduce"


def notebook(folder: Path, answers: dict[str, str], lab: str = LAB) -> Path:
    """The students' lab with these answers filled in."""
    content = nbformat.read(ROOT / f"labs/{lab}/{lab}.ipynb", as_version=4)
    for cell in content.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if cell.cell_type == "code" and grade_id in answers:
            cell.source = answers[grade_id]
    path = folder / "lab.ipynb"
    nbformat.write(content, path)
    return path


def script(folder: Path, answer: str, answers: dict[str, str], lab: str = LAB) -> Path:
    path = folder / f"{answer}.py"
    given = ["--notebook", str(notebook(folder, answers, lab)), "--to", str(path)]
    assert main(["script", lab, answer, *given]) == 0
    return path


def without_bytes(text: str) -> str:
    """gloo's own messages differ a little from run to run."""
    return re.sub(r"[\d,]+ B\b", "# B", text)


# Answers whose verdict needs outputs, calls, named mistakes, bytes and live memory.
MANY = """
import sys
sys.path.insert(0, {root!r})
from tests.autograder.job import test_script
test_script.print_verdicts()
"""
COMPARED = [
    ("03_ring_all_reduce", "all_gather", "gathers_by_adding"),
    ("03_ring_all_reduce", "all_gather", "begins_with_the_left_neighbors_chunk"),
    ("03_ring_all_reduce", "ring_all_reduce", ""),
    ("04_zero", "Zero1AdamW", ""),
    ("04_zero", "Zero3Linear", "a_slice_that_is_a_view"),
]


def print_verdicts() -> None:
    """In a job, on its ranks; else on ranks of their own."""
    from shardlab.job.environment import current

    job = current()
    for lab, answer, name in COMPARED:
        exercise = next(each for each in exercises.of_lab(lab) if each.answer == answer)
        cases = tuple(c for c in exercise.cases if not c.hidden and c.world_size == 4)
        wrong = next((each.answers for each in planted.of_lab(lab) if each.name == name), {})
        subject = planted.subjects(lab, planted.solution(lab) | wrong)[answer]
        verdict = verdict_in_job(exercise, cases, subject, job)
        if job is None or job.rank == 0:
            print(f"{answer}, {name}: {as_text(verdict)}", flush=True)


@pytest.mark.ranks
def test_verdicts_and_messages_are_those_of_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "many.py"
    program.write_text(MANY.format(root=str(ROOT)))
    in_job = torchrun(program, 4)
    print_verdicts()
    own = capsys.readouterr().out
    assert without_bytes(in_job) == without_bytes(own)
    assert own.count("✓ ") > 2
    assert "every rank adds a received chunk to the old values" in own
    assert "keeps more than its slices" in own


@pytest.mark.ranks
def test_a_script_checks_the_cases_of_its_jobs_size_and_lists_the_others(tmp_path: Path) -> None:
    path = script(tmp_path, "reduce_scatter", planted.solution(LAB))
    assert "from shardlab" not in path.read_text()
    printed = torchrun(path, 2).splitlines()
    assert printed[0] == "✓ reduce_scatter: all 1 cases pass"
    assert "skipped, needs 8 ranks: 8 ranks, 512 KiB" in printed
    assert printed.count(printed[0]) == 1  # only rank 0 prints
    printed_by_5 = torchrun(path, 5, fails=True)
    assert "no case of ring_all_reduce.reduce_scatter has 5 ranks" in printed_by_5


@pytest.mark.ranks
def test_a_wrong_answer_fails_and_a_stub_is_not_written_yet(tmp_path: Path) -> None:
    (wrong,) = (each for each in planted.of_lab(LAB) if each.name == "sum_instead_of_mean")
    path = script(tmp_path, "ring_all_reduce", planted.solution(LAB) | wrong.answers)
    printed = torchrun(path, 2, fails=True)
    assert wrong.says["ring_all_reduce"] in printed
    stub = script(tmp_path, "all_gather", {})
    assert "all_gather: not written yet" in torchrun(stub, 2, fails=True)


@pytest.mark.ranks
def test_a_formula_needs_no_torchrun(tmp_path: Path) -> None:
    path = script(tmp_path, "chunk_bounds", planted.solution(LAB))
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert ran.stdout.startswith("✓ chunk_bounds: all 4 cases pass\n"), ran.stderr


@pytest.mark.parametrize(
    ("lab", "answer", "message"),
    [
        ("03_ring", "x", "no lab '03_ring'; there are 03_ring_all_reduce"),
        (LAB, "all_scatter", "no exercise 'ring_all_reduce.all_scatter'; this lab has"),
    ],
)
def test_unknown_names_are_errors_with_the_known_ones(tmp_path, lab, answer, message) -> None:
    with pytest.raises(CannotExport, match=re.escape(message)):
        script_of(lab, answer, tmp_path / "none.ipynb", "script.py")


def test_a_notebook_without_the_check_or_with_a_broken_cell(tmp_path: Path, capsys) -> None:
    for source, message in (("1 + 1", "has no cell with check("), ("def f(:", "not Python")):
        path = tmp_path / "other.ipynb"
        made = [nbformat.v4.new_code_cell(source)]
        nbformat.write(nbformat.v4.new_notebook(cells=made), path)
        given = ["--notebook", str(path), "--to", str(tmp_path / "script.py")]
        assert main(["script", LAB, "all_gather", *given]) == 1
        assert message in capsys.readouterr().err


def test_every_answer_of_every_lab_can_be_written(tmp_path: Path) -> None:
    for lab in exercises.labs():
        path = notebook(tmp_path, planted.solution(lab), lab)
        for exercise in exercises.of_lab(lab):
            text = script_of(lab, exercise.answer, path, "script.py")
            assert f'check_in_job("{exercise.name}"' in text
