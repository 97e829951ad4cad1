"""Collects one download for one lab."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from nbgrader.coursedir import CourseDirectory

from autograder.grading.collect import files, platforms
from autograder.grading.collect.files import CollectError
from autograder.grading.collect.labs import Labs, lab_of, labs_of
from autograder.grading.collect.platforms import SubmittedFile
from autograder.grading.collect.store import Plan, Store, Version, digest
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.roster.roster import read_roster
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.folders import grading_folder
from autograder.grading.submission.reader import KINDS


@dataclass
class Collected:
    """What was done, or would be."""

    lab: str
    platform: str
    students: dict[str, tuple[Plan, SubmittedFile, Version]] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # path, why
    # (student, path of the collected file, paths of others that are equally new)
    ties: list[tuple[str, str, list[str]]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # paths of files that are not notebooks
    late: set[str] = field(default_factory=set)  # according to the platform
    absent: list[str] = field(default_factory=list)  # on the roster, but without a submission


def collect(lab: str, download: Path, platform: str | None, dry_run: bool) -> Collected:
    """Raises CollectError or BadTable before anything is changed."""
    course = CourseDirectory(parent=nbgrader_app())
    labs = labs_of(course)
    if lab not in labs:
        raise CollectError(f"there is no lab {lab!r}: choose from {', '.join(labs) or 'none'}")
    roster = read_roster(grading_folder(course))
    store = Store(course, lab)
    with files.opened(download) as found:
        chosen = platform or platforms.recognize(found)
        collected = Collected(lab, chosen)
        for student, candidates in _candidates(
            platforms.read(chosen, found, roster), labs, collected
        ):
            try:
                _store_new(store, student, candidates, dry_run, collected)
            except (Unreadable, OSError) as error:
                collected.skipped.append((candidates[-1][0].file.shown, str(error)))
    if roster is not None:
        absent = {s for s in roster.people if not store.has_submission(s)}
        collected.absent = sorted(absent - collected.students.keys())
    return collected


Candidates = list[tuple[SubmittedFile, Version]]


def _candidates(
    submitted: list[SubmittedFile], labs: Labs, collected: Collected
) -> list[tuple[str, Candidates]]:
    """(student, all files with this lab, the newest last)."""
    by_student: dict[str, Candidates] = defaultdict(list)
    for each in submitted:
        # The target of a link is unknown: its name says nothing about it.
        if each.file.why_not != files.LINK and not each.file.may_be_notebook:
            collected.ignored.append(each.file.shown)
            continue
        try:
            if each.why_not:
                raise Unreadable(each.why_not)
            content = each.file.read()
            found = lab_of(content, each.file.path.name, labs)
            if found != collected.lab:
                raise Unreadable(f"it is {found}" if found else "it is not a lab of this course")
        except Unreadable as error:
            collected.skipped.append((each.file.shown, str(error)))
            continue
        version = Version(digest(content), each.time or each.file.time, each.time is not None)
        by_student[each.student].append((each, version))
    for student, candidates in by_student.items():
        candidates.sort(key=_sort_key)
        newest, version = candidates[-1]
        tied = [
            other.file.shown
            for other, other_version in candidates[:-1]
            if _sort_key((other, other_version)) == _sort_key(candidates[-1])
            and other_version.digest != version.digest
        ]
        if tied:
            collected.ties.append((student, newest.file.shown, tied))
    return sorted(by_student.items())


def _sort_key(candidate: tuple[SubmittedFile, Version]) -> tuple[Any, ...]:
    """Sorts the newest last."""
    return -_kind(candidate[0].file.path), *candidate[0].order


def _kind(path: PurePosixPath) -> int:
    """A notebook is preferred to a zip or script that was submitted with it."""
    suffix = path.suffix.lower()
    return KINDS.index(suffix) if suffix in KINDS else 0


def _store_new(
    store: Store, student: str, candidates: Candidates, dry_run: bool, collected: Collected
) -> None:
    plan = store.plan(student, [version for _, version in candidates])
    newest, version = candidates[-1]
    if not dry_run:
        for index in plan.to_earlier:
            older, other_version = candidates[index]
            store.keep_earlier(student, other_version, older.file.read())
        if plan.becomes_current:
            store.make_current(student, version, newest.file.read())
    collected.students[student] = plan, newest, version
    if newest.is_late:
        collected.late.add(student)
