"""Grades one submission, from its bytes to a record. Needs no gradebook and no files."""

from __future__ import annotations

import functools
import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder import exercises
from autograder.build.cells import Check, checks_of, grade_id
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import RankPool
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Exercise
from autograder.exercise.reference_cache import with_cached_references
from autograder.grading.course_error import CourseError
from autograder.grading.notebook.runner import CellsRun, run_cells
from autograder.grading.record.marks import earned_points, why_missing, write_verdict
from autograder.grading.record.pictures import Picture, VisibleAttempts
from autograder.grading.record.record import (
    GRADED,
    RESOURCE_LIMIT,
    STUDENT_ERROR,
    TAMPERING,
    UNREADABLE,
    Record,
    State,
    Task,
)
from autograder.grading.record.source_rules import find_forbidden
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.lab_cells import lab_cells
from autograder.grading.submission.reader import read_notebook
from autograder.grading.submission.rebuild import insert_notes, rebuild
from autograder.sandbox import Limits
from shardlab.ranks.trust import Trust

MAX_UNWRITTEN = 1_000  # verdicts; a student can make as many different stubs as they like
_unwritten: dict[tuple[str, bytes], Verdict] = {}


def grade_submission(task: Task, sandbox: Any) -> Record:
    """Run the cells in ``sandbox`` and decide the verdicts here. Deterministic for a given task.

    Raises trial.InfrastructureError and other errors caused by the machine, never by the student.
    """
    template = nbformat.from_dict(task.template)
    checks = checks_of(template)
    notebook, notes, unreadable = _rebuild(task, template)
    sandbox.take_usage()  # discards that of an aborted submission
    started_s, checker_s = time.monotonic(), time.process_time()
    run = CellsRun()
    if not unreadable:
        names = {check.exercise for check in checks.values()}
        lab_ids = {cell.id for cell in template.cells if not grade_id(cell)}
        run = run_cells(notebook, sandbox.cells, sandbox.limits, names, lab_ids)
    ran_s, used_by_cells = time.monotonic(), sandbox.take_usage()

    verdicts: dict[str, Verdict] = {}
    points: dict[str, float] = {}
    pictures: dict[str, list[Picture]] = {}
    missing: list[str] = []
    for position, verdict, attempts in _verdicts(notebook, checks, run, task.seed, sandbox):
        cell = notebook.cells[position]
        name = cell.metadata.nbgrader.grade_id
        verdicts[name], pictures[name] = verdict, attempts.pictures(verdict)
        points[name] = earned_points(verdict, float(cell.metadata.nbgrader.points))
        why = ""
        if verdict.exercise not in run.answers:
            why = unreadable or why_missing(checks[name], notebook.cells, position)
            missing.append(why)
        write_verdict(cell, verdict, why)
    insert_notes(notebook, notes)
    state: State
    state, reason = state_of(
        verdicts.values(), tampering=run.tampering, limits_hit=run.limits_hit, missing=missing
    )
    if unreadable:
        state, reason = UNREADABLE, unreadable
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
            **_cpu_and_memory(used_by_cells, sandbox.take_usage(), time.process_time() - checker_s),
        },
    )


def _cpu_and_memory(
    cells: Mapping[str, float], ranks: Mapping[str, float], checker_cpu_s: float
) -> dict[str, float]:
    """By phase, from what the containers of cells and of answers' ranks have used."""
    cells_cpu_s, ranks_cpu_s = cells["cpu_s"], ranks["cpu_s"]
    return {
        "cells_cpu_s": cells_cpu_s,
        "ranks_cpu_s": ranks_cpu_s,
        "checker_cpu_s": checker_cpu_s,
        "cpu_s": cells_cpu_s + ranks_cpu_s + checker_cpu_s,
        "peak_bytes": max(cells["peak_bytes"], ranks["peak_bytes"]),
    }


def state_of(
    verdicts: Iterable[Verdict],
    *,
    tampering: Sequence[str],
    limits_hit: Sequence[str],
    missing: Sequence[str],
) -> tuple[State, str]:
    """(state, its reason as a sentence for the student).

    The sequences contain sentences about the notebook's cells; ``missing`` has one for each answer
    that never reached its check.  An infrastructure error is an exception, never one of these.
    """
    cases = [(verdict, case) for verdict in verdicts for case in verdict.cases]
    reasons: dict[State, Sequence[str]] = {TAMPERING: tampering, RESOURCE_LIMIT: limits_hit}
    for state, sentences in reasons.items():
        if sentences:
            return state, sentences[0]
        for verdict, case in cases:
            if case.violation == state:
                return state, f"{verdict.answer}, {case.title}: {case.diagnosis}"
    if missing:
        return STUDENT_ERROR, missing[0]
    return GRADED, ""


def _flags(
    notebook: NotebookNode, template: NotebookNode, checks: Iterable[Check]
) -> Iterator[str]:
    """Forbidden calls, and tools that no answer needs, in what the student has written for each
    answer, once each."""
    source, lines = _code(notebook, template)
    for check in checks:
        exercise = exercises.load(check.exercise)
        allows, answer, closed = exercise.allows, exercise.answer, exercise.closed
        found = find_forbidden(source, allows, answer, closed, lines) if lines else []
        for says in dict.fromkeys(each.says for each in found):
            yield f"{answer}: its source {says}"


def _code(notebook: NotebookNode, template: NotebookNode) -> tuple[str, set[int]]:
    """The source of all cells, and the numbers of its lines in cells that are not the lab's."""
    own = {cell.source for cell in template.cells}
    parts: list[str] = []
    lines: set[int] = set()
    at = 1
    for cell in notebook.cells:
        if cell.cell_type == "code":
            end = at + cell.source.count("\n") + 1
            lines |= set() if cell.source in own else {*range(at, end)}
            parts.append(cell.source)
            at = end
    return "\n".join(parts), lines


def _rebuild(task: Task, template: NotebookNode) -> tuple[NotebookNode, list[str], str]:
    """(the lab with the student's text in it, notes, why that text could not be read)."""
    unreadable = task.unreadable
    if task.submitted is not None:
        try:
            submitted, repairs = read_notebook(task.submitted, lab_cells(template.cells))
            rebuilt, notes = rebuild(template, submitted)
            return rebuilt, [*task.notes, *repairs, *notes], ""
        except Unreadable as error:
            unreadable = f"The file you submitted could not be read: {error}."
    return nbformat.from_dict(task.template), [*task.notes, unreadable], unreadable


def _verdicts(
    notebook: NotebookNode, checks: Mapping[str, Check], run: CellsRun, seed: int, sandbox: Any
) -> Iterator[tuple[int, Verdict, VisibleAttempts]]:
    """(position of the check cell, verdict, visible attempts), all on the same ranks."""
    by_name = {check.exercise: exercise_of(check, sandbox.limits) for check in checks.values()}
    with RankPool(host=sandbox.host, trust=Trust.UNTRUSTED) as ranks:
        for exercise in by_name.values():
            ranks.expect(exercise, exercise.cases)
        for position, cell in enumerate(notebook.cells):
            check = checks.get(grade_id(cell) or "")
            if check is not None:
                exercise = by_name[check.exercise]
                attempts = VisibleAttempts(exercise)
                answer = run.answers.get(check.exercise)
                verdict = _decide(exercise, answer, seed, attempts, ranks)
                yield position, verdict, attempts


def _decide(
    exercise: Exercise, answer: bytes | None, seed: int, attempts: VisibleAttempts, ranks: RankPool
) -> Verdict:
    """Without ranks if an answer of the same bytes was still the stub: a class has many of them."""
    # cloudpickle gives each class a random number, in hexadecimal digits.
    same = re.sub(rb"[0-9a-f]{32}", b"", answer or b"")
    key = exercise.name, hashlib.sha256(same).digest()
    if key in _unwritten:
        return replace(_unwritten[key], seed=seed)
    verdict = decide(exercise, answer, seed, on_attempt=attempts, ranks=ranks)
    if verdict.unwritten and len(_unwritten) < MAX_UNWRITTEN:
        _unwritten[key] = verdict
    return verdict


@functools.cache  # so that what a worker computes for one student serves the next
def _load(name: str) -> Exercise:
    return with_cached_references(exercises.load(name))


def exercise_of(check: Check, limits: Limits) -> Exercise:
    """Raises CourseError if it does not exist."""
    try:
        exercise = _load(check.exercise)
    except KeyError as error:
        raise CourseError(f"there is no exercise {check.exercise!r}") from error
    return replace(exercise, timeout_s=min(exercise.timeout_s, limits.run_s))
