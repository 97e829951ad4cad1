"""Runs docs/instructors.md as one term with three students: all its commands, settings and tables,
in order."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from jupyter_server.serverapp import ServerApp
from nbgrader.exchange.default import Exchange, ExchangeCollect
from nbgrader.preprocessors import AssignLatePenalties
from nbgrader.utils import get_username
from traitlets.config import Config

from autograder.grading.gradebook.run_and_decide import RunAndDecide
from autograder.grading.late.late_steps import LateDays
from autograder.grading.late.policy import Policy
from tests.running_lab import copy_repository
from tests.tools.forks import WITHOUT_TORCH, forking
from tests.tools.shell import environment, instructors_commands, instructors_page

LAB = "03_ring_all_reduce"
# {beginning of a command: why it is not run here}
NOT_RUN = {
    "python -m autograder rename": "in tests/autograder/grading/roster/test_people.py",
    "python -m autograder remove": "in test_people.py",
    "mv grading": "this test looks into the term's folder afterwards",
    "make env": "in test_environment.py",
    ". .venv/bin/activate": "the test names the environment's folder",
    "sudo ": "needs an administrator",
    "make lab": "in test_commands.py",
    "make bench": "in test_commands.py",
    "make suite": "in test_commands.py",
    "make update": "in tests/autograder/release/test_lab_by_lab.py",
    "dask scheduler": "in tests/autograder/grading/pool/test_cluster.py",
    ".venv/bin/dask scheduler": "in test_cluster.py",
    "python -m autograder grade LAB --scheduler": "in test_cluster.py, with a scheduler of its own",
    "--scheduler ": "in test_cluster.py",
    "ssh ": "needs other machines",
    "sbatch ": "needs Slurm",
    "python -m autograder grade-on-submit": "in tests/autograder/pages/on_submit: it runs forever",
    "[Service]": "needs systemd",
    "apiVersion:": "needs Kubernetes",
    "kubectl ": "needs Kubernetes",
    "--security-opt ": "needs Docker",
    "createdb ": "needs a database server",
    "python -m autograder move-gradebook": "in tests/autograder/grading/gradebook/test_postgres.py",
    "export SHARDLAB_DB_URL": "needs a database server",
}
# Inline code that is a command, or stands for one, and is not in a code block.
IN_SENTENCES = {
    "nbgrader fetch_assignment LAB --course shardlab": "",
    "nbgrader submit LAB --course shardlab": "",
    "nbgrader autograde LAB": "",
    "--yes": "python -m autograder grade LAB --regrade --yes",
    "python -m autograder build": "",  # again, with the rubric
    "--force": "nbgrader generate_feedback LAB --force",
    "nbgrader fetch_feedback LAB --course shardlab": "",
    '--column LAB="Lab 3"': "python -m autograder export --platform canvas --column LAB='Lab 3'",
    "--unsandboxed": "python -m autograder grade LAB --unsandboxed",
}
COMMAND = re.compile(r"(make|nbgrader|python|sudo|kubectl|\.venv/bin/\w+) |--")
FILES = {
    "student,first_name": "students.csv",
    "student,lab": "grading/extensions.csv",
    "group,student": "grading/groups.csv",
    "[from_8_to_64_ranks]": f"solutions/{LAB}/rubric.toml",
}
CYD = get_username()  # uses the exchange, which identifies students by user name
STUDENTS = f"bob,Bob,Holmes,bob@example.org,333,,,\n{CYD},Cyd,Charisse,cyd@example.org,444,,,\n"
CANVAS_CSV = f"""Student,ID,SIS User ID,SIS Login ID,Section,{LAB} (77)
    Points Possible,,,,,24
"Lovelace, Ada",12345,,ada,A,
"Holmes, Bob",333,,bob,A,
"Charisse, Cyd",444,,{CYD},A,
"""
MOODLE_CSV = f"""First name,Last name,Email address,Assignment: {LAB} (Real)
Ada,Lovelace,ada@example.org,-
Bob,Holmes,bob@example.org,-
Cyd,Charisse,cyd@example.org,-
"""
DOWNLOADS = {
    "submissions.zip": ("ada/lab.ipynb", "bob/lab.ipynb"),
    "canvas.zip": (
        "lovelaceada_12345_900_lab.ipynb",
        "holmesbob_333_901_lab.ipynb",
        "charissecyd_444_902_lab.ipynb",
    ),
    "moodle.zip": (
        "Ada Lovelace_5_assignsubmission_file_/lab.ipynb",
        "Bob Holmes_6_assignsubmission_file_/lab.ipynb",
        "Cyd Charisse_7_assignsubmission_file_/lab.ipynb",
    ),
}
# Files in a folder have no other submission time. In UTC, ada would be one day less late.
CHANGED_AT = {
    "ada/lab.ipynb": (2026, 10, 12, 10, 30, 0),
    "bob/lab.ipynb": (2026, 10, 30, 10, 30, 0),
}
LONG_AFTER = (2026, 11, 30, 0, 0, 0)


@pytest.mark.long
@pytest.mark.ranks
@pytest.mark.nbgrader
def test_the_page_describes_a_whole_term(tmp_path: Path) -> None:
    course, student = copy_repository(tmp_path / "shardlab", only_lab=LAB), tmp_path / "cyd"
    settings = environment(course) | {"HOME": str(tmp_path)}
    settings["PATH"] = f"{Path(sys.prefix) / 'bin'}:{settings['PATH']}"
    printed: dict[str, str] = {}  # {command: its output}
    shown = set[str]()  # inline code that is part of a command

    preloaded = (*WITHOUT_TORCH, "autograder.release.package")  # the last one imports torch
    with forking(course, settings, preloaded) as fork:

        def run(command: str) -> None:
            here = student if command.startswith(("nbgrader fetch", "nbgrader submit")) else course
            words = command.replace("LAB", LAB).replace("/archive/2025/submitted", "last-year")
            words = words.replace("DOWNLOAD", "moodle" if "moodle" in command else "canvas")
            done = fork(shlex.split(words), here)
            printed[command] = done.stdout + done.stderr
            assert done.returncode == 0, f"{command}\n{printed[command][-3000:]}"
            assert "not recognized" not in printed[command]  # by traitlets, of an unknown setting
            print(command, printed[command][-300:], sep="\n")

        run("python -m autograder build")  # without links to chapters that this copy lacks
        prepare(course, student)
        for kind, text in instructors_page():
            if text.startswith(tuple(NOT_RUN)):
                continue
            if kind == "command":
                run(text)
            elif kind == "inline":
                if text in IN_SENTENCES and text not in printed:
                    run(IN_SENTENCES[text] or text)
                elif COMMAND.match(text):
                    shown.add(text)
            elif kind == "python":
                configure(course, text)
            else:
                (file,) = (file for start, file in FILES.items() if text.startswith(start))
                write(course / file, text)

    commands = [set(command.split()) for command in (*printed, *instructors_commands())]
    assert [text for text in shown if not any(set(text.split()) <= one for one in commands)] == []
    assert (course / f"grading/feedback/ada/{LAB}/{LAB}.html").exists()
    columns = ("due_utc", "days_late", "free_days_used", "late_penalty")
    with (course / "grading/exercises.csv").open() as table:
        late = {row["student"]: [row[name] for name in columns] for row in csv.DictReader(table)}
    # 10 % of the lab's 24 points for each of 5 - 3 days, at most half of the points.
    assert late["ada"] == ["2026-10-08 10:00:00", "5", "3", "4.8"]
    assert late["bob"] == ["2026-10-08 16:00:00", "22", "3", "12"]
    older = "3 were graded by an older version"  # before the limits were changed
    assert [command for command in printed if older in printed[command]] == [
        IN_SENTENCES["--unsandboxed"]
    ]


def prepare(course: Path, student: Path) -> None:
    """Create the instructor's files, and the folder of a student who uses the exchange."""
    lab = (course / f"labs/{LAB}/{LAB}.ipynb").read_text()
    for archive, names in DOWNLOADS.items():
        with zipfile.ZipFile(course / archive, "w") as packed:
            for name in names:
                packed.writestr(zipfile.ZipInfo(name, CHANGED_AT.get(name, LONG_AFTER)), lab)
    roster = next(text for kind, text in instructors_page() if kind == "csv")
    write(course / "students.csv", roster)
    write(course / "CANVAS.csv", CANVAS_CSV)
    write(course / "MOODLE.csv", MOODLE_CSV)
    shutil.copytree(course / "labs", course / "last-year/dan")
    exchange = f"c = get_config()\nc.Exchange.root = {str(course / 'grading/exchange')!r}\n"
    student.mkdir()
    write(student / "nbgrader_config.py", exchange)


def write(path: Path, text: str) -> None:
    path.write_text(text + (STUDENTS if path.name == "students.csv" else ""))


def configure(course: Path, block: str) -> None:
    """Add the lines to nbgrader_config.py, replacing its calls of the same functions."""
    path = course / "nbgrader_config.py"
    calls = tuple(re.findall(r"^\w+\(", block, re.MULTILINE)) or ("\n",)
    kept = [line for line in path.read_text().splitlines() if not line.startswith(calls)]
    path.write_text("\n".join([*kept, block]))


def test_each_exception_is_on_the_page() -> None:
    texts = [snippet.text for snippet in instructors_page()]
    assert [start for start in NOT_RUN if not any(text.startswith(start) for text in texts)] == []
    assert [text for text in IN_SENTENCES if text not in texts] == []


def test_each_setting_exists() -> None:
    """Including settings outside of code blocks."""
    classes = (AssignLatePenalties, Exchange, ExchangeCollect, LateDays, RunAndDecide, ServerApp)
    known = {each.__name__: each.class_traits(config=True) for each in classes}
    named = {
        name
        for kind, text in instructors_page()
        if kind in ("python", "inline")
        for name in re.findall(r"^c\.(\w+)\.(\w+)", text, re.MULTILINE)
    }
    assert {name for name, _ in named} == set(known)
    assert [(name, trait) for name, trait in named if trait not in known[name]] == []


def test_late_days_in_points() -> None:
    """Tests the alternatives in the comments of the code block for late days."""
    (block,) = (
        text for _, text in instructors_page() if text.startswith("c.LateDays.share_per_day = 0.1")
    )
    pairs = re.findall(r"; or (\w+) = ([\d.]+)", block)
    alternatives = {name: float(value) for name, value in pairs}
    policy = LateDays(config=Config(LateDays=alternatives)).policy
    assert policy == Policy(points_per_day=0.5, max_points=3)
