"""Rebuilds a submission: the lab as released, with the student's own text in it.

Also the pictures pasted into written text and the outputs of the lab's own cells, but nothing else:
no metadata, no tags, no check cells.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from autograder.build.cells import END_LINKS, grade_id, is_answer
from autograder.grading.submission.attachments import pictures_for
from autograder.grading.submission.lab_cells import defined
from autograder.grading.submission.reader import INCOMPLETE
from autograder.grading.submission.repair import has_conflict, sides_of

Cells = list[NotebookNode]

# With a hash, so that a mark for one file does not count for the next.
NOT_FOUND = (
    "*No answer to this question was found in the submitted file, which is a script or damaged. "
    "Whoever grades it looks in the file itself ({}).*"
)
MAX_CHARS = 200_000  # of one cell's text
MAX_COPIES = 20  # of one answer that are tried one by one
# Regular expressions, because IPython's own transformer takes minutes for a cell of 400 magics.
MAGIC_LINE = re.compile(r"^([ \t]*)(?:[%!?].*|.*\?)$", re.MULTILINE)
MAGIC_VALUE = re.compile(r"(?<==)[ \t]*[%!].*$", re.MULTILINE)


def rebuild(template: NotebookNode, submitted: NotebookNode) -> tuple[NotebookNode, list[str]]:
    """``template`` with the student's answers and own cells, and a sentence for each repair.

    A cell is matched by its nbgrader grade id, else by its cell id (the builder makes them the
    same), else by having exactly the text of a cell of the lab.  Any other cell is the student's
    own and stays after the cell that it followed: helpers are part of an answer.  So are changes
    to a cell of the lab that asks for no answer, such as an import.  An answer that is not in its
    cell is searched for in all others.
    """
    rebuilt = nbformat.from_dict(template)
    found = _match_cells(rebuilt, submitted)
    notes: list[str] = []
    if not found.copies:
        notes.append("Your submission contains no cell of the lab: is it the right notebook?")
    for position, cell in enumerate(rebuilt.cells):
        if is_answer(cell):
            cell.source = _answer(cell, found, rebuilt.cells[:position], notes)
            if cell.cell_type == "markdown":
                # Its own copies first: names such as image.png occur in many cells.
                _attach(cell, [*found.copies.get(cell.id, []), *submitted.cells])
        elif grade_id(cell):
            _note_changes(cell, found.copies.get(cell.id, []), notes)
        elif cell.cell_type == "code":
            copies = found.copies.get(cell.id, [])
            cell.outputs = next((copy.outputs for copy in copies if copy.get("outputs")), [])
    if list(found.copies) != [cell.id for cell in rebuilt.cells if cell.id in found.copies]:
        notes.append("Cells had been moved: they were graded in the lab's own order.")
    if file_hash := submitted.get("metadata", {}).get(INCOMPLETE):
        _wait_for_a_person(template, rebuilt, file_hash, notes)
    rebuilt.cells = _with_own_cells(rebuilt.cells, found.own)
    return rebuilt, notes


@dataclass
class SubmittedCells:
    """The submission's cells, by the id of the lab's cell that they match or follow."""

    copies: dict[str, Cells] = field(default_factory=dict)  # in the order of the submission
    own: dict[str, Cells] = field(default_factory=lambda: defaultdict(list))
    code: list[tuple[str, NotebookNode]] = field(default_factory=list)  # copies and own cells


def _match_cells(lab: NotebookNode, submitted: NotebookNode) -> SubmittedCells:
    known = {cell.id: cell for cell in lab.cells}
    ids_by_text = {_type_and_text(cell): cell.id for cell in lab.cells}
    found = SubmittedCells()
    previous_id = ""
    for cell in submitted.cells:
        cell_id = next(
            (i for i in (grade_id(cell), cell.get("id")) if isinstance(i, str) and i in known),
            ids_by_text.get(_type_and_text(cell)),
        )
        own_types = ["code", "markdown"]
        if cell_id is not None:
            found.copies.setdefault(cell_id, []).append(cell)
            lab_cell = known[cell_id]
            # What a student adds at the very end belongs to the last question, before the links.
            previous_id = previous_id if cell_id == END_LINKS else cell_id
            is_changed = grade_id(lab_cell) is None and _type_and_text(cell) != _type_and_text(
                lab_cell
            )
            own_types = ["code"] if is_changed else []
        if cell.cell_type in own_types and _text(cell).strip():
            found.own[previous_id].append(cell)
        if cell.cell_type != "markdown":
            found.code.append((previous_id, cell))
    return found


def _answer(cell: NotebookNode, found: SubmittedCells, before: Cells, notes: list[str]) -> str:
    """The text of one answer cell, from all cells that claim to be it, or else from other cells.

    ``before``: the lab's cells before it.
    """
    copies, name = found.copies.get(cell.id, []), f"`{cell.id}`"
    if any(copy.cell_type != cell.cell_type for copy in copies):
        notes.append(f"The answer cell {name} had another cell type: it was changed back.")
    if any(len(copy.source) > MAX_CHARS for copy in copies if isinstance(copy.source, str)):
        notes.append(f"The answer cell {name} was truncated to {MAX_CHARS:,} characters.")
    texts = _distinct_answers(cell, copies, notes)
    if not texts:
        look = _written_elsewhere if cell.cell_type == "markdown" else _defined_elsewhere
        if (elsewhere := look(cell, found, before)) is not None:
            notes.append(f"The answer to {name} was in another cell: it was taken from there.")
            return elsewhere
    if not copies:
        notes.append(f"The answer cell {name} was missing: it counts as not answered.")
    elif len(copies) > 1 and len(texts) < 2:
        notes.append(f"The answer cell {name} appeared {len(copies)} times: one was kept.")
    if not texts:
        return str(cell.source)
    text = texts[0] if len(texts) == 1 else _joined(cell, texts, len(copies), notes)
    return _with_continuation(cell, text, found, notes) if cell.cell_type == "code" else text


def _distinct_answers(cell: NotebookNode, copies: Cells, notes: list[str]) -> list[str]:
    """The distinct texts of the copies, without stubs and with merge conflicts resolved."""
    # In Markdown a # starts a heading.
    normalize = _without_comments if cell.cell_type == "code" else str.strip
    blank = normalize(cell.source)
    texts: dict[str, str] = {}
    for copy in copies:
        text = _text(copy)
        if has_conflict(text):
            sides = [side for side in sides_of(text) if normalize(side) != blank] or [""]
            text = next(filter(_compiles, sides), sides[0])
            markers = "contained merge conflict markers: one side was graded"
            notes.append(f"The answer cell `{cell.id}` {markers}.")
        if normalize(text) not in ("", blank):
            texts.setdefault(text.strip(), text)
    return list(texts.values())


def _joined(cell: NotebookNode, texts: list[str], times: int, notes: list[str]) -> str:
    """For a cell that was split, or copied and changed: joining the parts gives the same result as
    running them one after the other, as the notebook did."""
    joined = "\n".join(texts)
    found = f"The answer cell `{cell.id}` appeared {times} times, with different text"
    if len(joined) <= MAX_CHARS and (cell.cell_type == "markdown" or _compiles(joined)):
        notes.append(f"{found}: the copies were joined in order.")
        return joined
    notes.append(f"{found} that cannot be joined: the last one that Python can parse was kept.")
    return next((text for text in texts[: -MAX_COPIES - 1 : -1] if _compiles(text)), texts[-1])


def _with_continuation(
    cell: NotebookNode, text: str, found: SubmittedCells, notes: list[str]
) -> str:
    """In an editor that keeps no ids, splitting an answer moves its end to the next cell."""
    following = found.own.get(cell.id, [])
    rest = _text(following[0]) if following and following[0].cell_type == "code" else ""
    if not rest.startswith((" ", "\t")) or _compiles(rest) or not _compiles(f"{text}\n{rest}"):
        return text
    del following[0]
    notes.append(f"The answer cell `{cell.id}` had been split: its parts were joined.")
    return f"{text}\n{rest}"


def _wait_for_a_person(
    template: NotebookNode, rebuilt: NotebookNode, file_hash: str, notes: list[str]
) -> None:
    """nbgrader gives 0 points to a written answer with the released text, and asks nobody."""
    for released, cell in zip(template.cells, rebuilt.cells, strict=True):
        if is_answer(cell) and cell.cell_type == "markdown" and cell.source == released.source:
            cell.source = NOT_FOUND.format(file_hash)
            notes.append(f"No answer to `{cell.id}` was found in the file: a person will look.")


def _written_elsewhere(cell: NotebookNode, found: SubmittedCells, before: Cells) -> str | None:
    """What the student wrote after the answer cell or, if that is gone, after the question."""
    for lab_id in [cell.id, *(above.id for above in before[-1:])]:
        if written := [own for own in found.own[lab_id] if own.cell_type == "markdown"]:
            found.own[lab_id] = [own for own in found.own[lab_id] if own.cell_type != "markdown"]
            return "\n\n".join(map(_text, written))
    return None


def _defined_elsewhere(cell: NotebookNode, found: SubmittedCells, before: Cells) -> str | None:
    """The last cell that defines what this one should, moved here unless it is before it."""
    names = defined(cell.source)
    wanted = {cell.id} if cell.id in names else names
    for lab_id, other in reversed(found.code):
        text = _text(other)
        if (
            not wanted
            or not wanted <= defined(text)
            or _without_comments(text) == _without_comments(cell.source)
        ):
            continue
        if lab_id == cell.id and other.cell_type == "code":
            return str(cell.source)  # still the stub, and the next cell replaces it
        if other.cell_type == "code" and lab_id in ("", *(above.id for above in before)):
            return "# The answer is in a cell above."
        found.own[lab_id] = [own for own in found.own[lab_id] if own is not other]
        return text
    return None


def _note_changes(cell: NotebookNode, copies: Cells, notes: list[str]) -> None:
    """A check or read-only cell is always the lab's own; note it if the student's differed."""
    name = f"`{cell.id}`"
    if not copies:
        notes.append(f"The cell {name} was missing: it was restored.")
    elif any(_type_and_text(copy) != _type_and_text(cell) for copy in copies):
        notes.append(f"The cell {name} had been changed: the lab's own text was used.")
    elif len(copies) > 1:
        notes.append(f"The cell {name} appeared {len(copies)} times: it was graded once.")


def _with_own_cells(cells: Cells, own: dict[str, Cells]) -> Cells:
    placed: Cells = []
    for lab_id, lab_cells in [("", []), *((cell.id, [cell]) for cell in cells)]:
        placed += lab_cells
        for cell in own.get(lab_id, []):
            new = new_code_cell if cell.cell_type == "code" else new_markdown_cell
            placed.append(new(_text(cell), id=f"own-{len(placed):03d}"))
            if cell.cell_type == "markdown":
                _attach(placed[-1], [cell])
    return placed


def _attach(cell: NotebookNode, sources: Cells) -> None:
    if pictures := pictures_for(cell.source, sources):
        cell.attachments = nbformat.from_dict(pictures)


def insert_notes(notebook: NotebookNode, notes: list[str]) -> None:
    """Insert a cell at the top that lists the repairs, if there are any."""
    if notes:
        lines = "\n".join(f"- {note}" for note in notes)
        text = f"**This notebook was repaired before grading:**\n\n{lines}"
        notebook.cells.insert(0, new_markdown_cell(text, id="note"))


def _text(cell: NotebookNode) -> str:
    """A cell's text, whatever type its source has."""
    source = cell.get("source", "")
    if not isinstance(source, str):
        return ""
    return source[:MAX_CHARS].encode("utf-8", "replace").decode("utf-8")


def _type_and_text(cell: NotebookNode) -> tuple[str, str]:
    """Equal for two cells with the same text: editors differ in trailing whitespace."""
    return cell.cell_type, "\n".join(line.rstrip() for line in _text(cell).strip().split("\n"))


def _without_comments(source: str) -> str:
    """Code without comments: a stub stays one if the lab's comments are removed."""
    lines = (line.strip() for line in source.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def _compiles(source: str) -> bool:
    """Whether it is valid Python, apart from IPython's magics."""
    plain = MAGIC_VALUE.sub(" None", MAGIC_LINE.sub(r"\1pass", source))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the student's backslashes
            compile(plain, "answer", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
