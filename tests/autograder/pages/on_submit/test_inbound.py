"""Which folders of the exchange are submissions: students can put anything there."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from autograder.pages.on_submit.inbound import INCOMPLETE_S, Inbound

LAB = "03_ring_all_reduce"
ME = getpass.getuser()


def submit(folder: Path, name: str, secret: str = "s" * 16) -> Path:
    place = folder / name
    place.mkdir()
    if secret:
        (place / "submission_secret.txt").write_text(secret)
    return place


def name_of(student: str, hour: int, lab: str = LAB) -> str:
    return f"{student}+{lab}+2026-10-01 {hour:02}:00:00.000000 UTC+x{hour}"


def test_new_submissions_are_found_once_and_in_order_of_arrival(tmp_path: Path) -> None:
    inbound = Inbound(tmp_path, [LAB], check_owner=False)
    assert inbound.poll() == ([], [])
    for student, hour in (("cid", 9), ("ann", 12), ("bob", 11), ("ann", 10)):
        submit(tmp_path, name_of(student, hour))
    submit(tmp_path, name_of("ann", 8, "04_zero"))
    assert inbound.poll() == ([("cid", LAB), ("ann", LAB), ("bob", LAB)], [])
    assert inbound.poll() == ([], [])
    again = name_of("ann", 13)
    submit(tmp_path, again)
    assert inbound.poll() == ([("ann", LAB)], [])
    assert inbound.submissions["ann", LAB] == {name_of("ann", 10), name_of("ann", 12), again}


def test_only_the_students_own_folder_counts(tmp_path: Path) -> None:
    submit(tmp_path, name_of(ME, 9))
    submit(tmp_path, name_of("ann", 10))
    new, ignored = Inbound(tmp_path, [LAB], check_owner=True).poll()
    assert new == [(ME, LAB)]
    (why,) = ignored
    assert f"it belongs to the user {ME}" in why
    assert "c.ExchangeCollect.check_owner = False" in why


def test_a_submission_is_read_once_it_is_complete(tmp_path: Path) -> None:
    now_s = 0.0
    inbound = Inbound(tmp_path, [LAB], check_owner=False, clock=lambda: now_s)
    place = submit(tmp_path, name_of("ann", 9), secret="")
    submit(tmp_path, name_of("bob", 9), secret="")
    assert inbound.poll() == ([], [])
    (place / "submission_secret.txt").write_text("s" * 16)
    now_s = INCOMPLETE_S
    new, ignored = inbound.poll()
    assert new == [("ann", LAB)]
    (why,) = ignored
    assert "bob+" in why
    assert "it is incomplete" in why
    assert inbound.poll() == ([], [])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (name_of("a*", 9), "contains *, which is special in nbgrader"),
        (name_of("", 9), "the student's name is empty"),
        (f"ann+{LAB}+yesterday+x", "its name has no time"),
    ],
)
def test_other_names_are_ignored(tmp_path: Path, name: str, says: str) -> None:
    submit(tmp_path, name)
    new, ignored = Inbound(tmp_path, [LAB], check_owner=False).poll()
    assert new == []
    (why,) = ignored
    assert says in why


def test_links_and_files_are_ignored(tmp_path: Path) -> None:
    inbound = tmp_path / "inbound"
    inbound.mkdir()
    (inbound / name_of("ann", 9)).symlink_to(submit(tmp_path, "secrets"))
    (inbound / name_of("bob", 9)).write_text("")
    new, ignored = Inbound(inbound, [LAB], check_owner=False).poll()
    assert new == []
    assert len(ignored) == 2
    assert all("it is not a folder" in why for why in ignored)
