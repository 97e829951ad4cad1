"""How long formgrader's pages take with a full gradebook: 300 students and four labs.

.venv/bin/python benchmarks/formgrader.py [--students N] [--rounds N] [--json FILE]

A page is its HTML and what that asks of formgrader's own API before it shows anything.  The
gradebook is filled through nbgrader's own models, without any grading; every fifth submission waits
for a person.  The server is the JupyterLab of `make lab`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from nbgrader.api import (
    Comment,
    Grade,
    Gradebook,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
    new_uuid,
)

from autograder import exercises
from benchmarks import descendants
from tests.running_lab import LabServer, copy_repository, running_lab

LIMIT_S = 2.0
LABS = exercises.labs()[:4]


def fill(root: Path, students: int) -> None:
    """Every student has handed in every lab, and was graded."""
    for lab in LABS:
        command = [sys.executable, "-m", "nbgrader", "generate_assignment", lab]
        done = descendants.run(command, root, descendants.clean_environment(root))
        if done.exit_status:
            raise RuntimeError(f"generate_assignment {lab} failed:\n{done.output[-3000:]}")
    with Gradebook(database(root)) as gradebook:
        for number in range(students):
            gradebook.db.add(Student(id=name_of(number), last_name=f"{number:03d}"))
        for lab in LABS:
            gradebook.db.add_all(rows(gradebook, lab, students))
        gradebook.db.commit()
    for lab in LABS:
        released = (root / "labs" / lab / f"{lab}.ipynb").read_bytes()
        for number in range(students):
            for step in ("submitted", "autograded"):
                path = root / "grading" / step / name_of(number) / lab / f"{lab}.ipynb"
                path.parent.mkdir(parents=True)
                path.write_bytes(released)


def rows(gradebook: Gradebook, lab: str, students: int) -> Iterator[object]:
    """What Gradebook.add_submission makes, which gets slower with each submission that is there."""
    assignment = gradebook.find_assignment(lab)
    (notebook,) = assignment.notebooks
    cells = [(cell.id, cell.max_score) for cell in notebook.grade_cells]
    answers = [cell.id for cell in notebook.solution_cells]
    for number in range(students):
        submission = SubmittedAssignment(
            id=new_uuid(), assignment_id=assignment.id, student_id=name_of(number)
        )
        work = SubmittedNotebook(
            id=new_uuid(), assignment_id=submission.id, notebook_id=notebook.id, flagged=False
        )
        yield submission
        yield work
        for cell, points in cells:
            yield Grade(
                id=new_uuid(),
                cell_id=cell,
                notebook_id=work.id,
                auto_score=points * (number % 5) / 4,
                needs_manual_grade=number % 5 == 0,
            )
        for answer in answers:
            yield Comment(id=new_uuid(), cell_id=answer, notebook_id=work.id)


def database(root: Path) -> str:
    return f"sqlite:///{root / 'grading/gradebook.db'}"


def name_of(number: int) -> str:
    return f"student{number:03d}"


def pages(root: Path, students: int) -> dict[str, list[str]]:
    """{page: what a browser asks for to show it}"""
    lab, student = LABS[-1], name_of(students // 2)
    with Gradebook(database(root)) as gradebook:
        submission = gradebook.find_submission_notebook(lab, lab, student).id
    return {
        "manage assignments": ["manage_assignments", "api/assignments"],
        "manage submissions": [f"manage_submissions/{lab}", f"api/submissions/{lab}"],
        "gradebook": ["gradebook", "api/assignments"],
        "gradebook of a lab": [f"gradebook/{lab}", f"api/notebooks/{lab}"],
        "submissions to read": [f"gradebook/{lab}/{lab}", f"api/submitted_notebooks/{lab}/{lab}"],
        "one submission": [
            f"submissions/{submission}",
            f"api/grades?submission_id={submission}",
            f"api/comments?submission_id={submission}",
        ],
        "students": ["manage_students", "api/students"],
        "one student": [f"manage_students/{student}", f"api/student_submissions/{student}"],
    }


def seconds(server: LabServer, paths: list[str]) -> float:
    begun_s = time.perf_counter()
    for path in paths:
        request = urllib.request.Request(
            f"{server.url}formgrader/{path}", headers={"Authorization": f"token {server.token}"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
    return time.perf_counter() - begun_s


def measure(students: int, rounds: int) -> Iterator[tuple[str, list[float]]]:
    with tempfile.TemporaryDirectory(prefix="shardlab-bench-") as folder:
        root = copy_repository(Path(folder) / "shardlab")
        fill(root, students)
        home = Path(folder) / "home"
        home.mkdir()
        with running_lab(root, home, "--port=0") as server:
            seconds(server, ["manage_assignments"])  # what only the first page costs
            for page, paths in pages(root, students).items():
                yield page, [seconds(server, paths) for _ in range(rounds)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    print(f"Formgrader, {options.students} students × {len(LABS)} labs\n")
    found = {}
    for page, taken in measure(options.students, options.rounds):
        found[page] = taken
        verdict = "met" if max(taken) <= LIMIT_S else "MISSED"
        print(
            f"  {page:<20} {statistics.median(taken):7.2f} s, at worst {max(taken):7.2f} s "
            f"   ≤ {LIMIT_S:g} s {verdict}",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
