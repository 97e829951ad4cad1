"""Collects one download for one lab."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.grading.collect import files, platforms
from autograder.grading.collect.files import CollectError
from autograder.grading.collect.platforms import People, SubmittedFile
from autograder.grading.collect.sort import Candidates, SortedFiles, sort_key
from autograder.grading.collect.store import Plan, Store, Version
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.roster.groups import read_groups
from autograder.grading.roster.roster import read_roster
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.folders import grading_folder, students_who_submitted
from autograder.grading.submission.lab_cells import labs_of


@dataclass
class Collected:
    """What was done, or would be."""

    lab: str
    platform: str
    students: dict[str, tuple[Plan, SubmittedFile, Version]] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # path, why
    # (student, path of the collected file, paths of others that are equally new)
    ties: list[tuple[str, str, list[str]]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # paths of what is no lab
    late: set[str] = field(default_factory=set)  # according to the platform
    # Submitted no notebook of this lab: (student, path, why it is none)
    no_notebook: list[tuple[str, str, str]] = field(default_factory=list)
    groups: list[tuple[str, str]] = field(default_factory=list)  # maybe: (name, for whom it counts)
    # (student, path of a file that belongs to another group than the one they submitted with)
    regrouped: list[tuple[str, str]] = field(default_factory=list)
    # On the roster, but without a submission
    absent: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not (self.skipped or self.no_notebook or self.groups or self.regrouped)


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
        submitted = SortedFiles(platforms.read(chosen, found, people), labs, lab)
        before = students_who_submitted(course, lab) if groups else []
        had = {student: store.digests(student) for student in before}
        collected.regrouped = sorted(_other_groups(store, submitted, had))
        for student, candidates in sorted(submitted.candidates.items()):
            if not candidates:
                continue
            collected.ties += _ties(student, candidates)
            try:
                _store_new(store, student, candidates, dry_run, collected)
            except (Unreadable, OSError) as error:
                collected.skipped.append((candidates[-1][0].file.shown, str(error)))
        for student, others in sorted(submitted.others.items()):
            is_unknown = roster is None or student not in roster.people
            if is_unknown or store.has_lab(student):
                submitted.leave_out(student)
                continue
            collected.no_notebook += [(student, each.file.shown, why) for each, why in others]
            if not dry_run and not submitted.has_another_lab(student):
                store.keep_unusable(student, [each.file for each, _ in others])
    collected.skipped += submitted.skipped
    collected.ignored = submitted.ignored
    if roster is not None:
        came = collected.students.keys() | {student for student, *_ in collected.no_notebook}
        absent = {s for s in roster.people if not store.has_submission(s)}
        collected.absent = sorted(absent - came)
        if roster.people.keys() - came:
            collected.groups = submitted.maybe_groups()
    return collected


def _other_groups(
    store: Store, submitted: SortedFiles, had: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str]]:
    """Takes a group's file from a student who was in another group when the lab was submitted:
    whoever had that file before this run never had what the student has.

    ``had``: {student: digests}, as from `Store.digests`. Yields (student, path).
    """
    for student, candidates in submitted.candidates.items():
        mine = had.get(student, [])
        for each in [each for each in candidates if mine and each[0].is_for_all_labs]:
            owners = [theirs for theirs in had.values() if each[1].digest in theirs]
            is_theirs = any(mine[0] in theirs for theirs in owners)
            if owners and not is_theirs and store.has_lab(student):
                candidates.remove(each)
                yield student, each[0].file.shown


def _ties(student: str, candidates: Candidates) -> list[tuple[str, str, list[str]]]:
    """At most one (student, path of the newest file, paths of others that are equally new)."""
    newest, version = candidates[-1]
    tied = [
        other.file.shown
        for other, other_version in candidates[:-1]
        if sort_key((other, other_version)) == sort_key(candidates[-1])
        and other_version.digest != version.digest
    ]
    return [(student, newest.file.shown, tied)] if tied else []


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
