"""Import order of the autograder packages: each imports only from those before it, so no cycles."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import autograder
from tests.import_order import ImportOrder

AUTOGRADER = Path(__file__).parents[2] / "autograder"
README = AUTOGRADER.parent / "README.md"
# Ordered by trust: the first runs next to student code.
PACKAGES = (
    "guest",
    "exercise",
    "exercises",
    "course",
    "evaluation",
    "job",
    "sandbox",
    "build",
    "grading",
    "grading/notebook",
    "grading/submission",
    "grading/record",
    "grading/pool",
    "grading/gradebook",
    "grading/roster",
    "grading/collect",
    "grading/late",
    "grading/command",
    "pages",
    "pages/html",
    "pages/feedback",
    "pages/report",
    "pages/formgrader",
    "pages/similar",
    "pages/archive",
    "pages/on_submit",
    "release",
    "mutants",
)
ORDER = ImportOrder(AUTOGRADER, PACKAGES)


def test_every_package_is_listed() -> None:
    assert ORDER.rooms_not_listed() == set()


def test_the_readme_and_the_package_describe_every_room_in_this_order() -> None:
    rooms = list(dict.fromkeys(each.partition("/")[0] for each in PACKAGES))
    (row,) = re.findall(r"^\| `autograder/` \| .*", README.read_text(), re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == rooms
    assert re.findall(r"^    (\w+)", autograder.__doc__, re.MULTILINE) == rooms


def test_the_packages_in_a_room_follow_each_other() -> None:
    """So the order below is also one of whole rooms: no two of them import each other."""
    rooms = [room for room, _ in itertools.groupby(each.partition("/")[0] for each in PACKAGES)]
    assert len(rooms) == len(set(rooms))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_from_earlier_ones(package: str) -> None:
    assert ORDER.imports_of_later_rooms(package) == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert ORDER.cycle() == []


def test_shardlab_does_not_mention_the_autograder() -> None:
    library = AUTOGRADER.parent / "course" / "shardlab"
    assert [path for path in library.rglob("*.py") if "autograder" in path.read_text()] == []
