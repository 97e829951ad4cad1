"""A change of anything that decides a grade is a new version, which --regrade compares."""

from pathlib import Path

import pytest

from autograder.grading.record import version


def test_what_decides_a_grade_is_where_the_version_looks() -> None:
    for folder in version.DECIDING:
        assert list((version.AUTOGRADER / folder).glob("*.py")), folder


@pytest.mark.parametrize("folder", version.DECIDING)
def test_a_changed_file_is_another_version(
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
