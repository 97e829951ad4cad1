"""How long formgrader's pages take to load with a full gradebook: 300 students and four labs.

.venv/bin/python -m benchmarks.formgrader [--students N] [--rounds N] [--tiny] [--json FILE]

The time of a page includes its HTML and the API requests needed before it shows anything.  The
gradebook is filled through nbgrader's models, without grading; every fifth submission still needs
manual grading.  The server is the JupyterLab of `make lab`, without our extension and indexes
(stock) and with them (ours), on SQLite and, if installed, on PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
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
from benchmarks.descendants import clean_environment
from tests.running_lab import LabServer, copy_repository, running_lab
from tests.running_postgres import running_postgres
from tools import postgres

LIMIT_S = 2.0
STOCK = "--ServerApp.jpserver_extensions=autograder.pages.formgrader=False"


@dataclass(frozen=True)
class Page:
    """Timings of one page, one per round. CPU time is that of the JupyterLab process."""

    database: str
    formgrader: str  # "stock" or "ours"
    name: str
    wall_s: list[float]
    cpu_s: list[float]


def fill(root: Path, students: int, labs: list[str], db_url: str) -> None:
    """Fill the gradebook and folders as if every student had submitted every lab."""
    for lab in labs:
        command = [sys.executable, "-m", "nbgrader", "generate_assignment", lab]
        environment = clean_environment(root) | {"SHARDLAB_DB_URL": db_url}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"generate_assignment {lab} failed:\n{done.stderr[-3000:]}")
    with Gradebook(db_url, "shardlab") as gradebook:
        for number in range(students):
            gradebook.db.add(Student(id=student_id(number), last_name=f"{number:03d}"))
        for lab in labs:
            gradebook.db.add_all(rows(gradebook, lab, students))
        gradebook.db.commit()
    for lab in labs:
        released = (root / "labs" / lab / f"{lab}.ipynb").read_bytes()
        for number in range(students):
            for step in ("submitted", "autograded"):
                path = root / "grading" / step / student_id(number) / lab / f"{lab}.ipynb"
                path.parent.mkdir(parents=True)
                path.write_bytes(released)


def rows(gradebook: Gradebook, lab: str, students: int) -> Iterator[object]:
    """The rows that Gradebook.add_submission would create; it slows down with each submission."""
    assignment = gradebook.find_assignment(lab)
    (notebook,) = assignment.notebooks
    cells = [(cell.id, cell.max_score) for cell in notebook.grade_cells]
    answers = [cell.id for cell in notebook.solution_cells]
    for number in range(students):
        submission = SubmittedAssignment(
            id=new_uuid(), assignment_id=assignment.id, student_id=student_id(number)
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


def student_id(number: int) -> str:
    return f"student{number:03d}"


def pages(db_url: str, students: int, lab: str) -> dict[str, list[str]]:
    """{page: the paths a browser requests to show it}"""
    student = student_id(students // 2)
    with Gradebook(db_url, "shardlab") as gradebook:
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
        "next submission": [f"submissions/{submission}/next"],
        "students": ["manage_students", "api/students"],
        "one student": [f"manage_students/{student}", f"api/student_submissions/{student}"],
    }


def seconds(server: LabServer, paths: list[str]) -> float:
    start_s = time.perf_counter()
    for path in paths:
        request = urllib.request.Request(
            f"{server.url}formgrader/{path}", headers={"Authorization": f"token {server.token}"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
    return time.perf_counter() - start_s


def measure(students: int, rounds: int, labs: list[str], servers: bool = True) -> Iterator[Page]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardlab-bench-")))
        databases = {"SQLite": f"sqlite:///{folder / 'gradebook.db'}?timeout=60"}
        if servers and (programs := postgres.find()):
            databases["PostgreSQL"] = stack.enter_context(running_postgres(programs))
        for database, db_url in databases.items():
            root = copy_repository(folder / database / "shardlab")
            fill(root, students, labs, db_url)
            for formgrader, options in (("stock", [STOCK]), ("ours", [])):
                home = folder / database / formgrader
                home.mkdir()
                os.environ["SHARDLAB_DB_URL"] = db_url
                with running_lab(root, home, "--port=0", *options) as server:
                    for timings in time_pages(server, pages(db_url, students, labs[-1]), rounds):
                        yield Page(database, formgrader, *timings)


def time_pages(
    server: LabServer, pages: dict[str, list[str]], rounds: int
) -> Iterator[tuple[str, list[float], list[float]]]:
    (record,) = (server.home / "runtime").glob("jpserver-*.json")
    process = psutil.Process(json.loads(record.read_text())["pid"])
    seconds(server, ["manage_assignments"])  # warm up
    for name, paths in pages.items():
        wall_s, cpu_s = [], []
        for _ in range(rounds):
            before_s = cpu_s_of(process)
            wall_s.append(seconds(server, paths))
            cpu_s.append(cpu_s_of(process) - before_s)
        yield name, wall_s, cpu_s


def cpu_s_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--tiny", action="store_true", help="a quick smoke test with 3 students")
    options = parser.parse_args(arguments)
    students, rounds, labs = options.students, options.rounds, exercises.labs()[:4]
    if options.tiny:
        students, rounds, labs = 3, 1, labs[:1]
    print(f"Formgrader, {students} students × {len(labs)} labs")
    pages, group = [], None
    for page in measure(students, rounds, labs, servers=not options.tiny):
        if group != (group := (page.database, page.formgrader)):
            print(f"\n{page.database}, {page.formgrader}: seconds (median, worst), CPU seconds")
        pages.append(page)
        worst = max(page.wall_s)
        print(
            f"  {page.name:<22} {statistics.median(page.wall_s):7.2f} {worst:6.2f} "
            f"{statistics.median(page.cpu_s):6.2f}   "
            f"{f'≤ {LIMIT_S:g} s met' if worst <= LIMIT_S else f'> {LIMIT_S:g} s'}",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(page) for page in pages], indent=2) + "\n")


if __name__ == "__main__":
    main()
