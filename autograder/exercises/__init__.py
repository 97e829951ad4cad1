"""Exercises by name: ``load("ring_all_reduce.reduce_scatter")``, of lab03_ring_all_reduce/.

A lab's folder has a module for each exercise, what they share, and ``hidden/`` with the halves
that decide (autograder/exercise/form.py).  Its ``__init__`` says, as plain data:
    EXERCISES   names of the modules, in the order of the notebook
    CLOSED      what an answer may not call: modules that have the lab's answers ready-made
    LIMITS      departures from sandbox.Limits

What a rank runs of an exercise, its ``drive``, travels there by value: ranks that run untrusted
code cannot import this package.
"""

from __future__ import annotations

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
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # and so all modules in it


def labs() -> list[str]:
    """Their folders' names in the course: ``03_ring_all_reduce``."""
    return sorted(path.name.removeprefix("lab") for path in HERE.glob("lab[0-9][0-9]_*"))


def lab_module(lab: str) -> ModuleType:
    """What a lab says of itself; no exercise is imported."""
    return import_module(f"{__name__}.lab{lab}")


def setting(lab: str, name: str, otherwise: Any = ()) -> Any:
    """CLOSED or LIMITS of a lab; ``otherwise`` where it, or the lab, has none."""
    if lab not in labs():
        return otherwise
    return getattr(lab_module(lab), name, otherwise)


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
            half: Any = HiddenHalf(import_module(f"{hidden}.{name}"))
        else:
            half = RecordedHalf(HERE / f"lab{lab}" / "recorded" / f"{name}{SUFFIX}")
        found.append(public.joined(half, lab.partition("_")[2], name, closed))
    return tuple(found)


def load(name: str) -> Exercise:
    """The exercise called ``name``. Raises KeyError, naming those that exist, if there is none."""
    chapter = name.partition(".")[0]
    for lab in labs():
        if lab.partition("_")[2] == chapter:
            by_name = {exercise.name: exercise for exercise in of_lab(lab)}
            if name in by_name:
                return by_name[name]
            raise KeyError(f"no exercise {name!r}; this lab has: {', '.join(by_name)}")
    raise KeyError(f"no exercise {name!r}; there are labs {', '.join(labs())}")
