"""Runs a student's notebook in contained processes, and survives whatever happens in them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field

from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.build.cells import grade_id
from autograder.grading.notebook.cells_to_run import cells_to_run
from autograder.grading.notebook.outputs import Outputs
from autograder.grading.notebook.process import CellEnd, Process, Sink
from autograder.sandbox import Limits
from autograder.sandbox.contained import Start

ALL_CELLS = 10  # limit on the outputs of all cells together, as a multiple of one cell's
MAX_NAME = 60  # characters of a cell's first line
NOT_RUN = "Grading does not run this cell, since no answer needs it."
FROM_SUBMISSION = f"{NOT_RUN} Below is what the submitted notebook shows."


@dataclass
class CellsRun:
    """The results of running the cells, besides the outputs in the notebook."""

    # {exercise's name: the last cloudpickle passed to its check}, never to be unpickled here.
    answers: dict[str, bytes] = field(default_factory=dict)
    # {position: ...} of each code cell that is not empty.
    ends: dict[int, CellEnd] = field(default_factory=dict)
    limits_hit: list[str] = field(default_factory=list)  # one sentence each, for the student
    tampering: list[str] = field(default_factory=list)  # what cannot have been an accident


def run_cells(
    notebook: NotebookNode,
    start: Start,
    limits: Limits,
    exercises: Collection[str],
    lab_ids: Collection[str] = (),
) -> CellsRun:
    """Run the code cells and store their outputs in ``notebook``; keep only the answers to
    ``exercises``.

    ``lab_ids``: of cells that need not run (cells_to_run.py). Their outputs stay, marked as such.
    A cell that kills its process or ignores its time limit gets an error output that says so; a
    new process reruns the cells before it, skips it, and continues after it.  Raises
    InfrastructureError if the machine, not the student's code, is at fault.
    """
    return _Submission(notebook, start, limits, exercises, lab_ids).run()


class _Submission:
    def __init__(
        self,
        notebook: NotebookNode,
        start: Start,
        limits: Limits,
        exercises: Collection[str],
        lab_ids: Collection[str],
    ) -> None:
        self.exercises = exercises
        written = {
            at: cell
            for at, cell in enumerate(notebook.cells)
            if cell.cell_type == "code" and cell.source.strip()
        }
        to_run = cells_to_run(notebook.cells, lab_ids)
        self.cells = {at: cell for at, cell in written.items() if at in to_run}
        self.not_run = [cell for at, cell in written.items() if at not in to_run]
        self.start = start
        self.limits = limits
        self.outputs = Outputs(limits.output_bytes, ALL_CELLS * limits.output_bytes)
        self.result = CellsRun()
        self.left_s = limits.submission_s  # run time
        self.pending = [*self.cells]
        # Cells to rerun in a new process: they neither killed theirs nor hung.
        self.ran: list[int] = []
        self.counts: dict[int, int] = {}

    def run(self) -> CellsRun:
        starts = 0
        while self.pending and self.left_s > 0 and starts <= self.limits.deaths:
            starts += 1
            with (
                self.start() as contained,
                contextlib.closing(Process(contained, self.limits)) as process,
            ):
                self._run_in(process)
        self._report_cells_not_run()
        for cell in self.not_run:
            mark = FROM_SUBMISSION if cell.outputs else NOT_RUN
            cell.outputs.insert(0, new_output("display_data", {"text/plain": mark}))
        for position, cell in self.cells.items():
            cell.outputs = self.outputs.of(position)
            cell.execution_count = self.counts.get(position)
        for position, sentence in self.outputs.limits_hit():
            self._add_limit_hit(position, sentence)
        return self.result

    def _run_in(self, process: Process) -> None:
        """Rerun ``ran``, then run ``pending``, up to the end, the deadline or a dead process."""
        for count, position in enumerate([*self.ran, *self.pending], 1):
            if self.left_s <= 0:
                return
            seconds = min(self.limits.cell_s, self.left_s)
            # A rerun repeats outputs that are kept already: drop them.
            is_new = position in self.pending
            outputs = self.outputs if is_new else Outputs(0, 0)
            sink = Sink(position, count, outputs, self.result.answers, self.exercises)
            end = process.run(self.cells[position].source, seconds, sink)
            self.left_s -= process.used_s
            self._note(position, end, count, is_new)
            if end.is_lost:
                return

    def _note(self, position: int, end: CellEnd, count: int, is_new: bool) -> None:
        if is_new:
            self.pending.remove(position)
            self.counts[position] = count
            if not end.name:
                self.ran.append(position)
        elif not end.name:
            return
        else:
            self.ran.remove(position)
        self.result.ends[position] = end
        if end.name:
            self.outputs.add_error(position, end.name, end.sentence)
        if end.status == "limit":
            self._add_limit_hit(position, end.sentence)
        if end.forged:
            self.result.tampering.append(self._with_name(position, end.sentence))

    def _report_cells_not_run(self) -> None:
        why = (
            f"the whole notebook reached its limit of {self.limits.submission_s:.0f} s"
            if self.left_s <= 0
            else f"the kernel had died {self.limits.deaths + 1} times"
        )
        end = CellEnd("not run", "NotRun", f"This cell was not run: {why}.")
        for position in self.pending:
            self.outputs.add_error(position, end.name, end.sentence)
            self.result.ends[position] = end
        if self.pending:
            self._add_limit_hit(self.pending[0], end.sentence)

    def _add_limit_hit(self, position: int, sentence: str) -> None:
        self.result.limits_hit.append(self._with_name(position, sentence))

    def _with_name(self, position: int, sentence: str) -> str:
        return f"The cell {name_of(self.cells[position])}: {sentence}"


def name_of(cell: NotebookNode) -> str:
    """`chunk_bounds`, or the cell's first line: students see no other name of a cell."""
    if answer := grade_id(cell):
        return f"`{answer}`"
    first = cell.source.strip().splitlines()[0].replace("`", "'")
    printable = "".join(char for char in first if char.isprintable())
    shown = printable if len(printable) <= MAX_NAME else f"{printable[:MAX_NAME]}…"
    return f"that begins with `{shown}`"
