"""What the tasks of a lab share."""

from __future__ import annotations

from pathlib import Path

from traitlets.config import Config

from autograder.grading.gradebook.run_and_decide import RunAndDecide
from autograder.grading.pool.settings import GradingSettings
from autograder.grading.pool.tasks import grading_seed


def test_the_seed_is_kept_and_differs_by_lab_and_course(tmp_path: Path) -> None:
    first = grading_seed(tmp_path / "grading", "03_ring")
    assert grading_seed(tmp_path / "grading", "03_ring") == first
    assert grading_seed(tmp_path / "grading", "04_zero") != first
    assert grading_seed(tmp_path / "other", "03_ring") != first
    assert (tmp_path / "grading/seed").stat().st_mode & 0o077 == 0


def test_nbgraders_step_and_the_commands_have_the_same_settings() -> None:
    config = Config(RunAndDecide={"seed": 3, "unsandboxed": True, "limits": {"cell_s": 1}})
    for found in (RunAndDecide(config=config), GradingSettings(config=config)):
        assert (found.seed, found.unsandboxed, found.limits) == (3, True, {"cell_s": 1})
