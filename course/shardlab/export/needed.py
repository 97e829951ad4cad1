"""The statements of a notebook that some names need, found in its syntax tree."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardlab.notebook_code.cells import Statement, launches

BUILTIN = {*dir(builtins), "__file__", "__name__"}


class CannotExport(Exception):
    """The message says why, and what to do."""


@dataclass
class Needed:
    """Collects statements: `Needed(statements, end).add(names)`, then ``chosen``.

    ``end``: the index of the statement that calls `launch`; what comes after it does not count.
    """

    statements: Sequence[Statement]
    end: int
    chosen: dict[int, set[str]] = field(default_factory=dict)  # index -> names it was chosen for

    def add(self, names: set[str], why: str) -> None:
        """Raises CannotExport for a name that the notebook does not define before `launch`, or only
        by another launch."""
        waiting = [(name, self.end) for name in sorted(names - BUILTIN)]
        while waiting:
            name, before = waiting.pop()
            at = self._binding(name, before)
            if at is None:
                raise CannotExport(f"{why} needs {name!r}, which no cell before it defines")
            for index in [at, *self._changes(name, at)]:
                if name in self.chosen.setdefault(index, set()):
                    continue
                self.chosen[index].add(name)
                waiting += self._needs_of(index, name)

    def _binding(self, name: str, before: int) -> int | None:
        """The last statement before this one that binds the name."""
        found = [i for i in range(before) if name in bound(self.statements[i].node)]
        return found[-1] if found else None

    def _changes(self, name: str, bound_at: int) -> Iterator[int]:
        """Later statements that change the object: ``runs[1] = …``, ``rows.append(…)``."""
        if isinstance(self.statements[bound_at].node, ast.Import | ast.ImportFrom):
            return
        for index in range(bound_at + 1, self.end):
            if name in changed(self.statements[index].node):
                yield index

    def _needs_of(self, index: int, name: str) -> Iterator[tuple[str, int]]:
        statement = self.statements[index]
        node = statement.node
        if isinstance(node, ast.Import | ast.ImportFrom):
            return
        if next(launches(node), None) is not None and not _defines(node):
            raise CannotExport(
                f"it needs {name!r}, the result of another launch (cell {statement.cell}): that "
                "launch has to run first, so this one cannot run alone"
            )
        now, later = used(statement.text)
        yield from ((each, index) for each in sorted(now - BUILTIN) if self._is_global(each, index))
        yield from ((each, self.end) for each in sorted(later - BUILTIN))

    def _is_global(self, name: str, index: int) -> bool:
        """A name that the statement binds itself, such as a loop's variable, is none; but it is in
        ``count += 1``."""
        node = self.statements[index].node
        return name not in bound(node) or self._binding(name, index) is not None

    def imports(self) -> list[str]:
        """The chosen imports, with only the names that are needed."""
        lines = []
        for index, names in sorted(self.chosen.items()):
            node = self.statements[index].node
            if isinstance(node, ast.Import | ast.ImportFrom):
                lines += list(_without_others(node, names))
        return list(dict.fromkeys(lines))

    def definitions(self) -> list[str]:
        nodes = [self.statements[index] for index in sorted(self.chosen)]
        return [
            each.text for each in nodes if not isinstance(each.node, ast.Import | ast.ImportFrom)
        ]


def _defines(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _without_others(node: ast.Import | ast.ImportFrom, names: set[str]) -> Iterator[str]:
    for alias in node.names:
        if _name_of(alias) in names:
            if isinstance(node, ast.Import):
                yield ast.unparse(ast.Import([alias]))
            else:
                yield ast.unparse(ast.ImportFrom(node.module, [alias], node.level))


def _name_of(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def bound(node: ast.stmt) -> set[str]:
    """Names that a top-level statement binds, also inside its blocks, but not in functions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    found = set()
    for each in _outside_of_functions(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found.add(each.id)
        elif isinstance(each, ast.alias):
            found.add(_name_of(each))
        elif isinstance(each, ast.FunctionDef | ast.ClassDef):
            found.add(each.name)
    return found


def changed(node: ast.stmt) -> set[str]:
    """Names whose objects a statement changes: an item, an attribute, or by a method's call."""
    found = set()
    for each in _outside_of_functions(node):
        if isinstance(each, ast.Subscript | ast.Attribute) and isinstance(each.ctx, ast.Store):
            found.add(_root(each))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        found.add(_root(node.value.func) if isinstance(node.value.func, ast.Attribute) else "")
    return found - {""}


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what it contains, without the insides of functions and comprehensions."""
    yield node
    hidden = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    if isinstance(node, (*hidden, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _outside_of_functions(child)


def used(text: str) -> tuple[set[str], set[str]]:
    """Global names that a statement's code uses: when it runs, and in functions, when called."""
    table = symtable.symtable(text, "<cell>", "exec")
    now = {each.get_name() for each in table.get_symbols() if each.is_referenced()}
    later: set[str] = set()
    waiting = [(child, _runs_at_once(child)) for child in table.get_children()]
    while waiting:
        scope, at_once = waiting.pop()
        names = {each.get_name() for each in scope.get_symbols() if each.is_global()}
        (now if at_once else later).update(names)
        waiting += [(child, at_once and _runs_at_once(child)) for child in scope.get_children()]
    return now, later


def _runs_at_once(scope: symtable.SymbolTable) -> bool:
    return scope.get_type() == "class" or scope.get_name() in (
        *("listcomp", "setcomp", "dictcomp", "genexpr"),
    )
