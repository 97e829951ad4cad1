"""python -m autograder collect: collects submissions from a platform's download."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autograder.grading.collect.download import Collected

ALL_TAKEN, WRONG_USAGE, SOME_SKIPPED = 0, 2, 3
PLATFORMS = ("canvas", "moodle", "gradescope", "folder")
TIME = "%Y-%m-%d %H:%M:%S"
SHORT = 30  # names in one line
REGROUPED_HINT = """\
kept what was submitted with another group: if groups have changed, add a row to grading/groups.csv
for each (GROUP,STUDENT,{lab}), with the group that counts for this lab, and collect again:"""
GROUPS_HINT = """\
names that no student has: those of groups? If so, add them to grading/groups.csv (columns
group,student; one row for each member) and collect again: each member gets a copy. If it is another
name of a student, add it to the roster as moodle_name:"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `python -m autograder`."""
    parser = commands.add_parser(
        "collect", help="collect submissions from a download of Canvas, Moodle or Gradescope"
    )
    parser.add_argument("lab", metavar="LAB", help="for example 03_ring_all_reduce")
    parser.add_argument(
        "--from", type=Path, required=True, metavar="PATH", dest="download",
        help="the download: a .zip, or the folder it was unpacked to",
    )  # fmt: skip
    parser.add_argument(
        "--platform", choices=PLATFORMS, help="default: recognized by the names of the files"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only print")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Imported here because nbgrader takes seconds to import.
    from autograder.grading.collect.download import collect
    from autograder.grading.collect.files import CollectError
    from autograder.grading.csv_tables import BadTable

    try:
        collected = collect(
            arguments.lab, arguments.download, arguments.platform, arguments.dry_run
        )
    except (CollectError, BadTable) as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE
    print(as_text(collected, arguments.dry_run))
    return ALL_TAKEN if collected.is_complete else SOME_SKIPPED


def as_text(collected: Collected, dry_run: bool) -> str:
    """For a terminal."""
    lines = []
    width = max((len(student) for student in collected.students), default=0)
    for student, (plan, submitted, version) in collected.students.items():
        # Other times are those of the download.
        at = f" ({version.time:{TIME}} UTC)" if version.is_submission_time else ""
        was = f"; before: {plan.replaces:{TIME}} UTC" if plan.replaces else ""
        lines.append(f"  {plan.outcome:<11}  {student:<{width}}  {submitted.file.shown}{at}{was}")
        if submitted.repairs:
            lines.append(f"  {'':<11}  {'':<{width}}  repaired: {submitted.repairs}")
    if any(plan.outcome == "earlier" for plan, _, _ in collected.students.values()):
        lines += [
            "earlier: kept in grading/earlier, because a later submission is in grading/submitted"
        ]
    if collected.skipped:
        lines += ["", "skipped:", *(f"  {path}: {why}" for path, why in collected.skipped)]
    if collected.no_notebook:
        lines += ["", f"no notebook of {collected.lab}, so 0 points until there is one:"]
        lines += [f"  {who} submitted {path}: {why}" for who, path, why in collected.no_notebook]
    if collected.regrouped:
        lines += ["", REGROUPED_HINT.format(lab=collected.lab)]
        lines += [f"  {who}, not replaced by {path}" for who, path in collected.regrouped]
    if collected.groups:
        lines += ["", GROUPS_HINT]
        lines += [
            f"  {name}, collected for {who} only" if who else f"  {name}, not collected"
            for name, who in collected.groups
        ]
    if collected.ties:
        lines += ["", "equally new, so the last by name was taken: check which one counts"]
        lines += [f"  {who}: {taken}, not {_some(rest)}" for who, taken, rest in collected.ties]
    if collected.ignored:
        lines += ["", f"no notebooks of a lab, ignored: {_some(collected.ignored)}"]
    if collected.late:
        lines += ["", f"late according to {collected.platform}: {_some(sorted(collected.late))}"]
    taken = [version for _, _, version in collected.students.values()]
    if taken and not any(version.is_submission_time for version in taken):
        lines += [
            f"{collected.platform} does not report when files were submitted: no timestamp.txt was "
            "written, and nbgrader deducts no late penalty"
        ]
    if collected.platform == "folder" and (same := _same_minute([v.time for v in taken])):
        count, minute = same
        lines += [
            f"{count} of {len(taken)} files were changed in the minute {minute:%Y-%m-%d %H:%M} "
            "UTC: if they were copied then, this is not when they were submitted. Correct "
            "timestamp.txt, or delete it, before you grade"
        ]
    if collected.absent:
        lines += ["", f"on the roster, without a submission: {_some(collected.absent)}"]
    counts = Counter(plan.outcome for plan, _, _ in collected.students.values())
    counts["skipped"] = len(collected.skipped)
    counts["kept"] = len({student for student, _ in collected.regrouped})
    counts["without a notebook"] = len({student for student, *_ in collected.no_notebook})
    total = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing"
    note = "dry run, nothing was changed: " if dry_run else ""
    heading = f"{collected.lab}, from {collected.platform}: {note}{total}"
    return "\n".join([heading, *lines])


def _same_minute(times: list[datetime]) -> tuple[int, datetime] | None:
    """(how many, the minute), if most of several times are in one minute."""
    minutes = Counter(time.replace(second=0, microsecond=0) for time in times)
    minute, count = max(minutes.items(), key=lambda item: item[1], default=(None, 0))
    return (count, minute) if minute and count >= 2 and 2 * count > len(times) else None


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHORT} more" if len(names) > SHORT else ""
    return ", ".join(names[:SHORT]) + more
