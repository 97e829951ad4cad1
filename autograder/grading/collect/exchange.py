"""`nbgrader collect`, without losing the submission that a newer one replaces."""

from __future__ import annotations

import shutil

from nbgrader.exchange.default import ExchangeCollect

from autograder.grading.collect.store import Store


class Collect(ExchangeCollect):
    """nbgrader's own class deletes the older submission; this one keeps it in grading/earlier."""

    def copy_files(self) -> None:
        store = Store(self.coursedir, self.coursedir.assignment_id)
        replacing = self.update or self.before_duedate
        students = {record["username"] for record in self.src_records} if replacing else set()
        # Copied before nbgrader decides, so that an interrupt loses nothing.
        copies = {s: store.copy_to_earlier(s) for s in students if store.has_submission(s)}
        super().copy_files()
        for student, copy in copies.items():
            if store.is_current(student, copy):  # nothing newer was collected
                shutil.rmtree(copy)
