"""A record and its task: plain data, complete or rejected."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from autograder.grading.pool.journal import Journal, JournalError
from autograder.grading.record.record import GRADED, BrokenRecord, Record, Task, failed

TASK = Task("03_ring", "ann", b"{}", "", {"cells": []}, seed=1, limits={"cell_s": 60}, code="c0")


def record(student: str = "ann", points: float = 2.0) -> Record:
    return Record(
        "03_ring", student, TASK.key, TASK.submission_hash, GRADED, "",
        notes=("Cells had been moved.",), notebook={"cells": []},
        points={"check_a": points}, verdicts={"check_a": {"points": points}},
        pictures={"check_a": [{"title": "traffic", "svg": "<svg/>"}]}, timing={"ran_s": 1.5},
    )  # fmt: skip


def test_a_record_is_read_as_it_was_written() -> None:
    assert Record.from_json(record().to_json()) == record()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"lab": 1}', "[" * 100_000]
    + [record().to_json().replace('"graded"', bad) for bad in ('"great"', "1", "null")]
    + [record().to_json()[:-20], record().to_json().replace('"points": {', '"pints": {')],
)
def test_an_incomplete_record_is_rejected(text: str) -> None:
    with pytest.raises(BrokenRecord):
        Record.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"submitted": b"{ }"}, {"submitted": None}, {"unreadable": "why"}, {"seed": 2},
        {"template": {"cells": [1]}}, {"limits": {"cell_s": 61}}, {"code": "c1"}, {"lab": "04"},
        {"notes": ("repaired",)},
    ],
)  # fmt: skip
def test_everything_that_decides_a_grade_is_in_its_key(change: dict[str, object]) -> None:
    assert replace(TASK, **change).key != TASK.key  # type: ignore[arg-type]


def test_the_key_does_not_depend_on_the_student() -> None:
    assert replace(TASK, student="bob", timeout_s=1).key == TASK.key


def test_two_gradings_differ_only_in_times() -> None:
    again = replace(record(), timing={"ran_s": 9.0}, notebook={"cells": [1]}, pictures={})
    assert again.decided() == record().decided()
    assert record(points=1).decided() != record().decided()


def test_a_failure_has_no_points() -> None:
    assert not failed(TASK, "no memory").is_final
    assert failed(TASK, "no memory").points == {}


# ---- the journal


def test_records_are_kept_by_lab_and_student(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "03_ring")
    assert journal.read("ann") is None
    journal.write(record("ann"))
    journal.write(record("bob", 1.0))
    assert journal.read("bob") == record("bob", 1.0)
    assert journal.students() == ["ann", "bob"]
    assert sorted(path.name for path in (tmp_path / "03_ring").iterdir()) == [
        "ann.json", "bob.json",
    ]  # fmt: skip


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_earlier_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    journal = Journal(tmp_path, "03_ring")
    journal.write(record(points=2))

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, no_room)
    with pytest.raises(JournalError, match=r"No space left on device.*free disk space"):
        journal.write(record(points=1))
    monkeypatch.undo()
    assert journal.read("ann") == record(points=2)
    assert [path.name for path in journal.folder.iterdir()] == ["ann.json"]


def test_a_broken_or_swapped_file_is_rejected(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "03_ring")
    journal.write(record("ann"))
    os.replace(journal.path("ann"), journal.path("bob"))
    with pytest.raises(BrokenRecord, match="the record of ann"):
        journal.read("bob")
    journal.path("bob").write_text('{"lab": "03_ring", ')
    with pytest.raises(BrokenRecord):
        journal.read("bob")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        Journal(tmp_path, "03_ring").locked(),
        pytest.raises(JournalError, match=f"already being graded by process {os.getpid()}"),
        Journal(tmp_path, "03_ring").locked(),
    ):
        pass
    with Journal(tmp_path, "03_ring").locked(), Journal(tmp_path, "04_zero").locked():
        pass
