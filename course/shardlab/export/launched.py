"""Finds the launch of a function in a chapter, and the loops around it."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardlab.export.needed import CannotExport, bound
from shardlab.notebook_code.cells import Statement, launches

# Arguments of launch that say how to start ranks, which torchrun has done here.
OF_LAUNCH = {"world_size", "timeout_s", "device", "quiet", "memory", "engine"}
Loop = ast.For | ast.comprehension


@dataclass(frozen=True)
class Launched:
    """A call of `launch`. ``loops``: those whose variables its arguments use, outermost first."""

    index: int  # of the statement
    call: ast.Call
    loops: tuple[Loop, ...]
    inside: str = ""  # the function that contains it

    @property
    def function(self) -> str:
        return ast.unparse(self.call.args[0]) if self.call.args else ""

    def arguments(self) -> ast.Call:
        """The call without what only starts ranks."""
        kept = [each for each in self.call.keywords if each.arg not in OF_LAUNCH]
        return ast.Call(ast.Name("run_on_this_rank"), self.call.args, kept)


def all_launches(statements: Sequence[Statement]) -> list[Launched]:
    return [
        _in_context(index, statement.node, call)
        for index, statement in enumerate(statements)
        for call in launches(statement.node)
    ]


def _in_context(index: int, statement: ast.stmt, call: ast.Call) -> Launched:
    around = next(_paths_to(call, statement))
    inside = next(
        (
            each.name if isinstance(each, ast.FunctionDef) else "a lambda"
            for each in around
            if isinstance(each, ast.FunctionDef | ast.Lambda)
        ),
        "",
    )
    loops: list[Loop] = []
    for each in around:
        loops += [each] if isinstance(each, ast.For) else getattr(each, "generators", [])
    names = names_in(Launched(index, call, ()).arguments())
    needed: list[Loop] = []
    for loop in reversed(loops):  # an inner loop may run over an outer one's variable
        if names & _targets(loop):
            needed.insert(0, loop)
            names |= names_in(loop.iter)
    return Launched(index, call, tuple(needed), inside)


def _paths_to(call: ast.Call, node: ast.AST) -> Iterator[list[ast.AST]]:
    if node is call:
        yield []
    for child in ast.iter_child_nodes(node):
        for path in _paths_to(call, child):
            yield [node, *path]


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _targets(loop: Loop) -> set[str]:
    return names_in(loop.target)


def free_names(launched: Launched, statement: Statement) -> set[str]:
    """Names that the call and its loops take from the notebook. Raises CannotExport."""
    own: set[str] = set().union(*map(_targets, launched.loops))
    inner = {
        arg.arg
        for each in ast.walk(launched.call)
        if isinstance(each, ast.Lambda)
        for arg in each.args.args
    } | {
        name
        for each in ast.walk(launched.call)
        if isinstance(each, ast.comprehension)
        for name in _targets(each)
    }
    used = names_in(launched.arguments()).union(*(names_in(loop.iter) for loop in launched.loops))
    free = used - own - inner - {"run_on_this_rank"}
    in_block = isinstance(statement.node, ast.For | ast.While | ast.With | ast.If | ast.Try)
    if in_block and (set_there := free & bound(statement.node)):
        raise CannotExport(
            f"cell {statement.cell} sets {', '.join(sorted(set_there))} in the same block as this "
            "launch; only launches whose arguments are set before can be exported"
        )
    return free


def find(
    statements: Sequence[Statement], chapter: str, function: str, number: int | None
) -> Launched:
    """The launch of the function. ``number``: which of several, from 1. Raises CannotExport."""
    known = all_launches(statements)
    found = [each for each in known if each.function == function]
    if not found:
        names = list(dict.fromkeys(each.function for each in known))
        near = difflib.get_close_matches(function, names, n=3, cutoff=0.5) or names
        raise CannotExport(f"{chapter} launches no {function!r}; it launches {', '.join(near)}")
    if number is None and len(found) > 1:
        listed = [
            f"  --launch {place}: cell {statements[each.index].cell}: {ast.unparse(each.call)}"
            for place, each in enumerate(found, start=1)
        ]
        raise CannotExport(f"{chapter} launches {function} more than once:\n" + "\n".join(listed))
    if not 1 <= (number or 1) <= len(found):
        raise CannotExport(f"--launch {number}: there are {len(found)} of {function}")
    chosen = found[(number or 1) - 1]
    if chosen.inside:
        raise CannotExport(
            f"this launch is in {chosen.inside} (cell {statements[chosen.index].cell}), whose "
            "arguments are known only when it is called"
        )
    return chosen


def world_size_of(launched: Launched, statements: Sequence[Statement]) -> int | None:
    """The chapter's world size, if its text says it: a number, or a name or dict that holds it."""
    for keyword in launched.call.keywords:
        if keyword.arg == "world_size":
            return _number(keyword.value, launched.index, statements)
        if keyword.arg is None:
            options = _assigned(keyword.value, launched.index, statements)
            if isinstance(options, ast.Dict):
                for key, value in zip(options.keys, options.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "world_size":
                        return _number(value, launched.index, statements)
    return None


def _number(value: ast.expr, before: int, statements: Sequence[Statement]) -> int | None:
    found = _assigned(value, before, statements)
    if isinstance(found, ast.Constant) and isinstance(found.value, int):
        return found.value
    return None


def _assigned(value: ast.expr, before: int, statements: Sequence[Statement]) -> ast.expr | None:
    """What a name was last assigned; another expression itself."""
    if not isinstance(value, ast.Name):
        return value
    for statement in reversed(statements[:before]):
        if value.id in bound(statement.node):
            node = statement.node
            return node.value if isinstance(node, ast.Assign) else None
    return None
