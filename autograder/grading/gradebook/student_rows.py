"""The gradebook's rows of one student: read, given to another id, deleted, written again."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from nbgrader.api import Base, Gradebook
from nbgrader.api import new_uuid as new_id
from sqlalchemy import Table, delete, insert, select, update

TABLES = Base.metadata.tables
STUDENT, SUBMISSION, NOTEBOOK = (
    TABLES[name] for name in ("student", "submitted_assignment", "submitted_notebook")
)
OF_CELLS = {name: TABLES[name] for name in ("grade", "comment")}
KEYS = ("id", "assignment_id", "notebook_id", "cell_id", "student_id")  # differ in each gradebook


def labs_of(gradebook: Gradebook, student: str) -> set[str]:
    return {submission["lab"] for submission in _submissions(gradebook, student)}


def read(gradebook: Gradebook, student: str) -> dict[str, Any] | None:
    """As plain data, with names instead of keys. None if the gradebook has no such student."""
    row = gradebook.db.execute(select(STUDENT).where(STUDENT.c.id == student)).mappings().first()
    if row is None:
        return None
    return {"student": dict(row), "submissions": _submissions(gradebook, student)}


def write(gradebook: Gradebook, data: dict[str, Any]) -> list[str]:
    """Adds what `read` returned; commits nothing. Returns the cells that no longer exist.

    Raises KeyError with the name of a lab that the gradebook does not have.
    """
    db, student = gradebook.db, data["student"]["id"]
    if read(gradebook, student) is None:
        db.execute(insert(STUDENT).values(**data["student"]))
    lost = []
    labs = dict(db.execute(select(TABLES["assignment"].c.name, TABLES["assignment"].c.id)).all())
    for submission in data["submissions"]:
        lab = submission["lab"]
        key = new_id()
        time, extension = submission["timestamp"], submission["extension_s"]
        db.execute(
            insert(SUBMISSION).values(
                id=key,
                assignment_id=labs[lab],
                student_id=student,
                timestamp=datetime.fromisoformat(time) if time else None,
                extension=timedelta(seconds=extension) if extension is not None else None,
            )
        )
        for notebook in submission["notebooks"]:
            lost += _write_notebook(gradebook, labs[lab], key, notebook)
    return lost


def give_to(gradebook: Gradebook, old: str, new: str) -> None:
    """All submissions of ``old``; commits nothing. ``new`` is added if needed, ``old`` deleted."""
    row = gradebook.db.execute(select(STUDENT).where(STUDENT.c.id == old)).mappings().first()
    if row is None:
        return
    if read(gradebook, new) is None:
        gradebook.db.execute(insert(STUDENT).values(**{**row, "id": new}))
    gradebook.db.execute(
        update(SUBMISSION).where(SUBMISSION.c.student_id == old).values(student_id=new)
    )
    gradebook.db.execute(delete(STUDENT).where(STUDENT.c.id == old))


def delete_all(gradebook: Gradebook, student: str) -> None:
    """Commits nothing."""
    submissions = select(SUBMISSION.c.id).where(SUBMISSION.c.student_id == student)
    notebooks = select(NOTEBOOK.c.id).where(NOTEBOOK.c.assignment_id.in_(submissions))
    for table in OF_CELLS.values():
        gradebook.db.execute(delete(table).where(table.c.notebook_id.in_(notebooks)))
    gradebook.db.execute(delete(NOTEBOOK).where(NOTEBOOK.c.assignment_id.in_(submissions)))
    gradebook.db.execute(delete(SUBMISSION).where(SUBMISSION.c.student_id == student))
    gradebook.db.execute(delete(STUDENT).where(STUDENT.c.id == student))


def _submissions(gradebook: Gradebook, student: str) -> list[dict[str, Any]]:
    lab = TABLES["assignment"]
    query = (
        select(SUBMISSION, lab.c.name.label("lab"))
        .join(lab, lab.c.id == SUBMISSION.c.assignment_id)
        .where(SUBMISSION.c.student_id == student)
    )
    return [
        {
            "lab": row["lab"],
            "timestamp": row["timestamp"].isoformat() if row["timestamp"] else None,
            "extension_s": row["extension"].total_seconds() if row["extension"] else None,
            "notebooks": _notebooks(gradebook, row["id"]),
        }
        for row in gradebook.db.execute(query).mappings().all()
    ]


def _notebooks(gradebook: Gradebook, submission: str) -> list[dict[str, Any]]:
    name, cell = TABLES["notebook"], TABLES["base_cell"]
    query = (
        select(NOTEBOOK, name.c.name.label("name"))
        .join(name, name.c.id == NOTEBOOK.c.notebook_id)
        .where(NOTEBOOK.c.assignment_id == submission)
    )
    found = []
    for row in gradebook.db.execute(query).mappings().all():
        notebook: dict[str, Any] = _plain(row)
        for kind, table in OF_CELLS.items():
            of_cells = (
                select(table, cell.c.name.label("name"))
                .join(cell, cell.c.id == table.c.cell_id)
                .where(table.c.notebook_id == row["id"])
            )
            notebook[kind] = [_plain(each) for each in gradebook.db.execute(of_cells).mappings()]
        found.append(notebook)
    return found


def _write_notebook(
    gradebook: Gradebook, lab_id: str, submission: str, notebook: dict[str, Any]
) -> list[str]:
    db, of_lab = gradebook.db, TABLES["notebook"]
    notebook_id = db.scalar(
        select(of_lab.c.id).where(
            of_lab.c.assignment_id == lab_id, of_lab.c.name == notebook["name"]
        )
    )
    if notebook_id is None:
        return [f"{notebook['name']}.ipynb"]
    key, lost = new_id(), []
    values = {name: value for name, value in notebook.items() if name in NOTEBOOK.c}
    db.execute(
        insert(NOTEBOOK).values(id=key, assignment_id=submission, notebook_id=notebook_id, **values)
    )
    for kind, table in OF_CELLS.items():
        cells = _cells(gradebook, notebook_id, table)
        for row in notebook[kind]:
            values = {name: value for name, value in row.items() if name in table.c}
            if row["name"] in cells:
                cell_id = cells[row["name"]]
                db.execute(
                    insert(table).values(id=new_id(), notebook_id=key, cell_id=cell_id, **values)
                )
            else:
                lost.append(row["name"])
    return lost


def _cells(gradebook: Gradebook, notebook_id: str, table: Table) -> dict[str, str]:
    """{name: key}. A written answer has two cells of one name: for points and for comments."""
    cell = TABLES["base_cell"]
    wanted = (
        ("GradeCell", "TaskCell") if table is OF_CELLS["grade"] else ("SolutionCell", "TaskCell")
    )
    query = select(cell.c.name, cell.c.id).where(
        cell.c.notebook_id == notebook_id, cell.c.type.in_(wanted)
    )
    return dict(gradebook.db.execute(query).all())


def _plain(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in KEYS}
