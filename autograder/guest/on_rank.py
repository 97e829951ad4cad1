"""What runs on a rank, next to the student's code. Nothing here decides anything."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import torch.distributed as dist

from autograder.guest.case import Case, Plain
from autograder.guest.library import without
from shardlab import source

source.leave_out(str(Path(__file__).parents[1]))  # an error names the student's line, not ours

# torch.distributed's functions by which ranks communicate.
COMMUNICATES = {
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
    """Unpickles the student's answer here, in a rank's process, and puts it through one case.

    ``drive_blob``: a cloudpickle of the exercise's ``drive``.  ``closed``: see library.without.
    """
    drive: Callable[[Any, Plain, Case], Plain] = cloudpickle.loads(drive_blob)
    subject = cloudpickle.loads(subject_blob)
    with without(closed):
        return drive(subject, given, case)


def on_clean_rank(
    given: Plain, execute_blob: bytes, case: Case, returned: Sequence[Plain]
) -> Plain:
    """Carries out, where no student code has run, what a student's code returned as plain data."""
    execute: Callable[[Sequence[Plain], Plain, Case], Plain] = cloudpickle.loads(execute_blob)
    return execute(returned, given, case)


def answers_of(
    read: Callable[[Any], Plain], subject: Callable[..., Any], questions: Sequence[Any], case: Case
) -> list[Plain]:
    """Of a formula: what it says to each question, a list of arguments or a dict of named ones."""
    return [
        read(subject(**each) if isinstance(each, dict) else subject(*each)) for each in questions
    ]


def as_it_is(answer: Plain) -> Plain:
    return answer


def standing_in(subject: Any, **pieces: Callable[..., Any]) -> Any:
    """``subject`` with the functions it calls by these names replaced by ours.

    An answer built on earlier answers is examined for itself: a mistake in an earlier one costs its
    points once.  ``subject`` came out of a pickle, so the globals changed here are its own copy.
    """
    namespace = getattr(inspect.unwrap(subject), "__globals__", None)
    if namespace is not None:
        namespace.update(pieces)
    return subject
