"""The text of the script that checks an answer of a lab's notebook on the ranks of a job."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from autograder import exercises
from autograder.course.pages import LABS
from shardlab.export.needed import CannotExport, Needed
from shardlab.export.script import RENDEZVOUS
from shardlab.notebook_code.cells import Statement, statements

HEAD = '''"""{answer} of lab {lab}, checked on the ranks of a job.

On one node, then on each of two nodes, with the first one's name for HEAD:

    torchrun --nproc-per-node {ranks} {name}
    torchrun --nnodes 2 --nproc-per-node {per_node} {rendezvous} {name}

Every node needs this course, installed with `make lab` or in a folder that all of them see.
Cases by number of ranks: {sizes}. Written by `python -m autograder script {lab} {answer}`.
"""
'''


def script_of(lab: str, answer: str, notebook: Path, name: str) -> str:
    """``name``: of the script's file. Raises CannotExport or OSError."""
    exercise = exercises.load(exercise_name(lab, answer))
    code = statements(notebook)
    at, subject = _check_of(code, exercise.name, notebook)
    needed = Needed(code, at)
    needed.add(_names_in(subject), f"the answer {answer}")
    sizes = [case.world_size for case in exercise.cases if not case.hidden]
    most = max(set(sizes), key=sizes.count)
    head = HEAD.format(
        answer=answer,
        lab=lab,
        ranks=most,
        per_node=max(1, most // 2),
        rendezvous=RENDEZVOUS,
        name=name,
        sizes=", ".join(f"{sizes.count(size)} with {size}" for size in sorted({*sizes})),
    )
    imports = [*needed.imports(), "from autograder.job.check_in_job import check_in_job"]
    end = f'check_in_job("{exercise.name}", {ast.unparse(subject)})'
    parts = [
        head + "\n" + "\n".join(imports),
        *needed.definitions(),
        f'if __name__ == "__main__":\n    {end}',
    ]
    text = "\n\n\n".join(parts) + "\n"
    compile(text, name, "exec")
    return text


def exercise_name(lab: str, answer: str) -> str:
    """Raises CannotExport with near names if there is no such lab or answer."""
    known = exercises.labs()
    if lab not in known:
        near = difflib.get_close_matches(lab, known, n=3, cutoff=0.4) or known
        raise CannotExport(f"no lab {lab!r}; there are {', '.join(near)}")
    chapter = lab.partition("_")[2]
    name = f"{chapter}.{answer}"
    try:
        exercises.points_of(name)
    except KeyError as error:
        raise CannotExport(str(error.args[0])) from None
    return name


def notebook_of(lab: str, repo: Path) -> Path:
    return repo / LABS / lab / f"{lab}.ipynb"


def _check_of(code: list[Statement], name: str, notebook: Path) -> tuple[int, ast.expr]:
    """The index of the statement that checks this exercise, and the answer in it."""
    for index, statement in enumerate(code):
        call = statement.node.value if isinstance(statement.node, ast.Expr) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "check" and len(call.args) == 2:
            given, subject = call.args
            if isinstance(given, ast.Constant) and given.value == name:
                return index, subject
    raise CannotExport(f'{notebook} has no cell with check("{name}", …)')


def _names_in(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
