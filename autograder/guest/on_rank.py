"""Runs on a rank, next to the student's code. No verdict is decided here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import cloudpickle
import torch.distributed as dist

from autograder.guest.case import Case, Plain
from autograder.guest.closed_modules import close_modules
from autograder.guest.moments import measure_loaded
from shardlab.display import source

source.exclude_folder(str(Path(__file__).parents[1]))  # so that errors point to the student's line

# What this module and several exercises' drives import: the parent process does, for all ranks.
PRELOAD = (
    "autograder.guest.on_rank",
    "autograder.guest.growth",
    "numpy.ctypeslib",  # safetensors would, when it packs a tensor
    "safetensors.torch",
    "shardlab.models",
    "torch.profiler._cupti_monitor",  # a first call of backward would import it
    "torch.utils.serialization.config",  # a first torch.load would import it
)
_GETS_PICKLE = "gets_pickled_answer"
# The communication functions of torch.distributed.
COMMUNICATION_FUNCTIONS = {
    name
    for name in dir(dist)
    if callable(getattr(dist, name, None))
    and re.match(
        r"(all_|reduce|broadcast|gather|scatter|barrier|monitored_barrier|i?send|i?recv|P2POp|batch_)",
        name,
    )
    and not re.search(r"Op$|Options$", name.removesuffix("P2POp"))
} | {"P2POp"}


def on_rank(
    given: Plain, drive_blob: bytes, case: Case, subject_blob: bytes, closed: Sequence[str]
) -> Plain:
    """Unpickles the student's answer, in this rank's process, and runs one case.

    ``drive_blob``: a cloudpickle of the exercise's ``drive``.  ``closed``: see
    closed_modules.close_modules.
    """
    drive: Callable[[Any, Plain, Case], Plain] = cloudpickle.loads(drive_blob)
    close_modules(closed)
    measure_loaded()
    # Unpickling the answer may already run its code.
    subject = subject_blob if hasattr(drive, _GETS_PICKLE) else cloudpickle.loads(subject_blob)
    return drive(subject, given, case)


def gets_pickled_answer(drive: Any) -> Any:
    """For a ``drive`` that runs the answer in processes of its own and unpickles it only there."""
    setattr(drive, _GETS_PICKLE, True)
    return drive


def on_clean_rank(
    given: Plain, execute_blob: bytes, case: Case, returned: Sequence[Plain]
) -> Plain:
    """On a rank that never ran student code: executes the plain data that an answer returned."""
    execute: Callable[[Sequence[Plain], Plain, Case], Plain] = cloudpickle.loads(execute_blob)
    return execute(returned, given, case)


def formula_results(
    read: Callable[[Any], Plain], subject: Callable[..., Any], questions: Sequence[Any], case: Case
) -> list[Plain]:
    """A formula's result for each question, a list of arguments or a dict of named ones."""
    results = [subject(**each) if isinstance(each, dict) else subject(*each) for each in questions]
    return [_without_fractions(read(result)) for result in results]


def _without_fractions(answer: Any) -> Any:
    if isinstance(answer, Fraction):
        return int(answer) if answer.denominator == 1 else float(answer)
    if type(answer) is dict:
        return {key: _without_fractions(item) for key, item in answer.items()}
    if type(answer) in (list, tuple):
        return type(answer)(map(_without_fractions, answer))
    return answer


def identity(answer: Plain) -> Plain:
    return answer


def with_functions_replaced(subject: Any, **pieces: Callable[..., Any]) -> Any:
    """Replaces functions that ``subject`` calls by name with ours.

    A mistake in an earlier answer then costs points once, not again in the answers that call it.
    ``subject`` was unpickled, so this changes only its own copy of the globals.
    """
    namespace = getattr(inspect.unwrap(subject), "__globals__", None)
    if namespace is not None:
        namespace.update(pieces)
    return subject
