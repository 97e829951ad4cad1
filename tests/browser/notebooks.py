"""Notebooks on disk for the tests to open: a scratch notebook, a lab with answers."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from tests.running_lab import ROOT
from tests.submissions import planted


def solution_of(lab: str) -> dict[str, str]:
    """{grade id: source} as a student would write it, without solution markers."""
    return {
        grade_id: "\n".join(line for line in source.splitlines() if " SOLUTION" not in line)
        for grade_id, source in planted.solution(lab).items()
    }


LAB = "03_ring_all_reduce"
SOLUTION = solution_of(LAB)
SOLUTION["from_8_to_64_ranks"] = "Nine times, and hardly at all: latency first, then bandwidth."


def write_scratch(path: Path, *cells: str) -> Path:
    """A notebook of only these code cells; the first one's id is cell-1."""
    notebook = new_notebook(
        cells=[new_code_cell(source, id=f"cell-{n}") for n, source in enumerate(cells, start=1)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, path)
    return path


def write_answered(path: Path, answers: dict[str, str]) -> Path:
    """The lab as released, with the answers {grade id: source} filled in."""
    notebook = json.loads((ROOT / "labs" / LAB / f"{LAB}.ipynb").read_text())
    for cell in notebook["cells"]:
        cell["source"] = answers.get(cell["id"], cell["source"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook))
    return path
