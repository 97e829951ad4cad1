"""A submission is put back in order: the lab as released, with the student's own text in it.

Nothing else of the submission is taken over: no metadata, no tags, no outputs, no check cells.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader.preprocessors import NbGraderPreprocessor

from autograder.grading.reader import UNREADABLE
from autograder.grading.template import grade_id, is_answer, load_template

MAX_CHARS = 200_000  # of one cell's text


class RebuildSubmission(NbGraderPreprocessor):
    """First in nbgrader's ``sanitize_preprocessors``; says at the top what it had to mend."""

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        template = load_template(self, resources)
        if UNREADABLE in resources:
            rebuilt = template
            notes = [f"The file you handed in could not be read: {resources[UNREADABLE]}."]
        else:
            rebuilt, notes = rebuild(template, nb)
        for note in notes:
            self.log.warning("%s: %s", resources["nbgrader"]["student"], note)
        insert_notes(rebuilt, notes)
        return rebuilt, resources


def rebuild(template: NotebookNode, submitted: NotebookNode) -> tuple[NotebookNode, list[str]]:
    """``template`` with the student's answers and own cells, and a sentence for each repair.

    A cell is known by its nbgrader grade id, else by its cell id (the builder makes them the
    same), else by being word for word a cell of the lab.  What is not known is the student's own
    and stays behind the cell it stood behind: helpers are part of an answer.
    """
    rebuilt = nbformat.from_dict(template)
    known = {cell.id: cell for cell in rebuilt.cells}
    ids_by_text = {cell.source: cell.id for cell in rebuilt.cells}
    copies: dict[str, list[NotebookNode]] = defaultdict(list)
    own: dict[str, list[NotebookNode]] = defaultdict(list)
    behind = ""
    for cell in submitted.cells:
        cell_id = next(
            (i for i in (grade_id(cell), cell.get("id")) if isinstance(i, str) and i in known),
            ids_by_text.get(_text(cell)),
        )
        if cell_id is not None:
            copies[cell_id].append(cell)
            behind = cell_id
        elif cell.cell_type in ("code", "markdown") and _text(cell).strip():
            own[behind].append(cell)

    notes: list[str] = []
    for cell in rebuilt.cells:
        if is_answer(cell):
            cell.source = _answer(cell, copies[cell.id], notes)
        elif grade_id(cell):
            _note_changes(cell, copies[cell.id], notes)
    if _order(copies) != [cell.id for cell in rebuilt.cells if copies[cell.id]]:
        notes.append("Cells had changed places: they were graded in the lab's own order.")
    rebuilt.cells = _with_own_cells(rebuilt.cells, own)
    return rebuilt, notes


def _answer(cell: NotebookNode, copies: list[NotebookNode], notes: list[str]) -> str:
    """The text of one answer cell, out of however many cells claim to be it."""
    stub, name = cell.source, f"`{cell.id}`"
    if not copies:
        notes.append(f"The answer cell {name} was missing: it counts as not answered.")
        return stub
    if any(copy.cell_type != cell.cell_type for copy in copies):
        notes.append(f"The answer cell {name} had become another type of cell: it was turned back.")
    texts = list(dict.fromkeys(text for copy in copies if (text := _text(copy)) != stub)) or [stub]
    if len(copies) == 1:
        return texts[0]
    if len(texts) == 1:
        notes.append(f"The answer cell {name} was there {len(copies)} times: one was kept.")
        return texts[0]
    # A cell that was split, or copied and changed. Both read right when joined: run one after the
    # other is what the notebook did.
    joined = "\n".join(texts)
    if cell.cell_type == "markdown" or _compiles(joined):
        notes.append(
            f"The answer cell {name} was there {len(copies)} times, with different text: "
            "the copies were joined in their order."
        )
        return joined
    notes.append(
        f"The answer cell {name} was there {len(copies)} times, with different text that cannot "
        "be joined: the last one that Python can read was kept."
    )
    return next((text for text in reversed(texts) if _compiles(text)), texts[-1])


def _note_changes(cell: NotebookNode, copies: list[NotebookNode], notes: list[str]) -> None:
    """A check or read-only cell is always the lab's own; say so where the student's was not."""
    name = f"`{cell.id}`"
    if not copies:
        notes.append(f"The cell {name} was missing: it was put back.")
    elif any(_text(copy) != cell.source or copy.cell_type != cell.cell_type for copy in copies):
        notes.append(f"The cell {name} had been changed: the lab's own text was used.")
    elif len(copies) > 1:
        notes.append(f"The cell {name} was there {len(copies)} times: it was graded once.")


def _order(copies: dict[str, list[NotebookNode]]) -> list[str]:
    return [cell_id for cell_id, found in copies.items() if found]


def _with_own_cells(
    cells: list[NotebookNode], own: dict[str, list[NotebookNode]]
) -> list[NotebookNode]:
    placed: list[NotebookNode] = []

    def place_own(behind: str) -> None:
        for cell in own[behind]:
            new = new_code_cell if cell.cell_type == "code" else new_markdown_cell
            placed.append(new(_text(cell), id=f"own-{len(placed):03d}"))

    place_own("")
    for cell in cells:
        placed.append(cell)
        place_own(cell.id)
    return placed


def insert_notes(notebook: NotebookNode, notes: list[str]) -> None:
    """At the top, what was mended; nothing where nothing was."""
    if notes:
        lines = "\n".join(f"- {note}" for note in notes)
        text = f"**Before grading, this notebook was mended:**\n\n{lines}"
        notebook.cells.insert(0, new_markdown_cell(text, id="note"))


def _text(cell: NotebookNode) -> str:
    """A cell's text, whatever the file had in that place."""
    source = cell.get("source", "")
    if not isinstance(source, str):
        return ""
    return source[:MAX_CHARS].encode("utf-8", "replace").decode("utf-8")


def _compiles(source: str) -> bool:
    try:
        compile(TransformerManager().transform_cell(source), "answer", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
