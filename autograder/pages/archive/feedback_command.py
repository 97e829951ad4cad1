"""python -m autograder feedback: a lab's pages in one archive, for a learning platform."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbgrader.apps import NbGrader
    from nbgrader.coursedir import CourseDirectory

    from autograder.pages.scores import Scores

ALL_INCLUDED, WRONG_USAGE, NOT_ALL_INCLUDED = 0, 2, 3


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `python -m autograder`."""
    parser = commands.add_parser(
        "feedback", help="list who has a feedback page for a lab; --archive writes pages to a zip"
    )
    parser.add_argument("lab", metavar="LAB", help="for example 03_ring_all_reduce")
    parser.add_argument("--archive", action="store_true", help="write the pages into one zip")
    parser.add_argument(
        "--platform", choices=("moodle", "canvas", "gradescope"),
        help="in the format that this platform accepts; default: a folder for each student",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DOWNLOAD",
        help="all submissions of the lab, as downloaded from the platform: a zip or a folder",
    )  # fmt: skip
    parser.add_argument("--to", type=Path, metavar="ZIP", help="default: grading/feedback-LAB.zip")
    parser.set_defaults(run=_feedback)


def _feedback(arguments: argparse.Namespace) -> int:
    # Imported here because nbgrader takes seconds to import.
    from autograder.grading.csv_tables import BadTable
    from autograder.grading.gradebook.database import GradebookError
    from autograder.pages.archive.feedback_zip import CannotArchive

    try:
        return _run(arguments)
    except (CannotArchive, BadTable, GradebookError) as error:
        print(f"{error}\nNothing was written.", file=sys.stderr)
        return WRONG_USAGE


def _run(arguments: argparse.Namespace) -> int:
    from nbgrader.coursedir import CourseDirectory

    from autograder.grading.csv_tables import write_atomically
    from autograder.grading.gradebook.database import opened
    from autograder.grading.nbgrader_app import nbgrader_app
    from autograder.grading.submission.folders import grading_folder
    from autograder.pages.archive.feedback_zip import (
        CannotArchive,
        archive,
        assign,
        read_submitters,
    )
    from autograder.pages.match_people import read_people
    from autograder.pages.scores import read_scores

    lab, platform = arguments.lab, arguments.platform
    if platform == "gradescope":
        raise CannotArchive(
            "Gradescope cannot import feedback files for a class: omit --platform to get a zip "
            "with a folder for each student"
        )
    if (platform or arguments.source or arguments.to) and not arguments.archive:
        raise CannotArchive("--platform, --from and --to require --archive: add it")
    if arguments.source and not platform:
        raise CannotArchive("--from requires --platform: name the platform of the download")
    if platform and not arguments.source:
        raise CannotArchive(
            f"{platform.capitalize()} finds students by the names of its own files: download all "
            "submissions of the lab there, and pass that zip with --from"
        )
    app = nbgrader_app()
    course = CourseDirectory(parent=app)
    with opened(course) as gradebook:
        people = read_people(gradebook, grading_folder(course))
        labs = sorted(assignment.name for assignment in gradebook.assignments)
        if lab not in labs:
            raise CannotArchive(
                f"the gradebook contains no lab {lab!r} (it has: {', '.join(labs) or 'none'})"
            )
        scores = {one.student: one for one in read_scores(gradebook, lab)}
    pages = {
        person.student: page
        for person in people
        if (page := _page(course, lab, person.student)).is_file()
    }
    stale = {s for s, page in pages.items() if not _is_current(app, course, page, scores[s])}
    print(f"{lab}: {len(pages)} feedback page{'' if len(pages) == 1 else 's'}")
    absent = [person.student for person in people if person.student not in pages]
    if absent:
        print(f"without one: {', '.join(absent)}")
    if stale:
        print(
            f"out of date, because the grade has changed since: {', '.join(sorted(stale))}; run "
            f"`nbgrader generate_feedback {lab} --force`"
        )
    if not arguments.archive:
        return ALL_INCLUDED
    if not pages:
        raise CannotArchive(f"run `nbgrader generate_feedback {lab}` first")
    pages = {student: page for student, page in pages.items() if student not in stale}
    entries = {student: f"{student}/{lab}.html" for student in pages}
    if platform:
        digests = {student: _digest(course, lab, student) for student in pages}
        submitters = assign(people, digests, read_submitters(arguments.source, platform))
        entries = {s: submitters[s].entry(platform, lab) for s in pages if s in submitters}
    if not pages:
        raise CannotArchive("every feedback page is out of date")
    if not entries:
        raise CannotArchive(f"{arguments.source} contains no student who has a feedback page")
    suffix = f"-{platform}" if platform else ""
    to = arguments.to or grading_folder(course) / f"feedback-{lab}{suffix}.zip"
    write_atomically(to, archive({entry: pages[student] for student, entry in entries.items()}))
    print(f"wrote {to}: {len(entries)} page{'' if len(entries) == 1 else 's'}")
    missing = sorted(set(pages) - set(entries))
    if missing:
        print(f"not included, because not found in {arguments.source}: {', '.join(missing)}")
    return NOT_ALL_INCLUDED if missing or stale else ALL_INCLUDED


def _page(course: CourseDirectory, lab: str, student: str) -> Path:
    return Path(course.format_path(course.feedback_directory, student, lab)) / f"{lab}.html"


def _is_current(app: NbGrader, course: CourseDirectory, page: Path, scores: Scores) -> bool:
    """Whether the page shows what the gradebook and the autograded notebook now contain."""
    import nbformat

    from autograder.pages.record_of import record_of
    from autograder.pages.scores import digest

    student, lab = scores.student, page.stem
    folder = Path(course.format_path(course.autograded_directory, student, lab))
    try:
        notebook = nbformat.from_dict(json.loads((folder / f"{lab}.ipynb").read_bytes()))
        record = record_of(app, notebook, lab, student)
    except (OSError, ValueError, AttributeError):
        record = None
    now = digest(scores, record.key if record else "")
    return f'<meta name="shardlab-grade" content="{now}">'.encode() in page.read_bytes()


def _digest(course: CourseDirectory, lab: str, student: str) -> str:
    """The digest of the submitted notebook; "-" if there is none."""
    from autograder.grading.submission.folders import read_submission
    from autograder.pages.archive.feedback_zip import digest

    content, _, _ = read_submission(course, lab, student)
    return digest(content) if content is not None else "-"
