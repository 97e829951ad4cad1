from pathlib import Path

import pytest

from autograder import exercises


def test_the_rest_of_a_renamed_lab_is_no_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab09_old_name/__pycache__").mkdir(parents=True)
    (tmp_path / "lab10_new_name").mkdir()
    (tmp_path / "lab10_new_name/__init__.py").touch()
    monkeypatch.setattr(exercises, "HERE", tmp_path)
    assert exercises.labs() == ["10_new_name"]
