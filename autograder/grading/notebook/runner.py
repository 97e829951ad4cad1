"""Runs a student's notebook in contained processes, and outlives whatever happens there."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field

from nbformat import NotebookNode

from autograder.grading.notebook.outputs import Outputs
from autograder.grading.notebook.process import End, Process, Sink
from autograder.grading.submission.template import grade_id
from autograder.sandbox import Limits
from autograder.sandbox.contained import Start

OUTPUTS_IN_ALL = 10  # times the output of one cell: what all cells of a submission may keep
MAX_NAME = 60  # letters of a cell's first line


@dataclass
class CellsRun:
    """What the cells left behind, besides the outputs in the notebook."""

    # By exercise's name: cloudpickles, never to be loaded here.  The last one of each.
    answers: dict[str, bytes] = field(default_factory=dict)
    # By the position of each code cell that is not empty.
    ends: dict[int, End] = field(default_factory=dict)
    limits_hit: list[str] = field(default_factory=list)  # a sentence each, for the student
    tampering: list[str] = field(default_factory=list)  # what cannot be an accident


def run_cells(
    notebook: NotebookNode, start: Start, limits: Limits, exercises: Collection[str]
) -> CellsRun:
    """Runs all code cells and leaves their outputs in ``notebook``; keeps the answers to
    ``exercises`` and to no others.

    A cell that kills its process or ignores its time limit gets an error output that says so; a
    new process reruns the cells before it, without it, and goes on behind it.  Raises
    InfrastructureError where the machine, and not the student's code, is to blame.
    """
    return _Submission(notebook, start, limits, exercises).run()


class _Submission:
    def __init__(
        self, notebook: NotebookNode, start: Start, limits: Limits, exercises: Collection[str]
    ) -> None:
        self.exercises = exercises
        self.cells = {i: cell for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"}
        self.start = start
        self.limits = limits
        self.outputs = Outputs(limits.output_bytes, OUTPUTS_IN_ALL * limits.output_bytes)
        self.result = CellsRun()
        self.left_s = limits.submission_s  # of time that the machine gives
        self.waiting = [i for i, cell in self.cells.items() if cell.source.strip()]
        # And worth running again: they neither lost their process nor hung.
        self.ran: list[int] = []
        self.counts: dict[int, int] = {}

    def run(self) -> CellsRun:
        lives = 0
        while self.waiting and self.left_s > 0 and lives <= self.limits.deaths:
            lives += 1
            with (
                self.start() as contained,
                contextlib.closing(Process(contained, self.limits)) as process,
            ):
                self._one_life(process)
        self._say_what_did_not_run()
        for position, cell in self.cells.items():
            cell.outputs = self.outputs.of(position)
            cell.execution_count = self.counts.get(position)
        for position, sentence in self.outputs.limits_hit():
            self._hit(position, sentence)
        return self.result

    def _one_life(self, process: Process) -> None:
        """Runs ``ran`` again, then ``waiting``, up to the end, the deadline or a death."""
        for count, position in enumerate([*self.ran, *self.waiting], 1):
            if self.left_s <= 0:
                return
            seconds = min(self.limits.cell_s, self.left_s)
            # What a rerun puts out is the same once more: nowhere to go.
            is_new = position in self.waiting
            outputs = self.outputs if is_new else Outputs(0, 0)
            sink = Sink(position, count, outputs, self.result.answers, self.exercises)
            end = process.run(self.cells[position].source, seconds, sink)
            self.left_s -= process.used_s
            self._note(position, end, count, is_new)
            if end.is_lost:
                return

    def _note(self, position: int, end: End, count: int, is_new: bool) -> None:
        if is_new:
            self.waiting.remove(position)
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
        if end.how == "limit":
            self._hit(position, end.sentence)
        if end.forged:
            self.result.tampering.append(self._named(position, end.sentence))

    def _say_what_did_not_run(self) -> None:
        why = (
            f"the {self.limits.submission_s:.0f} s for the whole notebook were used up"
            if self.left_s <= 0
            else f"the kernel had died {self.limits.deaths + 1} times"
        )
        end = End("not run", "NotRun", f"This cell was not run: {why}.")
        for position in self.waiting:
            self.outputs.add_error(position, end.name, end.sentence)
            self.result.ends[position] = end
        if self.waiting:
            self._hit(self.waiting[0], end.sentence)

    def _hit(self, position: int, sentence: str) -> None:
        self.result.limits_hit.append(self._named(position, sentence))

    def _named(self, position: int, sentence: str) -> str:
        return f"The cell {name_of(self.cells[position])}: {sentence}"


def name_of(cell: NotebookNode) -> str:
    """`chunk_bounds`, or by what it begins with: students see no other name of their cells."""
    if answer := grade_id(cell):
        return f"`{answer}`"
    first = cell.source.strip().splitlines()[0].replace("`", "'")
    printable = "".join(letter for letter in first if letter.isprintable())
    shown = printable if len(printable) <= MAX_NAME else f"{printable[:MAX_NAME]}…"
    return f"that begins with `{shown}`"
