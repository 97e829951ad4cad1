"""One submission from bytes to a record. No gradebook, no files: any machine can do it."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import KeptRanks
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Exercise
from autograder.grading.notebook.runner import CellsRun, run_cells
from autograder.grading.record.marks import earned_points, why_missing, write_verdict
from autograder.grading.record.pictures import Picture, Seen
from autograder.grading.record.record import Record, Task
from autograder.grading.record.source_rules import find_forbidden
from autograder.grading.record.states import state_of
from autograder.grading.submission.checks import Check
from autograder.grading.submission.reader import Unreadable, read_notebook
from autograder.grading.submission.rebuild import insert_notes, rebuild
from autograder.grading.submission.template import CourseError, checks_of, grade_id
from autograder.sandbox import Limits
from shardlab.ranks.trust import Trust


def grade_submission(task: Task, sandbox: Any) -> Record:
    """Runs the cells in ``sandbox``, decides the answers here. The same task, the same record.

    Raises trial.InfrastructureError and whatever else is the machine's doing, never the student's.
    """
    template = nbformat.from_dict(task.template)
    checks = checks_of(template)
    notebook, notes, unreadable = _put_in_order(task)
    sandbox.take_account()  # of a submission that was broken off
    started_s = time.monotonic()
    run = CellsRun()
    if not unreadable:
        names = {check.exercise for check in checks.values()}
        run = run_cells(notebook, sandbox.cells, sandbox.limits, names)
    ran_s = time.monotonic()

    verdicts: dict[str, Verdict] = {}
    points: dict[str, float] = {}
    pictures: dict[str, list[Picture]] = {}
    missing: list[str] = []
    for position, verdict, seen in _decided(notebook, checks, run, task.seed, sandbox):
        cell = notebook.cells[position]
        name = cell.metadata.nbgrader.grade_id
        verdicts[name], pictures[name] = verdict, seen.pictures(verdict)
        points[name] = earned_points(verdict, float(cell.metadata.nbgrader.points))
        why = ""
        if verdict.exercise not in run.answers:
            why = unreadable or why_missing(checks[name], notebook.cells, position)
            missing.append(why)
        write_verdict(cell, verdict, why)
    insert_notes(notebook, notes)
    state, reason = state_of(
        verdicts.values(), tampering=run.tampering, limits_hit=run.limits_hit, missing=missing
    )
    return Record(
        lab=task.lab,
        student=task.student,
        key=task.key,
        submission_hash=task.submission_hash,
        state=state,
        reason=reason,
        notes=tuple(notes),
        flags=tuple(_flags(notebook, template, checks.values())),
        notebook=dict(notebook),
        points=points,
        verdicts={name: verdict.to_plain() for name, verdict in verdicts.items()},
        pictures={name: drawn for name, drawn in pictures.items() if drawn},
        timing={
            "ran_s": ran_s - started_s,
            "decided_s": time.monotonic() - ran_s,
            **sandbox.take_account(),
        },
    )


def _flags(
    notebook: NotebookNode, template: NotebookNode, checks: Iterable[Check]
) -> Iterator[str]:
    """What an answer's source says of calls it may not make, and of tools that no answer needs.

    Not what the lab's own cells say already.
    """
    source, own = map(_code, (notebook, template))
    for check in checks:
        exercise = exercises.load(check.exercise)
        for says in _said_of(source, exercise):
            if says not in _said_of_lab(own, check.exercise):
                yield f"{exercise.answer}: its source {says}"


def _said_of(source: str, exercise: Exercise) -> list[str]:
    found = find_forbidden(source, exercise.allows, exercise.answer, exercise.closed)
    return [each.says for each in found]


@functools.cache
def _said_of_lab(source: str, exercise: str) -> list[str]:
    return _said_of(source, exercises.load(exercise))


def _code(notebook: NotebookNode) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


def _put_in_order(task: Task) -> tuple[NotebookNode, list[str], str]:
    """(the lab with the student's text in it, notes, why that text could not be read)."""
    template = nbformat.from_dict(task.template)
    unreadable = task.unreadable
    if task.submitted is not None:
        try:
            submitted, mended = read_notebook(task.submitted)
        except Unreadable as error:
            unreadable = f"The file you handed in could not be read: {error}."
        else:
            rebuilt, notes = rebuild(template, submitted)
            return rebuilt, [*task.notes, *mended, *notes], ""
    return template, [*task.notes, unreadable], unreadable


def _decided(
    notebook: NotebookNode, checks: Mapping[str, Check], run: CellsRun, seed: int, sandbox: Any
) -> Iterator[tuple[int, Verdict, Seen]]:
    """(position of the check's cell, verdict, what was seen), all on ranks that stay."""
    of = {check.exercise: exercise_of(check, sandbox.limits) for check in checks.values()}
    with KeptRanks(host=sandbox.host, trust=Trust.UNTRUSTED) as ranks:
        for exercise in of.values():
            ranks.expect(exercise, exercise.cases)
        for position, cell in enumerate(notebook.cells):
            check = checks.get(grade_id(cell) or "")
            if check is not None:
                exercise, seen = of[check.exercise], Seen(of[check.exercise])
                answer = run.answers.get(check.exercise)
                verdict = decide(exercise, answer, seed, on_attempt=seen, ranks=ranks)
                yield position, verdict, seen


def exercise_of(check: Check, limits: Limits) -> Exercise:
    """Raises CourseError where it is not there."""
    try:
        exercise = exercises.load(check.exercise)
    except KeyError as error:
        raise CourseError(f"no exercise is called {check.exercise!r}") from error
    return replace(exercise, timeout_s=min(exercise.timeout_s, limits.run_s))
