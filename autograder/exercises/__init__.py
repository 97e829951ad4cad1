"""Exercises by name: ``load("ring_all_reduce.reduce_scatter")`` reads 03_ring_all_reduce.py.

What a rank runs of an exercise, its ``drive``, travels there by value: ranks that run untrusted
code cannot import this package, which holds oracles and hidden cases.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import cloudpickle

from autograder.exercise import Exercise

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # and so all modules in it


def of_lab(lab: str) -> tuple[Exercise, ...]:
    """All exercises of a lab by its folder's name: ``of_lab("03_ring_all_reduce")``."""
    exercises: tuple[Exercise, ...] = import_module(f"{__name__}.{lab}").EXERCISES
    return exercises


def labs() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("[0-9][0-9]_*.py"))


def load(name: str) -> Exercise:
    """The exercise called ``name``. Raises KeyError, naming those that exist, if there is none."""
    chapter = name.partition(".")[0]
    for lab in labs():
        if re.sub(r"^\d+_", "", lab) == chapter:
            by_name = {exercise.name: exercise for exercise in of_lab(lab)}
            if name in by_name:
                return by_name[name]
            raise KeyError(f"no exercise {name!r}; this lab has: {', '.join(by_name)}")
    raise KeyError(f"no exercise {name!r}; there are labs {', '.join(labs())}")
