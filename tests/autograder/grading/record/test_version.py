"""A change of code that decides a grade gives a new version, which --regrade compares."""

from pathlib import Path

import pytest

from autograder.grading.record import version


def test_every_folder_in_the_version_exists() -> None:
    for folder in version.DECIDING:
        assert list((version.AUTOGRADER / folder).glob("*.py")), folder


@pytest.mark.parametrize("folder", version.DECIDING)
def test_a_changed_file_changes_the_version(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "AUTOGRADER", tmp_path)
    changed = tmp_path / folder / "inner/changed.py"
    changed.parent.mkdir(parents=True)
    found = []
    for source in ("points = 1", "points = 2"):
        changed.write_text(source)
        found.append(version.code_version.__wrapped__())
    assert found[0] != found[1]
