"""Small changes of a program's text: each mutant differs from the original in one place.

Changed are comparisons, conditions, constants, operators, operands, keyword arguments and
statements.  Docstrings, annotations, decorators and the parts of a message are left alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
CHOOSES_ONE = {"min", "max"}


@dataclass(frozen=True)
class Mutant:
    """``old`` on ``line`` (from 1) of the original has become ``new``."""

    line: int
    old: str
    new: str
    source: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.old}  →  {self.new or 'removed'}"


def mutants(source: str) -> list[Mutant]:
    """Every change of the program at one place, without repetitions. Raises SyntaxError."""
    tree = ast.parse(source)
    _without_docstrings(tree)
    found: dict[str, Mutant] = {}
    for path, node in _nodes(tree, ()):
        for changed in _changes(node):
            changed_source = _replaced(tree, path, changed)
            if changed_source is not None and changed_source not in found:
                new = "" if isinstance(changed, ast.Pass) else _first_line(changed)
                mutant = Mutant(_line_of(node), _first_line(node), new, changed_source)
                found[changed_source] = mutant
    found.pop(ast.unparse(tree), None)
    return list(found.values())


def normalized(source: str) -> str:
    """The same text for programs that differ only in layout, comments and docstrings."""
    tree = ast.parse(source)
    _without_docstrings(tree)
    return ast.unparse(tree)


Path = tuple[tuple[str, int | None], ...]  # from the module: (field, index in it if it is a list)


def _nodes(node: ast.AST, path: Path) -> Iterator[tuple[Path, ast.AST]]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(node, ast.JoinedStr | ast.Raise) or (
            isinstance(node, ast.Assert) and name == "msg"
        ):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                here: Path = (*path, (name, index))
                yield here, child
                yield from _nodes(child, here)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    for kind, change in _CHANGES:
        if isinstance(node, kind):
            yield from change(node)


def _compared(node: ast.Compare) -> Iterator[ast.AST]:
    for index, operator in enumerate(node.ops):
        yield _with(node, ops=_put(node.ops, index, COMPARISONS[type(operator)]()))


def _constant(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)


def _operated(node: ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node.left, ast.JoinedStr) or _is_text(node.left):
        return
    if type(node.op) in OPERATORS:
        yield _with(node, op=OPERATORS[type(node.op)]())
    yield node.left
    yield node.right


def _signed(node: ast.UnaryOp) -> Iterator[ast.AST]:
    yield node.operand


def _joined(node: ast.BoolOp) -> Iterator[ast.AST]:
    for index in range(len(node.values)):
        rest = node.values[:index] + node.values[index + 1 :]
        yield rest[0] if len(rest) == 1 else _with(node, values=rest)


def _called(node: ast.Call) -> Iterator[ast.AST]:
    for index in range(len(node.keywords)):
        yield _with(node, keywords=node.keywords[:index] + node.keywords[index + 1 :])
    if isinstance(node.func, ast.Name) and node.func.id in CHOOSES_ONE:
        plain = [e for e in node.args if not isinstance(e, ast.Starred | ast.GeneratorExp)]
        yield from plain


def _sliced(node: ast.Slice) -> Iterator[ast.AST]:
    for name in ("lower", "upper", "step"):
        if getattr(node, name) is not None:
            yield _with(node, **{name: None})


def _conditional(node: ast.If | ast.IfExp | ast.While) -> Iterator[ast.AST]:
    yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.If):
        yield ast.If(ast.Constant(True), node.body, [])


def _updated(node: ast.AugAssign) -> Iterator[ast.AST]:
    if type(node.op) in OPERATORS:
        yield _with(node, op=OPERATORS[type(node.op)]())
    yield ast.Assign([node.target], node.value, lineno=node.lineno)


def _removed(node: ast.stmt) -> Iterator[ast.AST]:
    # Removing a name's definition only causes a NameError.
    if isinstance(node, ast.Assign) and all(map(_is_name, node.targets)):
        return
    is_empty = isinstance(node, ast.Expr | ast.AnnAssign) and isinstance(
        node.value, ast.Constant | type(None)
    )
    if not isinstance(node, _NOT_REMOVED) and not is_empty:
        yield ast.Pass()


def _is_name(target: ast.AST) -> bool:
    return isinstance(target, ast.Name) or (
        isinstance(target, ast.Tuple) and all(map(_is_name, target.elts))
    )


_NOT_REMOVED = (
    *(ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass),
    *(ast.Global, ast.Nonlocal),
)
# Which changes a kind of node allows
_CHANGES: tuple[tuple[type | tuple[type, ...], Callable[..., Iterator[ast.AST]]], ...] = (
    (ast.Compare, _compared),
    (ast.Constant, _constant),
    (ast.BinOp, _operated),
    (ast.UnaryOp, _signed),
    (ast.BoolOp, _joined),
    (ast.Call, _called),
    (ast.Slice, _sliced),
    ((ast.If, ast.IfExp, ast.While), _conditional),
    (ast.AugAssign, _updated),
    (ast.stmt, _removed),
)


def _replaced(tree: ast.Module, path: Path, new: ast.AST) -> str | None:
    """The program with ``new`` at ``path``; None if that is not a program."""
    changed = copy.deepcopy(tree)
    node: ast.AST = changed
    for name, index in path[:-1]:
        child = getattr(node, name)
        node = child if index is None else child[index]
    name, index = path[-1]
    if index is None:
        setattr(node, name, copy.deepcopy(new))
    else:
        getattr(node, name)[index] = copy.deepcopy(new)
    try:
        source = ast.unparse(ast.fix_missing_locations(changed))
        compile(source, "<mutant>", "exec")
    except (SyntaxError, ValueError, TypeError):  # such as an operand in place of a target
        return None
    return source


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _put(items: list[Any], index: int, item: object) -> list[Any]:
    return [*items[:index], item, *items[index + 1 :]]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _without_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]


def _line_of(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _first_line(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).splitlines()[0]
