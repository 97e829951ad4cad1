"""Import order of the autograder packages: each imports only from those before it, so no cycles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.import_order import ImportOrder

AUTOGRADER = Path(__file__).parents[2] / "autograder"
# Ordered by trust: the first runs next to student code.
PACKAGES = (
    "guest",
    "exercise",
    "exercises",
    "course",
    "evaluation",
    "sandbox",
    "grading",
    "grading/submission",
    "build",
    "grading/notebook",
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
    "pages/formgrader",
    "pages/report",
    "pages/similar",
    "pages/archive",
    "pages/on_submit",
    "release",
    "mutants",
)
ORDER = ImportOrder(AUTOGRADER, PACKAGES)


def test_every_package_is_listed() -> None:
    assert ORDER.rooms_not_listed() == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_from_earlier_ones(package: str) -> None:
    assert ORDER.imports_of_later_rooms(package) == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert ORDER.cycle() == []


def test_shardlab_does_not_mention_the_autograder() -> None:
    library = AUTOGRADER.parent / "course" / "shardlab"
    assert [path for path in library.rglob("*.py") if "autograder" in path.read_text()] == []
