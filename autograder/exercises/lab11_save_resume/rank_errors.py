"""Errors of forked ranks, raised in the case's only rank and shown to the student."""

from __future__ import annotations

import builtins
import contextlib
import re
from collections.abc import Sequence

from autograder.exercise import Attempt, Finding
from autograder.exercises.lab11_save_resume.forked_ranks import (
    ENDS,
    RAISED,
    RETURNED,
    Outcome,
    was_killed,
)
from autograder.guest.answer import STUB
from shardlab.display import source
from shardlab.errors import RankError
from shardlab.ranks.trust import Trust

LINE = re.compile(r"  \[([^\[\]\n]+), line (\d+)\]$")  # see forked_ranks.message_of
# Built-in exceptions that cannot be created from a message alone.
NO_TEXT = {"UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup"}


def raise_first_error(outcomes: Sequence[Outcome], names: dict[str, str] | None = None) -> None:
    """Raise a rank's error, or one for a rank that still waits although no rank was killed.

    ``names``: {collective: what a student calls it}
    """
    for rank, outcome in enumerate(outcomes):
        if outcome.status == RAISED:
            name, message = outcome.value
            if name == "NotImplementedError" and not message.partition("  [")[0]:
                raise NotImplementedError(STUB)
            kind = getattr(builtins, name, None)
            if not isinstance(kind, type) or not issubclass(kind, Exception) or name in NO_TEXT:
                kind, message = RuntimeError, f"{name}: {message}"
            raise kind(f"on rank {rank} of {len(outcomes)}: {message}")
    waiting = [rank for rank, each in enumerate(outcomes) if each.status not in ENDS]
    if not waiting or was_killed(outcomes):
        return
    names, call = names or {}, outcomes[waiting[0]].status
    other = next(rank for rank, each in enumerate(outcomes) if each.status != call)
    status = outcomes[other].status
    where = "has returned" if status == RETURNED else f"is in {names.get(status, status)}"
    raise RuntimeError(
        f"on rank {waiting[0]} of {len(outcomes)}: it waits in {names.get(call, call)}, while rank "
        f"{other} {where}: every rank has to make every call"
    )


def with_cell(text: str, trust: Trust) -> str:
    """``…  [/tmp/ipykernel_7/9.py, line 3]``  ->  ``…  [cell 5, line 3: dist.barrier()]``"""
    is_own = trust is Trust.OWN  # else do not read a file that student code names
    with contextlib.nullcontext() if is_own else source.without_source_text():
        return LINE.sub(lambda found: f"  [{source.quoted(found[1], int(found[2]))}]", text)


def fails_on_a_rank(attempt: Attempt) -> Finding | None:
    """A sign for errors from raise_first_error, shown without the case's own rank."""
    error = attempt.error
    if not isinstance(error, RankError) or not error.message.startswith("on rank "):
        return None
    where, _, message = error.message.partition(": ")
    return Finding(
        "your answer",
        f"stops with {error.kind}",
        who_if_hidden="your answer",
        in_full=with_cell(f"{error.kind} {where}: {message}", attempt.trust),
    )
