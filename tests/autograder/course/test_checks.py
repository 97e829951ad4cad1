"""What `check` stores on the student's computer, and how the front page shows it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autograder import CheckFailed, check
from autograder.course import checks
from autograder.course.pages import course
from autograder.course.progress import Progress, progress
from autograder.course.tries import MAX_MISTAKES, MAX_TRIES, Tries, from_metadata
from tests.submissions import planted

NAME = "ring_all_reduce.chunk_bounds"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "shardlab/checks"


def right() -> object:
    lab = "03_ring_all_reduce"
    return planted.subjects(lab, planted.solution(lab))["chunk_bounds"]


@pytest.mark.ranks
def test_the_last_result_of_a_check_is_stored() -> None:
    with pytest.raises(CheckFailed):
        check(NAME, lambda length, world_size: [])
    (failed,) = checks.last_checks().values()
    assert failed.passed < failed.cases
    check(NAME, right())
    (passed,) = checks.last_checks().values()
    assert passed.all_pass
    assert passed.cases == failed.cases
    assert (passed.tries.total, passed.tries.to_pass) == (2, 2)
    assert set(passed.tries.mistakes.values()) == {1}  # once, however many cases show it


def test_the_check_of_a_placeholder_is_not_stored() -> None:
    with pytest.raises(CheckFailed):
        check(NAME, None)
    assert checks.last_checks() == {}


def test_tries_are_counted_until_the_first_pass_and_in_total() -> None:
    for passed, mistake in ((1, "a"), (0, "b"), (1, "a"), (2, ""), (1, "a"), (2, "")):
        kept = checks.remember(NAME, passed, 2, [mistake, mistake] if mistake else [])
    assert kept == checks.last_checks()[NAME].tries
    assert kept == Tries(total=6, to_pass=4, mistakes={"a": 2, "b": 1})


def test_tries_are_bounded() -> None:
    many = Tries(MAX_TRIES - 1).and_one(passed=False, mistakes=[f"{n}" * 999 for n in range(99)])
    many = many.and_one(passed=True)
    assert (many.total, many.to_pass, len(many.mistakes)) == (MAX_TRIES, 0, MAX_MISTAKES)
    assert from_metadata(many.as_metadata(NAME)) == (NAME, many)


def test_the_file_of_an_older_version_has_no_tries(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / f"{NAME}.json").write_text('{"passed": 2, "cases": 2, "at_s": 1.5}')
    assert checks.last_checks()[NAME].all_pass
    assert checks.remember(NAME, 2, 2) == Tries(total=1, to_pass=1)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"passed": "2", "cases": 2, "at_s": 0}', '{"passed": 1}', "\x00"]
)
def test_a_broken_file_counts_as_no_check(folder: Path, content: str) -> None:
    checks.remember(NAME, 2, 2)
    (folder / "broken.one.json").write_text(content)
    (folder / "a.folder.json").mkdir()
    assert list(checks.last_checks()) == [NAME]


@pytest.mark.ranks
def test_check_and_page_work_if_the_folder_cannot_be_created(folder: Path) -> None:
    folder.parent.write_text("a file in its place")
    check(NAME, right())
    assert checks.last_checks() == {}
    assert "No check has run" in repr(progress())


def test_a_result_is_replaced_atomically(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.remember(NAME, 1, 2)

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    checks.remember(NAME, 2, 2)
    assert [path.name for path in folder.iterdir()] == [f"{NAME}.json"]
    assert json.loads((folder / f"{NAME}.json").read_text())["passed"] == 1


def test_progress_names_what_to_do_next() -> None:
    assert "Start with 00 Start here" in repr(progress())
    checks.remember("one_device.step_bytes", 3, 3)
    assert repr(progress()).startswith("Continue with Lab 01 One device")
    html = progress()._repr_html_()
    assert 'data-lab="01_one_device" data-passed="1"' in html
    assert 'href="../labs/01_one_device/01_one_device.ipynb"' in html
    for name in Progress(progress().course, {}).exercises_of("01_one_device"):
        checks.remember(name, 1, 1)
    assert repr(progress()).startswith("Next: read 02 DP vs DDP\nThen write Lab 02 DP vs DDP")


def test_the_content_of_a_file_is_escaped_on_the_page() -> None:
    checks.remember("one_device.<script>", 1, 1)
    assert "<script>" not in progress()._repr_html_()
    assert Progress(course({}), {})._repr_html_()
