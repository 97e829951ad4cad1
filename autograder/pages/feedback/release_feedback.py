"""`nbgrader release_feedback` for a lab with submissions from outside the exchange."""

from __future__ import annotations

import glob
from pathlib import Path

from nbgrader.exchange.default import ExchangeReleaseFeedback

from autograder.grading.submission.folders import SECRET


class ReleaseFeedback(ExchangeReleaseFeedback):
    """Skips pages without a secret; nbgrader's own class stops at the first one."""

    def copy_files(self) -> None:
        for folder in map(Path, sorted(glob.glob(self.src_path))):
            if not (folder / SECRET).exists():
                student = folder.parent.name
                self.log.warning(
                    "%s gets no feedback through the exchange, because the submission did not come "
                    "through it: deliver %s yourself", student, folder,
                )  # fmt: skip
                self.coursedir.student_id_exclude += f",{student}"
        super().copy_files()
