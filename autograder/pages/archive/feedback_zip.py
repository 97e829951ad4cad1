"""Feedback pages as one zip, in the format that a learning platform imports.

Moodle: https://github.com/moodle/moodle/blob/main/mod/assign/feedback/file/importziplib.php
Canvas: infer_comment_context_from_filename in app/models/assignment.rb of its source
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from autograder.grading.roster.groups import names_after_groups
from autograder.grading.roster.roster import Person, same_name
from autograder.pages.match_people import Keys, keys, keys_of, match

MAX_BYTES = 50_000_000  # of a submitted file, for its content to be compared
# What the platform adds to the name of a student's file.
_FORMS = {
    # The folder's name or, in the flat format, the beginning of the file's name. Also of texts.
    "moodle": re.compile(r"(?:.*/)?(?P<name>[^/_]+)_(?P<id>\d+)_assignsubmission_[a-z]+(?:_|/).*"),
    "canvas": re.compile(r"(?:.*/)?(?P<name>[^/]+?)_(?:LATE_)?(?P<id>\d+)_(?P<file>\d+)_[^/]+"),
}


class CannotArchive(Exception):
    """The message says why no archive can be written, and what to do."""


@dataclass(frozen=True)
class Submitter:
    """A person and their files in a platform's download of submissions."""

    name: str
    id: str  # the platform's number for the person; in Moodle, for their part in the assignment
    file: int  # Canvas's number for the newest submitted file
    digests: frozenset[str]  # of the submitted notebooks

    def entry(self, platform: str, lab: str) -> str:
        """The path of their feedback page in the archive."""
        if platform == "moodle":
            return f"{self.name}_{self.id}_assignsubmission_file_/{lab}.html"
        return f"{self.name}_{self.id}_{self.file}_{lab}.html"

    @property
    def keys(self) -> Keys:
        # Moodle's number is of the submission, and may be another student's number elsewhere.
        return keys([self.id, self.name] if self.file else [self.name], self.name)


def read_submitters(download: Path, platform: str) -> list[Submitter]:
    """Read a zip or folder as the platform created it. Raises CannotArchive."""
    found: dict[str, Submitter] = {}
    for path, digest in _files(download):
        named = _FORMS[platform].fullmatch(path)
        if not named:
            continue
        parts = named.groupdict()
        newest_file = int(parts.get("file") or 0)
        new = Submitter(parts["name"], parts["id"], newest_file, frozenset({digest}))
        old = found.get(new.id)
        if old:
            newest = max(old, new, key=lambda submitter: submitter.file)
            new = Submitter(newest.name, newest.id, newest.file, old.digests | new.digests)
        found[new.id] = new
    if any(each.name.removeprefix("LATE_") == "anon" for each in found.values()):
        raise CannotArchive(
            f"the names in {download} are anonymous, and their numbers may be those of others: in "
            "Canvas, turn off *Anonymous Grading*, or post the grades, and download again"
        )
    if not found:
        raise CannotArchive(
            f"no file in {download} is named as {platform.capitalize()} does it: pass the "
            "unchanged download of all submissions"
        )
    return list(found.values())


def assign(
    people: Sequence[Person], digests: Mapping[str, str], submitters: Sequence[Submitter]
) -> dict[str, Submitter]:
    """{student: submitter}, matched by number or name, else by the submitted notebook.

    ``digests``: of each student's submitted notebook.  The result omits students who match several
    submitters, or whose notebook was submitted by several people or under another Canvas id.
    """
    known = {text for person in people for text in keys_of(person).names}
    names = {submitter.name for submitter in submitters if not submitter.file}
    after_groups = names_after_groups(names, lambda name: same_name(name) in known)
    rows = [replace(each, name=after_groups.get(each.name, each.name)) for each in submitters]
    matches = match(people, [row.keys for row in rows])
    found = {student: submitters[i] for student, i in matches.items()}
    for person in people:
        if person.student in found:
            continue
        own = digests.get(person.student)
        # Copies do not reveal their author, even if the other one was found by number.
        authors = [student for student, other in digests.items() if other == own]
        same = [submitter for submitter in submitters if own in submitter.digests]
        if len(authors) != 1 or len(same) != 1 or same[0] in found.values():
            continue
        if person.canvas_id and same[0].file:  # another number: another person, in Canvas
            continue
        found[person.student] = same[0]
    return found


def archive(pages: Mapping[str, Path]) -> bytes:
    """A reproducible zip of {path in the zip: file}."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for entry, path in sorted(pages.items()):
            info = zipfile.ZipInfo(entry, date_time=(1980, 1, 1, 0, 0, 0))
            file.writestr(info, path.read_bytes(), compress_type=zipfile.ZIP_DEFLATED)
    return out.getvalue()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _files(download: Path) -> Iterator[tuple[str, str]]:
    """(path, digest of the content) of each file; the digest is "" unless it is a notebook."""
    if download.is_dir():
        for path in sorted(download.rglob("*")):
            if path.is_file() and not path.is_symlink():
                name = path.relative_to(download).as_posix()
                yield name, digest(path.read_bytes()) if _is_read(name, path.stat().st_size) else ""
        return
    try:
        with zipfile.ZipFile(download) as file:
            for info in file.infolist():
                if not info.is_dir():
                    is_read = _is_read(info.filename, info.file_size)
                    yield info.filename, digest(file.read(info)) if is_read else ""
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        raise CannotArchive(
            f"{download} is neither a folder nor a readable zip: {error}"
        ) from error


def _is_read(name: str, size_bytes: int) -> bool:
    return PurePosixPath(name).suffix == ".ipynb" and size_bytes <= MAX_BYTES
