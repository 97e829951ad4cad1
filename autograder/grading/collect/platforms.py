"""How Canvas, Moodle, Gradescope and plain folders name the files of a download.

The formats are those of the platforms' source code (Canvas: ``lib/content_zipper.rb``; Moodle:
``mod/assign/classes/downloader.php``), and of public exports (Gradescope). Current versions of
Canvas and Moodle give every file in a zip the time of the download: only Gradescope reports when a
file was submitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

import yaml

from autograder.grading.collect.files import LINK, CollectError, File
from autograder.grading.roster.groups import Groups, names_after_groups
from autograder.grading.roster.roster import Namesakes, NotFound, Roster, same_name
from autograder.grading.submission.files import Unreadable

# lovelaceada_LATE_12345_678901_03_ring_all_reduce-1.ipynb: name, student's id, upload's id, file. A
# text entry or a link has no upload's id: lovelaceada_12345_text.html. Of a group's submission, the
# name is the group's, and the id one member's.
_CANVAS_FILE = r"(?:(?P<upload>\d+)_(?P<file>.+)|text\.html|link\.html)"
CANVAS_TAIL = re.compile(rf"_(?P<late>LATE_)?(?P<user>\d+)_{_CANVAS_FILE}")
CANVAS = re.compile(rf"(?P<name>.*?){CANVAS_TAIL.pattern}")
CANVAS_ANONYMOUS = re.compile(rf"(?:LATE_)?anon_[A-Za-z0-9]+_{_CANVAS_FILE}")
# Ada Lovelace_123456_assignsubmission_file_, before / or the file's name. The number is another one
# in each assignment. Newer versions leave out the last _ of a folder's name. If a group submitted,
# the name is the group's or, in older versions, for each member "Blue team-Ada Lovelace". If names
# are hidden, it is "Participant" in the site's language.
MOODLE = re.compile(r"(?P<name>.*?)(?P<number>_\d+)?_assignsubmission_[a-z]+(?:_(?P<file>.*))?")
MOODLE_ANONYMOUS = {
    "participant", "participante", "participanta", "teilnehmerin", "partecipante", "deelnemer",
    "uczestnik", "deltagare", "deltaker", "deltager", "osallistuja", "ucastnik", "参加者", "参与者",
}  # fmt: skip
METADATA = "submission_metadata.yml"
METADATA_BYTES = 200_000_000  # it contains the autograder's output
COPY = re.compile(r"(?P<stem>.+?)(?: ?\((?P<copy>\d+)\)|-(?P<again>\d+))$")  # notebook (1), file-1


@dataclass(frozen=True)
class SubmittedFile:
    """A file and who submitted it."""

    file: File
    student: str = ""
    order: tuple[Any, ...] = ()  # among the files of a student in this download: the newest is last
    time: datetime | None = None  # UTC; when it was submitted, if the platform reports that
    is_late: bool = False  # according to the platform
    why_not: str = ""  # why it belongs to no student
    group: str = ""  # a name that is not the student's, and so may be a group's
    is_for_all_labs: bool = False  # it is a group's, by a row of groups.csv without a lab
    repairs: str = ""  # what of the file had to be repaired, in sentences


@dataclass(frozen=True)
class People:
    """Whom the names in a download can mean."""

    roster: Roster
    groups: Groups

    def submitted(self, file: File, *, name: str, **ids: Any) -> Iterator[SubmittedFile]:
        """Once for each member, if it is a group's."""
        members = self.groups.members(name)
        with suppress(NotFound):
            # A student may have given themselves a group's name.
            if self.roster.find(**ids) not in members:
                members = []
        try:
            students = members or [self.roster.find(name=name, **ids)]
        except NotFound as error:
            group = "" if isinstance(error, Namesakes) else name
            yield SubmittedFile(file, why_not=str(error), group=group)
            return
        for student in students:
            is_own = members or self.roster.people[student].may_be_called(name)
            yield SubmittedFile(
                file,
                student,
                group="" if is_own else name,
                is_for_all_labs=bool(members) and student not in self.groups.named_lab,
            )


Reader = Callable[[Sequence[File], People | None], Iterator[SubmittedFile]]


def recognize(files: Sequence[File]) -> str:
    """The platform with files of these names; no single student's file decides."""
    if _metadata_file(files):
        return "gradescope"
    depth = _common_folders(files) + 1
    outer = [file.path.parts[:depth] for file in files if not file.why_not]
    counts = {
        "folder": len(outer) // 2,
        "moodle": sum(any(map(MOODLE.fullmatch, parts)) for parts in outer),
        "canvas": sum(
            bool(CANVAS.fullmatch(parts[-1]) or CANVAS_ANONYMOUS.fullmatch(parts[-1]))
            for parts in outer
        ),
    }
    return max(counts, key=lambda platform: counts[platform])


def canvas(files: Sequence[File], people: People | None) -> Iterator[SubmittedFile]:
    """The newest file is the one with the highest upload id, which Canvas counts up. -1 at the end
    of a name also marks a resubmission, but a student's own file may be named so."""
    assert people is not None
    if files and all(CANVAS_ANONYMOUS.fullmatch(file.path.name) for file in files):
        raise CollectError(
            f"{files[0].shown} and all other names are anonymous: in Canvas, open the assignment's "
            "settings and turn off *Anonymous Grading*, or post the grades, then download again. "
            "Nothing was collected"
        )
    for file in files:
        name, match = _canvas_name(file.path.name, people.groups)
        if match is None:
            yield SubmittedFile(file, why_not="its name is not NAME_ID_NUMBER_FILE as in Canvas")
            continue
        order, is_late = (int(match["upload"] or 0),), bool(match["late"])
        for each in people.submitted(file, canvas_id=match["user"], name=name):
            yield replace(each, order=order, is_late=is_late)


def _canvas_name(name: str, groups: Groups) -> tuple[str, re.Match[str] | None]:
    """(the name of the student or group, what follows it)."""
    match = CANVAS.fullmatch(name)
    if match is None:
        return "", None
    # team_1_12345_678901_lab.ipynb is a file of group team_1, not of the student with id 1.
    whole = name[: match.end("user")]
    if groups.members(whole) and (tail := CANVAS_TAIL.fullmatch(name, match.end("user"))):
        return whole, tail
    return match["name"], match


def moodle(files: Sequence[File], people: People | None) -> Iterator[SubmittedFile]:
    """The newest file is the one whose name ends in the highest number: notebook (2).ipynb."""
    assert people is not None
    matches = {}
    for file in files:
        found = [match for part in file.path.parts if (match := MOODLE.fullmatch(part))]
        if found:
            matches[file.path] = found[0]
        else:
            yield SubmittedFile(file, why_not="its path has no assignsubmission as in Moodle")
    _require_names(matches.values(), people)
    names = {match["name"] for match in matches.values()}
    meant = names_after_groups(names, people.roster.has_name, people.groups.members)
    for file in files:
        if match := matches.get(file.path):
            for each in people.submitted(file, name=meant.get(match["name"], match["name"])):
                yield replace(each, order=(_number(file), file.time))


def _require_names(matches: Collection[re.Match[str]], people: People) -> None:
    """Raises CollectError if Moodle hides the names."""
    names = {same_name(match["name"]) for match in matches}
    numbers = {match["number"] for match in matches}
    (name,) = names if len(names) == 1 else ("",)
    is_known = people.roster.has_name(name) or people.groups.members(name)
    if name and not is_known and (name in MOODLE_ANONYMOUS or len(numbers) > 1):
        shown = next(iter(matches))["name"]
        raise CollectError(
            f"all submissions are named {shown!r}: in Moodle, the assignment has *Anonymous "
            "submissions*. Choose *Reveal student identities* in the menu of the submissions, then "
            "download again. Nothing was collected"
        )


def folder(files: Sequence[File], people: People | None) -> Iterator[SubmittedFile]:
    """STUDENT/anything.ipynb or STUDENT.ipynb. With a roster, both may be in another folder that
    contains all files; deeper folders are the student's own, and may have another student's name.
    Without a roster, STUDENT/anything.ipynb may be.

    Raises CollectError if it is unclear which folders are students.
    """
    depth = _common_folders(files) + 1
    outside = _outside_of_students(files) if people is None else 0
    for file in files:
        *folders, name = file.path.parts
        stem = PurePosixPath(name).stem
        copied = COPY.fullmatch(stem)
        if people is None:
            # STUDENT-1 may be a student's id, but STUDENT (1) is a browser's name for a copy.
            student = copied["stem"] if copied and copied["copy"] else stem
            found = [SubmittedFile(file, folders[outside] if folders[outside:] else student)]
        else:
            names = [*folders, stem][:depth]
            names += [copied["stem"]] if copied and len(folders) < depth else []
            tried = [list(people.submitted(file, ids=(name,), name=name)) for name in names]
            found = next((each for each in tried if each[0].student), tried[0])
        for each in found:
            order = (file.time, _number(file))
            yield replace(each, order=order, time=file.time, group="")


def gradescope(files: Sequence[File], people: People | None) -> Iterator[SubmittedFile]:
    """``submission_metadata.yml`` names all who submitted, and when."""
    assert people is not None
    described = _metadata_file(files)
    if described is None:
        raise CollectError(
            f"there is no {METADATA}: download the submissions from Gradescope again"
        )
    submissions = _metadata(described)
    for file in files:
        if file is described:
            continue
        found = [part for part in file.path.parts[:-1] if part in submissions]
        about = submissions[found[0]] if found else {}
        time = _utc(about.get(":created_at"))
        submitters = [each for each in about.get(":submitters") or () if isinstance(each, dict)]
        if not submitters:
            yield SubmittedFile(file, why_not=f"{METADATA} does not say who submitted it")
        for each in submitters:  # a group: each member gets a copy
            email, sid, name = (str(each.get(key) or "") for key in (":email", ":sid", ":name"))
            for one in people.submitted(file, ids=(email, sid), name=name):
                order = (time or file.time, _number(file))
                yield replace(one, order=order, time=time, group="")


READERS: dict[str, Reader] = {
    "canvas": canvas,
    "moodle": moodle,
    "gradescope": gradescope,
    "folder": folder,
}


def read(platform: str, files: Sequence[File], people: People | None) -> list[SubmittedFile]:
    """``people``: None if there is no roster. Raises CollectError."""
    if people is None and platform != "folder":
        raise CollectError(
            f"there is no roster, so {platform.capitalize()}'s names cannot be matched: run "
            "`python -m autograder roster students.csv`"
        )
    return list(READERS[platform](files, people))


def _common_folders(files: Sequence[File], counted: Sequence[str] = ("",)) -> int:
    """How many folders contain all files, each in the one before.

    ``counted``: which files count, by why they must not be read.
    """
    parents = [file.path.parts[:-1] for file in files if file.why_not in counted]
    levels = zip(*parents, strict=False)
    return len(list(takewhile(lambda names: len(set(names)) == 1, levels)))


def _outside_of_students(files: Sequence[File]) -> int:
    """How many folders contain all students' folders, if no roster says who is a student."""
    notebooks = [f for f in files if f.may_be_notebook and f.why_not in ("", LINK)]
    common = _common_folders(notebooks, ("", LINK))
    if common == 0 or (len(notebooks) == 1 and common == 1):
        return 0
    parents = [file.path.parts[:-1] for file in notebooks]
    if all(len(parent) > common for parent in parents):
        return common
    name = "/".join(parents[0][:common])
    raise CollectError(
        f"all notebooks are in the folder {name!r}, and without a roster it is unclear whether a "
        "folder is a student. Give each student a folder or add a roster; if the folder contains "
        "files named after students, unpack the download and name that folder with --from"
    )


def _metadata_file(files: Sequence[File]) -> File | None:
    """Gradescope's own: in the outermost folder. A student's file may have the same name."""
    depth = _common_folders(files)
    own = [f for f in files if f.path.name == METADATA and len(f.path.parts) == depth + 1]
    return own[0] if own else None


def _number(file: File) -> int:
    """1 of ``notebook (1).ipynb`` and ``notebook-1.ipynb``; 0 of ``notebook.ipynb``."""
    copied = COPY.fullmatch(file.path.stem)
    return int(copied["copy"] or copied["again"]) if copied else 0


def _utc(time: Any) -> datetime | None:
    if not isinstance(time, datetime):
        return None
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return aware.astimezone(UTC).replace(microsecond=0)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads Ruby's own types as plain data; in C where it can, which is ten times as fast."""


def _plain(loader: _Loader, tag: str, node: yaml.Node) -> Any:
    match node:
        case yaml.MappingNode():
            return loader.construct_mapping(node, deep=True)
        case yaml.SequenceNode():
            return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


_Loader.add_multi_constructor("!", _plain)


def _metadata(file: File) -> dict[str, dict[str, Any]]:
    """{folder: what Gradescope says about the submission in it}. Raises CollectError."""
    try:
        found = yaml.load(file.read(METADATA_BYTES), _Loader)  # safe: a SafeLoader
    except (Unreadable, yaml.YAMLError, ValueError, RecursionError) as error:
        raise CollectError(f"{file.shown} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict):
        raise CollectError(f"{file.shown} lists no submissions")
    return {str(name): about for name, about in found.items() if isinstance(about, dict)}
