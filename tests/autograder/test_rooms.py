"""The order of autograder's rooms: each imports from those before it only, and so in no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

AUTOGRADER = Path(__file__).parents[2] / "autograder"
# By whose code runs next to theirs, from the student's on.
ROOMS = (
    "guest",
    "exercise",
    "exercises",
    "evaluation",
    "sandbox",
    "grading",
    "grading/submission",
    "grading/notebook",
    "grading/record",
    "grading/pool",
    "grading/gradebook",
    "grading/command",
    "pages",
    "pages/html",
    "pages/feedback",
    "pages/formgrader",
    "pages/report",
    "build",
    "release",
)
PLACE = {room: place for place, room in enumerate(ROOMS)}


def room_of(path: Path) -> str:
    """The innermost room that a module lies in; "" for the package itself."""
    parts = path.relative_to(AUTOGRADER).parts[:-1]
    found = ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
    return next((each for each in found if each in PLACE), "/".join(parts[:1]))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, room) of each import from autograder, those within functions as well."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, *parts = name.split(".")
            if top == "autograder" and parts:
                yield node.lineno, room_of(AUTOGRADER.joinpath(*parts, "_"))


MODULES = sorted(AUTOGRADER.rglob("*.py"))


def test_every_folder_is_a_room() -> None:
    assert {room_of(path) for path in MODULES} - {""} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_no_import_goes_up(room: str) -> None:
    up = [
        f"{path.relative_to(AUTOGRADER)}:{line} imports from {other}"
        for path in MODULES
        if room_of(path) == room
        for line, other in imported(path)
        if other and PLACE[other] > PLACE[room]
    ]
    assert up == []


def test_the_library_knows_nothing_of_grading() -> None:
    library = AUTOGRADER.parent / "course" / "shardlab"
    assert [path for path in library.rglob("*.py") if "autograder" in path.read_text()] == []
