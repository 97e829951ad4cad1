"""`nbgrader release_feedback`, where not all of a lab's work came through the exchange."""

from __future__ import annotations

import glob
from pathlib import Path

from nbgrader.exchange.default import ExchangeReleaseFeedback

SECRET = "submission_secret.txt"  # left by `nbgrader submit`; the student's name in the exchange


class ReleaseFeedback(ExchangeReleaseFeedback):
    """nbgrader's own ends at the first page without a secret, and releases none behind it."""

    def copy_files(self) -> None:
        for folder in map(Path, sorted(glob.glob(self.src_path))):
            if not (folder / SECRET).exists():
                student = folder.parent.name
                self.log.warning(
                    "%s gets nothing from here: the work did not come through the exchange. Hand "
                    "over %s yourself", student, folder,
                )  # fmt: skip
                self.coursedir.student_id_exclude += f",{student}"
        super().copy_files()
