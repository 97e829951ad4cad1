"""Sorts the files of a download: who submitted the lab, and what is something else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from autograder.grading.collect import files
from autograder.grading.collect.platforms import SubmittedFile
from autograder.grading.collect.store import Version, digest
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.kinds import KINDS, kind_of
from autograder.grading.submission.lab_cells import Labs, lab_of
from autograder.grading.submission.reader import read_notebook

NO_NOTEBOOK = "it is no notebook"
NO_LAB = "it is not a lab of this course"
OF_FILE = "The file "  # begins the reader's notes on damage

Candidates = list[tuple[SubmittedFile, Version]]
Others = list[tuple[SubmittedFile, str]]  # files that are not this lab, and why


class SortedFiles:
    """Each file is in one of ``candidates``, ``others``, ``skipped`` and ``ignored``."""

    def __init__(self, submitted: Iterable[SubmittedFile], labs: Labs, lab: str) -> None:
        self.candidates: dict[str, Candidates] = defaultdict(list)  # {student: newest last}
        self.others: dict[str, Others] = defaultdict(list)  # of students without a candidate
        self.skipped: list[tuple[str, str]] = []  # path, why
        self.ignored: list[str] = []  # paths of what is no lab
        self._labs, self._lab = labs, lab
        self._of_another_lab: set[str] = set()
        self._groups: dict[str, str] = {}
        for each in submitted:
            try:
                candidate = self._read(each)
            except Unreadable as error:
                if each.file.why_not in (files.LINK, files.OUTSIDE):
                    self.skipped.append((each.file.shown, str(error)))
                else:
                    self.others[each.student].append((each, str(error)))
            else:
                self.candidates[each.student].append(candidate)
        for candidates in self.candidates.values():
            candidates.sort(key=sort_key)
        for student in ["", *self.candidates]:
            self.leave_out(student)

    def leave_out(self, student: str) -> None:
        """Only lists what is not the lab: the student has submitted it, too, or is unknown."""
        has_lab = student in self.candidates
        for each, why in self.others.pop(student, []):
            if not each.file.may_be_notebook or (has_lab and why == NO_LAB):
                self.ignored.append(each.file.shown)
            else:
                self.skipped.append((each.file.shown, why))

    def has_another_lab(self, student: str) -> bool:
        return student in self._of_another_lab

    def maybe_groups(self) -> list[tuple[str, str]]:
        """(name that is not a student's, the student whom it was taken for or "")."""
        return sorted(self._groups.items())

    def _read(self, each: SubmittedFile) -> tuple[SubmittedFile, Version]:
        """Raises Unreadable if it is not the lab."""
        # The target of a link is unknown: its name says nothing about it.
        if each.file.why_not != files.LINK and not each.file.may_be_notebook:
            raise Unreadable(each.file.why_not or NO_NOTEBOOK)
        if each.group:
            self._groups.setdefault(each.group, each.student)
        if each.why_not:
            raise Unreadable(each.why_not)
        content = each.file.read()
        notebook, notes = read_notebook(content, self._labs[self._lab])
        found = lab_of(notebook.cells, each.file.path.name, self._labs, self._lab)
        if found != self._lab:
            if found:
                self._of_another_lab.add(each.student)
            raise Unreadable(f"it is {found}" if found else NO_LAB)
        version = Version(digest(content), each.time or each.file.time, each.time is not None)
        repairs = " ".join(note for note in notes if note.startswith(OF_FILE))
        return replace(each, repairs=repairs), version


def sort_key(candidate: tuple[SubmittedFile, Version]) -> tuple[Any, ...]:
    """Sorts the newest last."""
    return -KINDS.index(kind_of(candidate[0].file.path.name)), *candidate[0].order
