"""`nbgrader collect`, from an exchange that every student can write to."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from nbgrader.exchange.default import ExchangeCollect

from autograder.grading.collect.store import Store
from autograder.grading.csv_tables import BadTable
from autograder.grading.roster.roster import ROSTER, read_roster
from autograder.grading.submission.files import Unreadable, read_regular_file
from autograder.grading.submission.folders import grading_folder
from autograder.grading.submission.reader import MAX_BYTES

Record = dict[str, Any]  # nbgrader's: username, filename, timestamp


class Collect(ExchangeCollect):
    """nbgrader's own class deletes the older submission, only warns of one that somebody else made
    in the student's name, and follows links: to the instructor's solutions, for example.

    This one keeps the older submission in grading/earlier and collects neither of the others. It
    warns of submitters who are not on the roster.
    """

    src_records: list[Record]

    def _sort_by_timestamp(self, records: list[Record]) -> list[Record]:
        """The newest first. One that somebody else made does not hide the student's own."""
        own = [record for record in records if self._is_own(record)]
        return super()._sort_by_timestamp(own or records)

    def copy_files(self) -> None:
        for record in self.src_records:
            if not self._is_own(record):
                self.log.error(
                    "%s was not collected: it is in the name of %s, who does not own it. Where "
                    "students have no Unix accounts, set c.ExchangeCollect.check_owner = False",
                    record["filename"], record["username"],
                )  # fmt: skip
        self.src_records = [record for record in self.src_records if self._is_own(record)]
        self._warn_about_unknown_submitters()
        store = Store(self.coursedir, self.coursedir.assignment_id)
        replacing = self.update or self.before_duedate
        students = {record["username"] for record in self.src_records} if replacing else set()
        # Copied before nbgrader decides, so that an interrupt loses nothing.
        copies = {s: store.copy_to_earlier(s) for s in students if store.has_submission(s)}
        super().copy_files()
        for student, copy in copies.items():
            if store.is_current(student, copy):  # nothing newer was collected
                shutil.rmtree(copy)

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copies only regular files: the student can still replace them with links while this runs.

        If this is killed, there is no submission, and not half of one.
        """
        target = Path(dest)
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder:
            plain, whole = Path(folder, "plain"), Path(folder, "whole")
            plain.mkdir()
            opened = os.open(src, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                for name in sorted(os.listdir(opened)):
                    try:
                        content = read_regular_file(name, MAX_BYTES, folder=opened)
                        plain.joinpath(name).write_bytes(content)
                    except Unreadable as why:
                        self.log.warning("%s was not collected: %s", os.path.join(src, name), why)
            finally:
                os.close(opened)
            super().do_copy(str(plain), str(whole), log)
            whole.rename(target)

    def _warn_about_unknown_submitters(self) -> None:
        try:
            roster = read_roster(grading_folder(self.coursedir))
        except BadTable as error:
            self.log.warning("students were not compared with the roster: %s", error)
            return
        if roster is None:
            return
        for student in sorted({record["username"] for record in self.src_records}):
            if student not in roster.people:
                self.log.warning("%s is not on the roster (grading/%s)", student, ROSTER)

    def _is_own(self, record: Record) -> bool:
        if not self.check_owner:
            return True
        folder = os.lstat(os.path.join(self.inbound_path, record["filename"]))
        try:
            owner = pwd.getpwuid(folder.st_uid).pw_name
        except KeyError:
            return False
        return stat.S_ISDIR(folder.st_mode) and owner == record["username"]
