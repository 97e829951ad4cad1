import os
from pathlib import Path

import pytest

from shardlab.trace.disk_recorder import Disk, disk_changes, snapshot


def save(folder: Path) -> None:
    (folder / "new").mkdir()
    with open(folder / "new/a", "wb") as file:
        file.write(b"12")
        file.write(b"3")  # in Python's buffer until the flush
        file.flush()
        os.fsync(file.fileno())
        file.write(b"45")
    (folder / "new/b").write_text("text")
    os.rename(folder / "new", folder / "done")
    (folder / "old").unlink()


@pytest.fixture
def recorded(tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "old").write_bytes(b"before")
    before = snapshot(folder)
    with disk_changes(folder) as changes:
        save(folder)
        (tmp_path / "elsewhere").write_text("not recorded")
    return folder, before, changes


def test_changes_are_recorded_in_the_order_the_operating_system_received_them(recorded):
    _, _, changes = recorded
    assert [(change.op, change.path, change.to, change.data) for change in changes] == [
        ("mkdir", "new", "", b""),
        ("create", "new/a", "", b""),
        ("write", "new/a", "", b"123"),
        ("fsync", "new/a", "", b""),
        ("write", "new/a", "", b"45"),
        ("create", "new/b", "", b""),
        ("write", "new/b", "", b"text"),
        ("rename", "new", "done", b""),
        ("remove", "old", "", b""),
    ]
    times = [change.at_s for change in changes]
    assert times == sorted(times)


def test_replaying_all_changes_reproduces_the_folder(recorded, tmp_path):
    folder, before, changes = recorded
    disk = Disk(before)
    for change in changes:
        disk.apply(change)
    copy = tmp_path / "copy"
    disk.write_to(copy)
    assert snapshot(copy) == snapshot(folder) == {"done/a": b"12345", "done/b": b"text"}


def test_bytes_without_a_later_fsync_are_lost_in_a_power_failure(recorded, tmp_path):
    _, before, changes = recorded
    disk = Disk(before)
    for change in changes:
        disk.apply(change)
    disk.write_to(tmp_path / "lost", only_synced=True)
    assert snapshot(tmp_path / "lost") == {"done/a": b"123", "done/b": b""}


def test_nothing_is_recorded_afterwards(recorded):
    folder, _, changes = recorded
    count = len(changes)
    (folder / "later").write_text("later")
    assert len(changes) == count
