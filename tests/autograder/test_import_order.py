"""Import order of the autograder packages: each imports only from those before it, so no cycles."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import autograder

AUTOGRADER = Path(__file__).parents[2] / "autograder"
README = AUTOGRADER.parent / "README.md"
# Ordered by trust: the first runs next to student code.
PACKAGES = (
    "guest",
    "exercise",
    "exercises",
    "course",
    "evaluation",
    "sandbox",
    "build",
    "grading",
    "grading/submission",
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
INDEX = {package: index for index, package in enumerate(PACKAGES)}


def package_of(path: Path) -> str:
    """The innermost listed package of a module; "" for autograder itself."""
    parts = path.relative_to(AUTOGRADER).parts[:-1]
    found = ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
    return next((each for each in found if each in INDEX), "/".join(parts[:1]))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, package) of each import from autograder, including those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, *parts = name.split(".")
            if top == "autograder" and parts:
                yield node.lineno, package_of(AUTOGRADER.joinpath(*parts, "_"))


MODULES = sorted(AUTOGRADER.rglob("*.py"))


def test_every_package_is_listed() -> None:
    assert {package_of(path) for path in MODULES} - {""} == set(PACKAGES)


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
    wrong = [
        f"{path.relative_to(AUTOGRADER)}:{line} imports from {other}"
        for path in MODULES
        if package_of(path) == package
        for line, other in imported(path)
        if other and INDEX[other] > INDEX[package]
    ]
    assert wrong == []


def test_shardlab_does_not_mention_the_autograder() -> None:
    library = AUTOGRADER.parent / "course" / "shardlab"
    assert [path for path in library.rglob("*.py") if "autograder" in path.read_text()] == []
