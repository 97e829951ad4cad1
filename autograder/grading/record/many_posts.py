"""Finds code that posts thousands of sends or receives: loops with as many rounds, however written.

The numbers are estimates: of a loop whose rounds the source does not say, one round counts.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autograder.grading.record.source_scopes import (
    Comprehension,
    Function,
    assigned,
    body_of,
    bound_in,
    defaults,
    nodes_of,
)

MANY = 1000  # posted by one statement
POSTING = {f"torch.distributed.{name}" for name in ("isend", "irecv", "P2POp")}
NESTED_CALLS = 4  # of functions that post, which are followed
LARGEST = 10**9  # a number that is computed here


@dataclass(frozen=True)
class Sizes:
    """Whole numbers, and rounds of a loop over a name, as far as the source says them."""

    numbers: Mapping[str, int]
    lengths: Mapping[str, float]

    def inside(self, function: Function) -> Sizes:
        local = bound_in(function)
        outer = Sizes(
            {name: n for name, n in self.numbers.items() if name not in local},
            {name: n for name, n in self.lengths.items() if name not in local},
        )
        given = [(name, value) for name, value in defaults(function.args)]
        return outer.with_assigned(
            [*given, *(pair for node in nodes_of(body_of(function)) for pair in assigned(node))]
        )

    def with_assigned(self, pairs: Sequence[tuple[str, ast.expr]]) -> Sizes:
        numbers, lengths = {**self.numbers}, {**self.lengths}
        found = Sizes(numbers, lengths)
        for _ in range(2):  # a name may be computed from one that is assigned further down
            for name, value in pairs:
                if (number := found.number(value)) is not None:
                    numbers[name] = max(number, numbers.get(name, number))
                elif (rounds := found.rounds(value)) > 1:
                    lengths[name] = max(rounds, lengths.get(name, rounds))
        return found

    def number(self, node: ast.expr) -> int | None:
        match node:
            case ast.Constant(value=int(value)):
                return int(value)
            case ast.Name(id=name):
                return self.numbers.get(name)
            case ast.Call(func=ast.Name(id="int" | "round" | "abs"), args=[ast.Constant(value=v)]):
                return int(v) if isinstance(v, int | float) and abs(v) < LARGEST else None
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self.number(left), self.number(right)
                if a is None or b is None or max(abs(a), abs(b)) > LARGEST:
                    return None
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.FloorDiv() if b:
                        return a // b
                    case ast.LShift() if 0 <= b < 30:
                        return a << b
                    case ast.Pow() if 0 <= b < 30 and abs(a) < 1000:
                        return int(a**b)
        return None

    def largest_in(self, *nodes: ast.AST) -> int:
        found = [1]
        for node in nodes:
            known = self.number(node) if isinstance(node, ast.expr) else None
            children = ast.iter_child_nodes(node)
            found.append(self.largest_in(*children) if known is None else known)
        return max(found)

    def rounds(self, node: ast.expr) -> float:
        """Of a loop over it; 1 if unknown."""
        match node:
            case ast.Name(id=name):
                return self.lengths.get(name, 1)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                stars = (each.value for each in parts if isinstance(each, ast.Starred))
                return len(parts) + sum(self.rounds(each) - 1 for each in stars)
            case ast.Constant(value=str(text) | bytes(text)):
                return len(text)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                times = self.largest_in(left, right)
                return times * max(self.rounds(left), self.rounds(right))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.rounds(left) + self.rounds(right)
            case (
                ast.ListComp(generators=loops)
                | ast.SetComp(generators=loops)
                | ast.GeneratorExp(generators=loops)
            ):
                return math.prod(self.rounds(loop.iter) for loop in loops)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
                return self._of_call(name, args)
        return 1

    def _of_call(self, name: str, args: Sequence[ast.expr]) -> float:
        if name == "range":
            known = [number for each in args if (number := self.number(each)) is not None]
            if len(known) == len(args) and 0 < len(args) <= 3 and 0 not in known[2:]:
                return len(range(*known))
            return self.largest_in(*args[:2])  # a large step makes few rounds
        if name in ("arange", "islice", "repeat"):
            return self.largest_in(*args[:2]) if name != "repeat" or args[1:] else math.inf
        if name in ("count", "cycle"):
            return math.inf
        if name == "zip":
            return min((r for each in args if (r := self.rounds(each)) > 1), default=1)
        return max(map(self.rounds, args), default=1)


class Posts:
    """``most(statement)``: how many sends and receives it may post.

    ``is_posting``: whether an expression names a function of torch.distributed that posts one.
    """

    def __init__(self, tree: ast.Module, is_posting: Callable[[ast.expr], bool]) -> None:
        self.is_posting = is_posting
        self.functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self.of_function: dict[str, float] = {}
        pairs = [pair for node in nodes_of(tree.body) for pair in assigned(node)]
        self.sizes = Sizes({}, {}).with_assigned(pairs)
        posted = [*filter(self._posts_itself, ast.walk(tree))]
        for _ in range(NESTED_CALLS if posted else 0):
            self.of_function = {
                each.name: most
                for each in self.functions
                if (most := self._sum(each.body, self.sizes.inside(each)))
            }

    def _posts_itself(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and self.is_posting(node.func)

    def found(self, statements: Sequence[ast.stmt]) -> Iterator[tuple[int, float]]:
        """(line, how many) of the innermost loops that post MANY or more."""
        for statement in statements:
            for node, sizes in _with_sizes(statement, self.sizes):
                most = self._most(node, sizes)
                children = [self._most(each, sizes) for each in ast.iter_child_nodes(node)]
                if most >= MANY and max(children, default=0) < MANY and hasattr(node, "lineno"):
                    yield node.lineno, most

    def _sum(self, nodes: Sequence[ast.AST], sizes: Sizes) -> float:
        return sum(self._most(each, sizes) for each in nodes)

    def _most(self, node: ast.AST, sizes: Sizes) -> float:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return 0  # where it is called
            case ast.Lambda(body=body):
                return self._most(body, sizes.inside(node))
            case ast.For(iter=over, body=body):
                return self._in_rounds(sizes.rounds(over), body, sizes)
            case ast.While(test=test, body=body):
                return self._in_rounds(_rounds_of_while(test, sizes), body, sizes)
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                return self._in_rounds(sizes.largest_in(left, right), [left, right], sizes)
            case ast.Call(func=ast.Name(id="map"), args=[called, *over]):
                rounds = max(map(sizes.rounds, over), default=1)
                own = self._of_callee(called)
                return rounds * own if own else self._in_rounds(rounds, [called], sizes)
            case ast.Call(func=func):
                return self._of_callee(func) + self._sum([*ast.iter_child_nodes(node)], sizes)
        parts = [*ast.iter_child_nodes(node)]
        if isinstance(node, Comprehension):
            rounds = math.prod(sizes.rounds(loop.iter) for loop in node.generators)
            return self._in_rounds(rounds, parts, sizes)
        return self._sum(parts, sizes)

    def _in_rounds(self, rounds: float, body: Sequence[ast.AST], sizes: Sizes) -> float:
        """A loop without an end that waits has few requests open at a time."""
        if not (posted := self._sum(body, sizes)):
            return 0
        attributes = (node.attr for node in nodes_of(body) if isinstance(node, ast.Attribute))
        return posted if rounds == math.inf and "wait" in attributes else rounds * posted

    def _of_callee(self, func: ast.AST) -> float:
        if isinstance(func, ast.expr) and self.is_posting(func):
            return 1
        name = getattr(func, "id", getattr(func, "attr", ""))
        return self.of_function.get(name, 0)


def _with_sizes(node: ast.AST, sizes: Sizes) -> Iterator[tuple[ast.AST, Sizes]]:
    """Each node below it, with the sizes of its scope."""
    yield node, sizes
    inner = sizes.inside(node) if isinstance(node, Function) else sizes
    for child in ast.iter_child_nodes(node):
        yield from _with_sizes(child, inner)


def _rounds_of_while(test: ast.expr, sizes: Sizes) -> float:
    match test:
        case ast.Constant(value=value) if value:
            return math.inf
        case ast.Compare() | ast.BoolOp() | ast.Name():
            return sizes.largest_in(test)
    return 1
