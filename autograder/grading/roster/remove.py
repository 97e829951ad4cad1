"""Moves everything of a student who leaves to grading/removed, and back."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbgrader.coursedir import CourseDirectory

from autograder.grading.csv_tables import write_atomically
from autograder.grading.gradebook import student_rows
from autograder.grading.gradebook.database import opened, prepare
from autograder.grading.nbgrader_app import nbgrader_app
from autograder.grading.roster.belongings import TABLES, Belongings, nobody_grades
from autograder.grading.roster.rename import (
    CannotChange,
    conflicts,
    lab_of,
    move_folder,
    require_known,
)
from autograder.grading.roster.roster import ROSTER, Person, read_roster
from autograder.grading.submission.folders import grading_folder, records_folder

REMOVED = "removed"  # in grading/, with a folder STUDENT/TIME for each removal
ROWS = "rows.json"  # of the gradebook and the tables


def remove(student: str) -> str:
    """What was done, for the terminal. If it is interrupted, run it again.

    Raises CannotChange, BadTable, GradebookError or Locked before anything is changed.
    """
    course = CourseDirectory(parent=nbgrader_app())
    roster = read_roster(grading_folder(course))
    people = roster.people if roster else {}
    mine = Belongings(course, people.get(student, Person(student)))
    prepare(course.db_url)
    with nobody_grades(course), opened(course) as gradebook:
        require_known(gradebook, mine, people)
        labs = len(student_rows.labs_of(gradebook, student))
        # Before anything is removed, with everything that is not a file.
        rows: dict[str, Any] = {
            "gradebook": student_rows.read(gradebook, student),
            "tables": {name: mine.named_rows(name) for name in TABLES},
        }
        folder = grading_folder(course) / REMOVED / student
        target = _interrupted(folder, rows) or folder / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
        write_atomically(target / ROWS, json.dumps(rows, indent=1).encode())
        for kind, paths in mine.labs().items():
            for path in paths:
                name = f"{lab_of(path)}.json" if path.suffix == ".json" else path.name
                if path.suffix == ".json":
                    (target / kind).mkdir(exist_ok=True)
                    shutil.move(path, target / kind / name)
                else:
                    move_folder(path, target / kind / name)
        student_rows.delete_all(gradebook, student)
        gradebook.db.commit()
        # The roster last: its row has the ids by which the other tables name the student.
        for name in [name for name in TABLES if name != ROSTER] + [ROSTER]:
            if name in mine.rows():
                mine.replace_rows(name, None)
    return (
        f"{student} was removed (labs in the gradebook: {labs}). Kept in {target}. Undo: "
        f"python -m autograder remove {student} --undo"
    )


def removed_students(folder: Path) -> list[str]:
    """Those who are not back. ``folder``: grading/."""
    return sorted({path.parent.parent.name for path in (folder / REMOVED).glob(f"*/*/{ROWS}")})


def _interrupted(folder: Path, rows: dict[str, Any]) -> Path | None:
    """The folder of a removal that left the gradebook as it was."""
    for path in sorted(folder.glob(f"*/{ROWS}")):
        if rows["gradebook"] and json.loads(path.read_text(encoding="utf-8")) == rows:
            return path.parent
    return None


def restore(student: str) -> str:
    """What was done, for the terminal. Raises as `remove` does."""
    course = CourseDirectory(parent=nbgrader_app())
    mine = Belongings(course, Person(student))
    removals = sorted((grading_folder(course) / REMOVED / student).glob(f"*/{ROWS}"))
    if not removals:
        removed = ", ".join(removed_students(grading_folder(course))) or "nobody"
        raise CannotChange(f"{student!r} was not removed (removed: {removed})")
    prepare(course.db_url)
    lost: list[str] = []
    with nobody_grades(course), opened(course) as gradebook:
        for path in removals:
            rows = json.loads(path.read_text(encoding="utf-8"))
            data, folder = rows["gradebook"], path.parent
            labs = [each["lab"] for each in data["submissions"]] if data else []
            kinds = {each.name: list(each.iterdir()) for each in folder.iterdir() if each.is_dir()}
            names = {
                kind: [each.name.removesuffix(".json") for each in found]
                for kind, found in kinds.items()
            }
            if twice := conflicts(gradebook, labs, names, mine):
                raise CannotChange(
                    f"{student} has a newer submission for {', '.join(twice)}: marks cannot be "
                    f"combined. Run `python -m autograder rename {student} {student}-new`, then "
                    "this command again. Nothing was changed."
                )
            if missing := set(labs) - {each.name for each in gradebook.assignments}:
                commands = " and ".join(f"`nbgrader generate_assignment {lab}`" for lab in missing)
                raise CannotChange(f"the gradebook lacks labs: run {commands} first")
            for kind, found in kinds.items():
                for each in found:
                    _put_back(mine, kind, each)
                shutil.rmtree(folder / kind, ignore_errors=True)  # empty now
            for name, old in rows["tables"].items():
                if len(old) > 1:
                    mine.add_rows(name, old)
            # Last: an interrupted run can be repeated.
            if data:
                lost += student_rows.write(gradebook, data)
                gradebook.db.commit()
            path.rename(path.with_name("restored.json"))
    note = f" No longer in the lab, so without marks: {', '.join(lost)}." if lost else ""
    return f"{student} is back, with submissions, records, marks and feedback.{note}"


def _put_back(mine: Belongings, kind: str, path: Path) -> None:
    student = mine.person.student
    if path.suffix == ".json":
        lab = records_folder(mine.course) / path.stem
        folder = lab / ".regraded" if kind == "regraded" else lab
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(path, folder / f"{student}.json")
    else:
        move_folder(path, mine.place(kind) / path.name)
