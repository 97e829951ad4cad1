"""Signs: functions that detect mistakes from calls, memory and errors, not outputs alone.

@on_each_rank
def returns_its_input(output, given):
    if torch.equal(output["returned"], given):
        return "returns its input: return the chunk that it reduced"

A sign's parameters say what it reads, by name:
    output, rank, given, expected   of one rank (`on_each_rank`); given is its input
    call                            one recorded call (`on_each_call`)
    case, attempt                   the case, and all of its results
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from autograder.exercise.attempt import SENT, Attempt, Finding
from autograder.exercise.form import Sign
from autograder.guest.closed_modules import CLOSED
from shardlab.errors import RankError
from shardlab.run import Call
from shardlab.run.unwaited import never_waited_text

MistakeText = str | tuple[str, str] | None  # a mistake, or (mistake, evidence)
PartSign = Callable[..., MistakeText]  # of one rank or one call; see above for its parameters
HALF_PRECISION = "float16", "bfloat16"
GROWS = "keeps something of every step: release what later steps do not need"


def finding(who: str, found: MistakeText, who_if_hidden: str = "a rank") -> Finding | None:
    if found is None or isinstance(found, Finding):
        return found
    mistake, evidence = (found, "") if isinstance(found, str) else found
    return Finding(who, mistake, evidence, who_if_hidden)


def finished(attempt: Attempt) -> Iterator[tuple[int, Any]]:
    """(rank, output) of each rank, if no rank failed."""
    if attempt.error is None:
        yield from enumerate(attempt.outputs)


def handed(*known: str, to: PartSign) -> PartSign:
    """A function of all ``known`` values, which hands ``to`` those that its parameters name.

    Raises TypeError for another parameter: the judge would skip a sign that raises on a case.
    """
    names = inspect.signature(to).parameters
    if unknown := [name for name in names if name not in known]:
        raise TypeError(f"{to.__name__} reads {unknown[0]!r}: a sign reads {', '.join(known)}")
    chosen = [known.index(name) for name in names]
    return lambda *values: to(*(values[index] for index in chosen))


def on_each_rank(rank_sign: PartSign) -> Sign:
    """``rank_sign`` on each rank, if none failed; the first match counts."""
    mistake_in = handed("output", "rank", "given", "expected", "case", "attempt", to=rank_sign)

    @functools.wraps(rank_sign)
    def sign(attempt: Attempt) -> Finding | None:
        for rank, output in finished(attempt):
            given, expected = attempt.inputs[rank], attempt.expected[rank]
            mistake = mistake_in(output, rank, given, expected, attempt.case, attempt)
            is_one = len(attempt.outputs) == 1
            who = "your answer" if is_one else f"rank {rank}"
            if found := finding(who, mistake, who if is_one else "a rank"):
                return found
        return None

    return sign


def on_each_call(call_sign: PartSign) -> Sign:
    """``call_sign`` for each recorded call, also if a rank failed; the first match counts.  By
    default, the evidence is the line of the call."""
    mistake_in = handed("call", "case", "attempt", to=call_sign)

    @functools.wraps(call_sign)
    def sign(attempt: Attempt) -> Finding | None:
        for call in attempt.calls:
            if found := mistake_in(call, attempt.case, attempt):
                found = (found, call.source) if isinstance(found, str) else found
                return finding(f"rank {call.rank}", found)
        return None

    return sign


def raises(pattern: str, mistake: str, who: str = "", quoted: bool = False) -> Sign:
    """A rank stopped with an error whose ``kind: message`` matches the regular expression.

    ``who`` replaces the rank; if ``quoted``, the error message is the evidence.
    """

    def sign(attempt: Attempt) -> Finding | None:
        error = attempt.error
        if isinstance(error, RankError) and re.search(pattern, f"{error.kind}: {error.message}"):
            evidence = " ".join(error.message.split()) if quoted else ""
            who_failed = who or f"rank {error.rank}"
            return Finding(who_failed, mistake, evidence, who or "a rank", quotes=quoted)
        return None

    return sign


def is_over(attempt: Attempt, heading: str = SENT) -> list[int]:
    """Ranks over a budget of that heading, the furthest first; [] if a rank failed."""
    if attempt.error is not None:
        return []
    return [rank for s in attempt.spent if s.heading == heading for rank in s.ranks_over]


def over_budget(heading: str, mistake: str, unit: str = "bytes") -> Sign:
    """A rank is over the budget of that heading."""

    @on_each_rank
    def sign(rank: int, attempt: Attempt) -> MistakeText:
        for spent in attempt.spent:
            if spent.heading == heading and rank in spent.ranks_over:
                return mistake, f"{spent.used[rank]:,} {unit}, {spent.limit[rank]:,} are enough"
        return None

    return sign


def expensive_calls(mistakes: dict[str, str]) -> Sign:
    """{op: why it costs too much}: for a rank over its budget, if most of its bytes are of that op.

    Which of several ops exceeded the budget is otherwise unknown.
    """

    def sign(attempt: Attempt) -> Finding | None:
        if not (over := is_over(attempt)):
            return None
        calls = attempt.calls_of(min(over))
        op_bytes = Counter[str]()
        for call in calls:
            op_bytes[call.op] += call.bytes
        for op, _ in op_bytes.most_common(1):
            if op in mistakes:
                source = next(call.source for call in calls if call.op == op)
                return Finding(f"rank {min(over)}", mistakes[op], source)
        return None

    return sign


@on_each_call
def never_waited(call: Call) -> MistakeText:
    """A rule: a call that was started with isend, irecv or async_op=True is waited for."""
    return None if call.waited else never_waited_text(call)


@on_each_call
def half_precision(call: Call) -> MistakeText:
    """A rule: no rank sends 16-bit numbers.  In a small case, the result may be right by luck."""
    if call.dtype not in HALF_PRECISION:
        return None
    return (
        f"sends {call.dtype}: parameters and gradients are float32 here, and half precision loses "
        "their last digits"
    )


@on_each_call
def no_barrier(call: Call) -> MistakeText:
    """A rule, where collectives are all the synchronization that is needed."""
    if call.op not in ("barrier", "monitored_barrier"):
        return None
    return f"calls {call.op}, which is not needed: the ranks only wait for each other"


@on_each_rank
def keeps_growing(output: Any) -> MistakeText:
    """A rule, where `drive` returns what guest/growth.py has found under "grows"."""
    grows = output.get("grows") if isinstance(output, dict) else None
    if not grows:
        return None
    return GROWS, str(grows[0])


def calls_closed_function(attempt: Attempt) -> Finding | None:
    """The answer calls a function that is closed because it solves the exercise.

    For a hidden case the function is not named: student code can raise this error itself, with the
    case's inputs in place of the name.
    """
    error = attempt.error
    # Only from the beginning of a word: else a long one takes minutes.
    pattern = rf"(?<!\S)(\S+) {CLOSED}"
    found = re.search(pattern, error.message) if isinstance(error, RankError) else None
    if found is None:
        return None
    which = CLOSED.removeprefix("is ")
    return Finding(
        "your answer",
        f"calls {which}",
        who_if_hidden="your answer",
        in_full=f"your answer calls {found[1]}, which {CLOSED}",
    )


def differs_in(mistakes: dict[str, str]) -> Sign:
    """{key of the output: what an answer does whose value differs there}, the first that differs"""

    @on_each_rank
    def sign(output: Any, expected: Any) -> MistakeText:
        found = (text for key, text in mistakes.items() if output[key] != expected[key])
        return next(found, None)

    return sign
