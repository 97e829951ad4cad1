"""Which cells of a rebuilt notebook grading has to run: those that an answer may depend on.

A lab's cells between the answers mostly show something, such as a launch with a picture.  Running
them took a third of a submission's processor time and decided nothing.
"""

from __future__ import annotations

import ast
import functools
import re
import symtable
from collections.abc import Container, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from nbformat import NotebookNode

# With these, code can find a notebook's names without naming them.
FINDS_NAMES = frozenset({
    "__builtins__", "__import__", "__main__", "_", "__", "_ih", "_oh", "In", "Out", "eval", "exec",
    "gc", "get_ipython", "globals", "importlib", "inspect", "locals", "sys", "vars",
})  # fmt: skip
LINE_OF_IPYTHON = re.compile(r"^[%!].*", re.MULTILINE)  # such as %config


class _Names(NamedTuple):
    """What a cell's code does with the notebook's names."""

    used: frozenset[str]
    bound: frozenset[str]
    defined: frozenset[str]  # bound by import, def or class: code, not data
    changed: frozenset[str]  # assigned to a part of it, or passed to a call, which may change it


def cells_to_run(cells: Sequence[NotebookNode], lab_ids: Container[str]) -> set[int]:
    """Positions of the code cells to run.

    ``lab_ids``: of cells with the lab's own code, which contain no answer and no check.  All others
    run, and so does each that binds or may change what a cell that runs uses.  Where the notebook
    could find names in other ways, or contains magics or invalid code, all cells run.
    """
    code = {at: cell.source for at, cell in enumerate(cells) if cell.cell_type == "code"}
    to_run = {at for at in code if cells[at].id not in lab_ids}
    try:
        names = {
            at: _names_in(source if at in to_run else LINE_OF_IPYTHON.sub("", source))
            for at, source in code.items()
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {*code}
    needed = {name for at in to_run for name in names[at].used}
    if needed & FINDS_NAMES or any("*" in each.bound for each in names.values()):
        return {*code}
    defined = frozenset(chain.from_iterable(each.defined for each in names.values()))
    while True:
        data = {name for at in to_run for name in names[at].bound} - defined
        added = {
            at for at in {*code} - to_run if needed & (names[at].bound | names[at].changed & data)
        }
        if not added:
            return to_run
        to_run |= added
        needed |= {name for at in added for name in names[at].used}


@functools.lru_cache(maxsize=256)  # the lab's own cells are the same in each submission
def _names_in(source: str) -> _Names:
    table = symtable.symtable(source, "cell", "exec")
    symbols = table.get_symbols()
    inner = [symbol for scope in _scopes(table) for symbol in scope.get_symbols()]
    inner = [symbol for symbol in inner if symbol.is_global()]
    tree = ast.parse(source)
    bound = {each.get_name() for each in [*symbols, *inner] if each.is_assigned()}
    defined = {each.get_name() for each in symbols if each.is_imported() or each.is_namespace()}
    if any(isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(tree)):
        bound.add("*")
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    modules = {alias.name for node in imported for alias in node.names}
    used = {each.get_name() for each in [*symbols, *inner] if each.is_referenced()} | modules
    return _Names(*map(frozenset, (used, bound | defined, defined, _changed(tree))))


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _scopes(child)


def _changed(tree: ast.AST) -> Iterator[str]:
    """Outside functions: names of what gets a part assigned, is passed to a call or called."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield from _changed(node)
        is_changed = isinstance(node, ast.Call) or (
            isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
        )
        if is_changed:
            yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
