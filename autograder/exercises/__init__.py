"""Exercises by name: ``load("ring_all_reduce.reduce_scatter")`` is in lab03_ring_all_reduce/.

A lab's folder has a module for each exercise, shared modules, and ``hidden/`` with the halves
that decide (autograder/exercise/form.py).  Its ``__init__`` defines, as plain data:
    EXERCISES   names of the modules, in the order of the notebook
    CLOSED      modules that an answer may not call, because they contain the lab's answers; an
                exercise can close more for its own answer (Exercise.closed)
    LIMITS      changes to sandbox.Limits

A rank gets an exercise's ``drive`` pickled by value: ranks that run untrusted code cannot import
this package.
"""

from __future__ import annotations

import ast
import functools
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from autograder.exercise import Exercise

HERE = Path(__file__).parent
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # and all modules in it


def labs() -> list[str]:
    """Names of the lab folders in the course, such as ``03_ring_all_reduce``."""
    # Not the folder of a renamed lab, in which Python has left its __pycache__.
    packages = HERE.glob("lab[0-9][0-9]_*/__init__.py")
    return sorted(path.parent.name.removeprefix("lab") for path in packages)


def lab_module(lab: str) -> ModuleType:
    """The lab's package with its settings; imports no exercise."""
    return import_module(f"{__name__}.lab{lab}")


def setting(lab: str, name: str, default: Any = ()) -> Any:
    """CLOSED or LIMITS of a lab, or ``default`` if it is not set or there is no such lab."""
    if lab not in labs():
        return default
    return getattr(lab_module(lab), name, default)


@functools.cache
def of_lab(lab: str) -> tuple[Exercise, ...]:
    """All exercises of a lab: ``of_lab("03_ring_all_reduce")``."""
    from autograder.exercise.hidden import HiddenHalf
    from autograder.exercise.recorded import SUFFIX, RecordedHalf

    package = lab_module(lab)
    closed = tuple(setting(lab, "CLOSED"))
    found = []
    for name in package.EXERCISES:
        public = import_module(f"{package.__name__}.{name}").EXERCISE
        hidden = f"{package.__name__}.hidden"
        if find_spec(hidden):
            solution = functools.partial(_solution, lab, public.answer or name)
            half: Any = HiddenHalf(import_module(f"{hidden}.{name}"), solution)
        else:
            half = RecordedHalf(HERE / f"lab{lab}" / "recorded" / f"{name}{SUFFIX}")
        found.append(public.with_hidden_half(half, lab.partition("_")[2], name, closed))
    return tuple(found)


def _solution(lab: str, answer: str) -> object:
    # Imported here: students have no solutions.
    from autograder.exercises.hidden import answers

    return answers.subjects(lab, answers.solution(lab))[answer]


def load(name: str) -> Exercise:
    """The exercise called ``name``. Raises KeyError with the existing names if there is none."""
    lab, answer = _find(name)
    return next(exercise for exercise in of_lab(lab) if exercise.answer == answer)


def points_of(name: str) -> float:
    """What the exercise called ``name`` is worth, without importing it. Raises as `load` does."""
    lab, answer = _find(name)
    return _points(lab)[answer]


def _find(name: str) -> tuple[str, str]:
    """(lab, answer); raises KeyError."""
    chapter, _, answer = name.partition(".")
    for lab in labs():
        if lab.partition("_")[2] == chapter:
            if answer in _points(lab):
                return lab, answer
            known = ", ".join(f"{chapter}.{each}" for each in _points(lab))
            raise KeyError(f"no exercise {name!r}; this lab has: {known}")
    raise KeyError(f"no exercise {name!r}; there are labs {', '.join(labs())}")


@functools.cache
def _points(lab: str) -> dict[str, float]:
    """{answer: points}, read from the modules' text: to import them takes seconds (torch).

    Raises ValueError unless EXERCISE is a call with its points, and any `answer`, as literals.
    """
    found = {}
    for name in lab_module(lab).EXERCISES:
        path = HERE / f"lab{lab}" / f"{name}.py"
        module = ast.parse(path.read_text(encoding="utf-8"))
        assigned = (line for line in module.body if isinstance(line, ast.Assign))
        call = next((a.value for a in assigned if ast.unparse(a.targets[0]) == "EXERCISE"), None)
        given = {each.arg: each.value for each in getattr(call, "keywords", ())}
        if "points" not in given:
            raise ValueError(f"{path}: write `EXERCISE = Formula(points=…)`, or another call")
        answer = ast.literal_eval(given["answer"]) if "answer" in given else name
        found[answer] = ast.literal_eval(given["points"])
    return found
