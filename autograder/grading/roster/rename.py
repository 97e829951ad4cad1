"""Gives everything of one student to another id: nothing is lost, and nothing is graded again."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory

from autograder.grading.gradebook import student_rows
from autograder.grading.gradebook.database import opened, prepare
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.pool.journal import Journal
from autograder.grading.record.record import BrokenRecord
from autograder.grading.roster.belongings import EARLIER, TABLES, Belongings, nobody_grades
from autograder.grading.roster.class_list import merged
from autograder.grading.roster.roster import Person, Roster, read_roster, write_roster
from autograder.grading.submission.folders import grading_folder, records_folder
from autograder.grading.submission.names import why_unusable


class CannotChange(Exception):
    """Why a student cannot be renamed, removed or restored, and what to do. Nothing was changed."""


def rename(old: str, new: str) -> str:
    """What was done, for the terminal. If it is interrupted, run it again.

    Raises CannotChange, BadTable, GradebookError or Locked before anything is changed.
    """
    if why := "contains /" if "/" in new else why_unusable(new):
        raise CannotChange(f"{new!r} cannot be used as a student's id: it {why}")
    if old == new:
        raise CannotChange(f"{old} and {new} are the same id")
    course = CourseDirectory(parent=nbgrader_app())
    roster = read_roster(grading_folder(course))
    people = roster.people if roster else {}
    mine = Belongings(course, people.get(old, Person(old)))
    theirs = Belongings(course, people.get(new, Person(new)))
    prepare(course.db_url)
    with nobody_grades(course), opened(course) as gradebook:
        require_known(gradebook, mine, people)
        _require_disjoint(gradebook, mine, theirs)
        counts = {kind: len(paths) for kind, paths in mine.labs().items() if paths}
        labs = len(student_rows.labs_of(gradebook, old))
        for kind, paths in mine.labs().items():
            for path in paths:
                _move(course, kind, path, new)
        for name in TABLES[1:]:
            if name in mine.rows():
                mine.replace_rows(name, new)
        student_rows.give_to(gradebook, old, new)
        gradebook.db.commit()
        # Last: its row has the ids by which the other tables name the student.
        if old in people:
            renamed = replace(people.pop(old), student=new)
            people[new] = merged(renamed, people[new]) if new in people else renamed
            write_roster(grading_folder(course), Roster(people.values()))
    what = [f"labs in the gradebook: {labs}", *(f"{kind}: {n}" for kind, n in counts.items())]
    lines = [f"{old} is now {new}: {', '.join(what)}"]
    if inbound := _inbound(course, old):
        lines.append(
            f"The exchange still has submissions in the name of {old}, which `nbgrader collect` "
            f"would collect again: move them away ({', '.join(map(str, inbound))})"
        )
    return "\n".join(lines)


def require_known(gradebook: Gradebook, mine: Belongings, people: Mapping[str, Person]) -> None:
    student = mine.person.student
    known = {each.id for each in gradebook.students} | people.keys()
    if student in known or any(mine.labs().values()):
        return
    near = difflib.get_close_matches(student, sorted(known), n=3)
    hint = f": did you mean {' or '.join(near)}?" if near else ""
    raise CannotChange(f"there is no student {student!r}{hint}")


def conflicts(
    gradebook: Gradebook, labs: Sequence[str], paths: Mapping[str, Sequence[str]], other: Belongings
) -> list[str]:
    """Labs of which ``other`` has something, too. ``paths``: {kind: names of labs}"""
    twice = set(labs) & student_rows.labs_of(gradebook, other.person.student)
    for kind, found in other.labs().items():
        if kind != EARLIER:
            twice |= {lab_of(path) for path in found} & set(paths.get(kind, ()))
    return sorted(twice)


def lab_of(path: Path) -> str:
    """Of a lab's folder or record."""
    parents = [part for part in path.parts if part != ".regraded"]
    return parents[-2] if path.suffix == ".json" else path.name


def _require_disjoint(gradebook: Gradebook, mine: Belongings, theirs: Belongings) -> None:
    old, new = mine.person.student, theirs.person.student
    names = {kind: [lab_of(path) for path in paths] for kind, paths in mine.labs().items()}
    labs = sorted(student_rows.labs_of(gradebook, old))
    if twice := conflicts(gradebook, labs, names, theirs):
        raise CannotChange(
            f"{old} and {new} both have a submission for {', '.join(twice)}: marks cannot be "
            f"combined. Run `python -m autograder remove {old}` to keep only those of {new} (or "
            f"`remove {new}` and this command again); whoever is removed is kept in "
            "grading/removed. Nothing was changed."
        )


def _move(course: CourseDirectory, kind: str, path: Path, new: str) -> None:
    if kind in ("records", "regraded"):
        lab = lab_of(path)
        journal = Journal(records_folder(course), lab, unconfirmed=kind == "regraded")
        try:
            if record := journal.read(path.stem):
                journal.write(replace(record, student=new))
        except BrokenRecord:
            pass  # the next run grades this submission again
        path.unlink()
    else:
        move_folder(path, path.parent.with_name(new) / path.name)


def move_folder(path: Path, target: Path) -> None:
    """Also into a folder of earlier submissions. Removes the parent if it was the last."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():  # the earlier submissions of one lab
        for each in sorted(path.iterdir()):
            number, free = 1, target / each.name
            while free.exists():
                number += 1
                free = target / f"{each.name}_{number}"
            shutil.move(each, free)
        path.rmdir()
    else:
        shutil.move(path, target)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()


def _inbound(course: CourseDirectory, student: str) -> list[Path]:
    inbound = grading_folder(course) / "exchange" / course.course_id / "inbound"
    return sorted(path for path in inbound.glob("*") if path.name.startswith(f"{student}+"))
