"""Python's scopes in a syntax tree: the names that a function binds, and those that it reads."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
DEFINES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def nodes_of(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of a scope, with its classes, but without the functions inside it."""
    waiting = [*body][::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function):
            waiting += [*ast.iter_child_nodes(node)][::-1]


def body_of(function: Function) -> list[ast.AST]:
    return [function.body] if isinstance(function, ast.Lambda) else [*function.body]


def around(function: Function) -> list[ast.AST]:
    """Its parts that are evaluated where it is defined: decorators, defaults, annotations."""
    given = function.args
    parts = [*given.defaults, *given.kw_defaults, *(each.annotation for each in parameters(given))]
    if not isinstance(function, ast.Lambda):
        parts += [*function.decorator_list, function.returns]
    return [part for part in parts if part is not None]


def parameters(given: ast.arguments) -> list[ast.arg]:
    found = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [each for each in found if each is not None]


def defaults(given: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    """(parameter, its default value)"""
    positional = [*given.posonlyargs, *given.args]
    for each, value in zip(positional[::-1], given.defaults[::-1], strict=False):
        yield each.arg, value
    for each, keyword in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if keyword is not None:
            yield each.arg, keyword


def assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of an assignment, also of ``a, b = c, d`` and ``(a := b)``."""
    pairs: list[tuple[ast.expr, ast.expr]]
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs = [(target, value) for target in targets]
        case ast.AnnAssign(value=ast.expr() as value) | ast.NamedExpr(value=value):
            pairs = [(node.target, value)]
        case _:
            return
    for target, value in pairs:
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for each, part in zip(target.elts, value.elts, strict=False):
                if isinstance(each, ast.Name):
                    yield each.id, part


def declared(body: Iterable[ast.AST], kinds: type[ast.AST] | tuple[type[ast.AST], ...]) -> set[str]:
    return {name for node in nodes_of(body) if isinstance(node, kinds) for name in node.names}  # type: ignore[attr-defined]


def bound_in(function: Function) -> set[str]:
    """The local names of a function."""
    body = body_of(function)
    found = {each.arg for each in parameters(function.args)}
    for node in nodes_of(body):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                found.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {each.asname or each.name.partition(".")[0] for each in names}
    return found - declared(body, (ast.Global, ast.Nonlocal))


def names_read(node: ast.AST) -> set[str]:
    """The names that it takes from the scope around it."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return {node.target.id} | names_read(node.value)
    if isinstance(node, Function):
        inside = set().union(*map(names_read, body_of(node))) - bound_in(node)
        return inside.union(*map(names_read, around(node)))
    found: set[str] = set().union(*map(names_read, ast.iter_child_nodes(node)))
    if isinstance(node, Comprehension):
        targets = [ast.walk(each.target) for each in node.generators]
        found -= {name.id for each in targets for name in each if isinstance(name, ast.Name)}
    return found
