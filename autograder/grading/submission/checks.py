"""What a check cell of a lab asks for: which exercise, about which name of the student's."""

from __future__ import annotations

import ast
from dataclasses import dataclass


class BadCheck(ValueError):
    """A graded cell that does not hold one ``check("exercise", subject)``."""


@dataclass(frozen=True)
class Check:
    exercise: str  # "ring_all_reduce.reduce_scatter"
    subject: str  # the expression handed over, as written: "reduce_scatter"


def find_check(source: str) -> Check:
    """The only check call in a cell; raises BadCheck where there is none, or more than one.

    The cell must name its exercise in plain text: it is read, not run, so that nothing a student
    does can change which exercise is decided.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise BadCheck(f"cannot be read: {error.msg}") from error
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)
        and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) == "check"
    ]
    if len(calls) != 1:
        raise BadCheck(f'must hold one check("exercise", subject), and holds {len(calls)}')
    match calls[0].args:
        case [ast.Constant(value=str(exercise)), subject]:
            return Check(exercise, ast.unparse(subject))
        case _:
            raise BadCheck('must call check("exercise", subject) with the exercise in quotes')
