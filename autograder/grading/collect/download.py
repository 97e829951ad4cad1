"""Collects one download for one lab."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbgrader.coursedir import CourseDirectory

from autograder.grading.collect import files, platforms
from autograder.grading.collect.files import CollectError
from autograder.grading.collect.platforms import People, SubmittedFile
from autograder.grading.collect.store import Plan, Store, Version, digest
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.roster.groups import read_groups
from autograder.grading.roster.roster import read_roster
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.folders import grading_folder
from autograder.grading.submission.kinds import KINDS, kind_of
from autograder.grading.submission.lab_cells import Labs, lab_of, labs_of
from autograder.grading.submission.reader import read_notebook


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
    # Submitted no notebook of this lab: (student, path, why it is none)
    no_notebook: list[tuple[str, str, str]] = field(default_factory=list)
    groups: list[tuple[str, str]] = field(default_factory=list)  # maybe: (name, for whom it counts)
    # On the roster, but without a submission
    absent: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not (self.skipped or self.no_notebook or self.groups)


def collect(lab: str, download: Path, platform: str | None, dry_run: bool) -> Collected:
    """Raises CollectError or BadTable before anything is changed."""
    course = CourseDirectory(parent=nbgrader_app())
    labs = labs_of(course)
    if lab not in labs:
        raise CollectError(f"there is no lab {lab!r}: choose from {', '.join(labs) or 'none'}")
    roster = read_roster(grading_folder(course))
    groups = read_groups(grading_folder(course), roster, lab, labs)
    people = People(roster, groups) if roster is not None else None
    store = Store(course, lab)
    with files.opened(download) as found:
        chosen = platform or platforms.recognize(found)
        collected = Collected(lab, chosen)
        submitted = _Sorted(platforms.read(chosen, found, people), labs, lab)
        collected.skipped += submitted.skipped
        for student, candidates in submitted.newest_last():
            collected.ties += _ties(student, candidates)
            try:
                _store_new(store, student, candidates, dry_run, collected)
            except (Unreadable, OSError) as error:
                collected.skipped.append((candidates[-1][0].file.shown, str(error)))
        for student, others in submitted.others():
            is_unknown = roster is None or student not in roster.people
            if is_unknown or store.has_notebook(student):
                rest = [each.file for each, _ in others]
                collected.ignored += [file.shown for file in rest if not file.may_be_notebook]
                continue
            collected.no_notebook += [(student, each.file.shown, why) for each, why in others]
            if not dry_run and not submitted.has_another_lab(student):
                store.keep_unusable(student, [each.file for each, _ in others])
    collected.ignored += submitted.ignored
    if roster is not None:
        came = collected.students.keys() | {student for student, *_ in collected.no_notebook}
        absent = {s for s in roster.people if not store.has_submission(s)}
        collected.absent = sorted(absent - came)
        if roster.people.keys() - came:
            collected.groups = submitted.maybe_groups()
    return collected


Candidates = list[tuple[SubmittedFile, Version]]


class _Sorted:
    """The files of a download: those with the lab, and what else each student submitted."""

    def __init__(self, submitted: list[SubmittedFile], labs: Labs, lab: str) -> None:
        self.skipped: list[tuple[str, str]] = []  # path, why
        self.ignored: list[str] = []
        self._candidates: dict[str, Candidates] = defaultdict(list)
        self._others: dict[str, list[tuple[SubmittedFile, str]]] = defaultdict(list)
        self._of_another_lab: set[str] = set()
        self._groups: dict[str, str] = {}
        for each in submitted:
            # The target of a link is unknown: its name says nothing about it.
            if each.file.why_not != files.LINK and not each.file.may_be_notebook:
                why = each.file.why_not or "is no notebook"
                self._others[each.student].append((each, why))
                continue
            self._sort(each, labs, lab)
        self.ignored += [each.file.shown for each, _ in self._others.pop("", [])]
        for student in self._others.keys() & self._candidates.keys():
            rest = [each.file for each, _ in self._others.pop(student)]
            self.ignored += [file.shown for file in rest if not file.may_be_notebook]

    def _sort(self, each: SubmittedFile, labs: Labs, lab: str) -> None:
        if each.group:
            self._groups.setdefault(each.group, each.student)
        try:
            if each.why_not:
                raise Unreadable(each.why_not)
            content = each.file.read()
            notebook, _ = read_notebook(content, labs[lab])
            found = lab_of(notebook.cells, each.file.path.name, labs, lab)
            if found != lab:
                if found:
                    self._of_another_lab.add(each.student)
                raise Unreadable(f"it is {found}" if found else "it is not a lab of this course")
        except Unreadable as error:
            self.skipped.append((each.file.shown, str(error)))
            if each.student and each.file.why_not not in (files.LINK, files.OUTSIDE):
                self._others[each.student].append((each, str(error)))
            return
        version = Version(digest(content), each.time or each.file.time, each.time is not None)
        self._candidates[each.student].append((each, version))

    def newest_last(self) -> list[tuple[str, Candidates]]:
        """(student, all files with this lab)."""
        for candidates in self._candidates.values():
            candidates.sort(key=_sort_key)
        return sorted(self._candidates.items())

    def others(self) -> list[tuple[str, list[tuple[SubmittedFile, str]]]]:
        """(student without a file with this lab, their files and why they are none)."""
        return sorted(self._others.items())

    def has_another_lab(self, student: str) -> bool:
        return student in self._of_another_lab

    def maybe_groups(self) -> list[tuple[str, str]]:
        """(name that is not a student's, the student whom it was taken for or "")."""
        return sorted(self._groups.items())


def _ties(student: str, candidates: Candidates) -> list[tuple[str, str, list[str]]]:
    """At most one (student, path of the newest file, paths of others that are equally new)."""
    newest, version = candidates[-1]
    tied = [
        other.file.shown
        for other, other_version in candidates[:-1]
        if _sort_key((other, other_version)) == _sort_key(candidates[-1])
        and other_version.digest != version.digest
    ]
    return [(student, newest.file.shown, tied)] if tied else []


def _sort_key(candidate: tuple[SubmittedFile, Version]) -> tuple[Any, ...]:
    """Sorts the newest last."""
    return -KINDS.index(kind_of(candidate[0].file.path.name)), *candidate[0].order


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
