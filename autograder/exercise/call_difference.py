"""The calls of the course's solution, and where those of a wrong answer begin to differ.

There are other right answers with other calls, so a difference is only shown as help, where no
named mistake explains what the answer did.  Calls that no line of the student's makes, such as a
library's or the check's own, are left out on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from autograder.exercise.attempt import Attempt
from shardlab.errors import DeadlockError, RunTimeout
from shardlab.run import Call, Run

RightCall = tuple[str, int | None, int]  # op, peer, bytes
RightCalls = Sequence[Sequence[RightCall]]  # by rank, in order


def calls_of(run: Run) -> RightCalls | None:
    """None if there are none."""
    by_rank = [[_facts(call) for call in calls] for calls in _by_rank(run)]
    return by_rank if any(by_rank) else None


def first_difference(attempt: Attempt, right: RightCalls) -> str:
    """A sentence with a rank's call, its line, and the solution's call in its place.

    Empty if all are equal.  The order of a send and a receive matters only in a run that hangs.
    """
    if attempt.run is None:
        return ""
    made = _by_rank(attempt.run)
    hangs = isinstance(attempt.error, DeadlockError | RunTimeout)
    for kinds in (("send", "recv", "collective"), ("any",) if hangs else ()):
        found = [
            difference
            for rank in range(len(right))
            for kind in kinds
            if (difference := _in_rank(rank, kind, made[rank], right[rank], attempt))
        ]
        if found:
            return min(found)[-1]
    return ""


def _in_rank(
    rank: int, kind: str, made: Sequence[Call], right: Sequence[RightCall], attempt: Attempt
) -> tuple[int, int, int, str] | None:
    """(number of the call, rank, number in ``right``, sentence) of the first one that differs."""
    ours = [(number, call) for number, call in enumerate(made, 1) if _is(kind, call.op)]
    rights = [(number, call) for number, call in enumerate(right, 1) if _is(kind, call[0])]
    for one, other in zip_longest(ours, rights):
        at, wanted = other or (0, None)
        if one is None:
            assert wanted is not None
            if not _has_returned(rank, attempt):
                return None  # it may have come later
            says = f"rank {rank} returns after {len(made)} call{'s' * (len(made) != 1)}"
            return len(made) + 1, rank, at, f"{says}; the course's solution also {_text(*wanted)}."
        number, call = one
        if wanted == _facts(call):
            continue
        where = f" [{call.source}{f': {call.code}' if call.code else ''}]"
        tensor = f"{call.dtype}{list(call.shape)}, " if call.bytes else ""
        instead = f"{_text(*wanted)} there" if wanted else "makes no more such calls"
        says = f"rank {rank}, call {number}: {_text(*_facts(call), tensor)}{where}"
        return number, rank, at, f"{says}; the course's solution {instead}."
    return None


def _by_rank(run: Run) -> list[list[Call]]:
    return [[call for call in run.calls_of(rank) if call.source] for rank in range(run.world_size)]


def _facts(call: Call) -> RightCall:
    return call.op, call.peer, call.bytes


def _is(kind: str, op: str) -> bool:
    return kind in ("any", op) or (kind == "collective" and op not in ("send", "recv"))


def _has_returned(rank: int, attempt: Attempt) -> bool:
    if isinstance(attempt.error, DeadlockError | RunTimeout):
        return any(row.rank == rank and row.state == "finished" for row in attempt.error.table)
    return attempt.error is None


def _text(op: str, peer: int | None, n_bytes: int, tensor: str = "") -> str:
    """ "sends 48 B to rank 2" """
    if op not in ("send", "recv"):
        return f"calls {op} with {tensor}{n_bytes:,} B" if n_bytes else f"calls {op}"
    other = "any rank" if peer is None else f"rank {peer}"
    verb, preposition = ("sends", "to") if op == "send" else ("receives", "from")
    return f"{verb} {tensor}{n_bytes:,} B {preposition} {other}"
