"""`nbgrader release_feedback`, with a submission that did not come through the exchange."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from nbgrader.utils import notebook_hash

from tests.autograder.grading.copied_course import forks

REPO = Path(__file__).parents[4]
LAB = "03_ring_all_reduce"


@pytest.mark.nbgrader
def test_a_submission_from_elsewhere_is_named_and_others_are_released(tmp_path: Path) -> None:
    shutil.copy(REPO / "nbgrader_config.py", tmp_path)
    for student, secret in (("ann", ""), ("bea", "b" * 16)):
        folder = tmp_path / "grading/feedback" / student / LAB
        folder.mkdir(parents=True)
        (folder / f"{LAB}.html").write_text(student)
        (folder / "timestamp.txt").write_text("2026-10-02 13:00:00 UTC")
        if secret:
            (folder / "submission_secret.txt").write_text(secret)
    ran = forks()(["python", "-m", "nbgrader", "release_feedback", LAB], tmp_path, os.environ)
    assert ran.returncode == 0, ran.stderr
    assert "ann gets no feedback through the exchange" in ran.stderr
    assert "Traceback" not in ran.stderr
    (released,) = (tmp_path / "grading/exchange/shardlab/feedback").iterdir()
    assert released.stem == notebook_hash(secret="b" * 16, notebook_id=LAB)
    assert released.read_text() == "bea"
