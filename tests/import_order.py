"""Which rooms of a package import which, read from its source: imports inside functions count."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


class ImportOrder:
    """A package divided into rooms: listed folders, and modules that are in no folder.

    A folder that is not listed belongs to the one around it. The package's own __init__ and
    __main__ come last.
    """

    def __init__(self, package: Path, rooms: Sequence[str]) -> None:
        self.package = package
        self.rooms = [*rooms, ""]
        self.modules = sorted(package.rglob("*.py"))

    def rooms_not_listed(self) -> set[str]:
        """Rooms that the list lacks, and names in it that are no room."""
        return {self._room(path) for path in self.modules} ^ {*self.rooms}

    def imports_of_later_rooms(self, room: str) -> list[str]:
        later = self.rooms[self.rooms.index(room) + 1 :]
        return [
            f"{self._name(path)}:{line} imports {self._name(other)}"
            for path in self.modules
            if self._room(path) == room
            for line, other in self._imported(path)
            if self._room(other) in later
        ]

    def cycle(self) -> list[str]:
        """Modules that import each other in a circle; empty if there are none."""
        graph = {path: [other for _, other in self._imported(path)] for path in self.modules}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            return [self._name(path) for path in error.args[1]]
        return []

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.package))

    def _room(self, path: Path) -> str:
        """The innermost listed room of a module; if there is none, its outermost folder."""
        *folders, module = path.relative_to(self.package).parts
        if not folders:
            return "" if module in ("__init__.py", "__main__.py") else module.removesuffix(".py")
        found = ["/".join(folders[:depth]) for depth in range(len(folders), 0, -1)]
        return next((each for each in found if each in self.rooms), folders[0])

    def _imported(self, path: Path) -> Iterator[tuple[int, Path]]:
        """(line, module) of each import from the package."""
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                top, *parts = name.split(".")
                if top == self.package.name and parts and (found := self._module(parts)) != path:
                    yield node.lineno, found

    def _module(self, parts: Sequence[str]) -> Path:
        """The module that these names lead to; the last may be of something in it."""
        inside = self.package.joinpath(*parts)
        for path in (inside.with_suffix(".py"), inside / "__init__.py"):
            if path.exists():
                return path
        return self._module(parts[:-1])
