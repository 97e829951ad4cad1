"""The cause that a step loses most time to, and its place, from the seconds of all ranks."""

from __future__ import annotations

from operator import index
from typing import Any

from autograder.exercise import Formula, Plain, questions
from autograder.exercise.signs import MistakeText
from shardlab.recorded_runs import bottlenecks
from shardlab.recorded_runs.bottlenecks import CAUSES

SMALL_BYTES = 2**16  # of a call
STRAGGLER, SLOW_LOADER, SMALL, SYNC, NO_OVERLAP = CAUSES
VISIBLE = bottlenecks.load()
BY_RANK = (STRAGGLER, SLOW_LOADER)  # their place is a rank; that of the others is a line

IN_THESE_CALLS = (
    "the ranks hardly wait for each other in these calls, which take long by themselves"
)
# (the right cause, the answer): why it is another one
CONFUSED = {
    (SLOW_LOADER, STRAGGLER): "takes a slow loader for a straggler: the rank that the others wait "
    "for computes hardly longer than the next one",
    (STRAGGLER, SLOW_LOADER): "takes a straggler for a slow loader: one rank computes longer than "
    "the next one, by more than any rank's loader takes",
    (STRAGGLER, SYNC): "takes a straggler for a synchronization: the one rank that computes longer "
    "hardly ever waits; a needless synchronization makes every rank wait in turn",
    (SLOW_LOADER, SYNC): "takes a slow loader for a synchronization: the one rank whose loader is "
    "slow hardly ever waits; a needless synchronization makes every rank wait in turn",
    (
        SYNC,
        STRAGGLER,
    ): "takes a synchronization for a straggler: in the whole step no rank computes "
    "much longer than the next one, and yet every rank waits, each in its turn",
    (SMALL, NO_OVERLAP): "takes small messages for missing overlap: compare the bytes of one call, "
    "not of all calls of a line, with 64 KiB",
    (NO_OVERLAP, SMALL): "takes missing overlap for small messages: small calls are there, or many "
    "calls, but the time is exposed in large ones",
    (SMALL, SYNC): f"takes small messages for a synchronization: {IN_THESE_CALLS}",
    (NO_OVERLAP, SYNC): f"takes missing overlap for a synchronization: {IN_THESE_CALLS}",
    (SYNC, SMALL): "takes a synchronization for small messages: its calls are small, but they take "
    "long because the ranks wait in them for each other, not because of what they send",
    (SYNC, NO_OVERLAP): "takes a synchronization for missing overlap: every rank waits longer for "
    "others than it is exposed to any line's calls",
}
# Whatever is right
NO_STRAGGLER = (
    "takes a rank for a straggler that computes hardly longer than the next one: where one rank "
    "has less to do than all others, no repair of a single rank shortens the step"
)
OTHERWISE = {
    STRAGGLER: "overlooks a straggler: one rank computes longer than the next one, and the others "
    "wait for it",
    SLOW_LOADER: "overlooks a slow loader: a rank that stands in its loader neither computes nor "
    "communicates, and the others wait for it in their next call",
    SMALL: "overlooks small messages: each costs its latency, and together they are exposed "
    "longest",
    SYNC: "overlooks a synchronization: every rank waits at that line, each in its turn",
    NO_OVERLAP: "overlooks missing overlap: large calls are exposed, because they begin when "
    "nothing is left to compute",
}
PLACES = {
    STRAGGLER: "names another rank than the one that computes longest",
    SLOW_LOADER: "names another rank than the one whose loader takes longest: the others may wait "
    "for it, or load themselves",
    SMALL: "names another line than the one whose small calls are exposed longest",
    SYNC: "names another line than the one at which every rank waits, and the longest",
    NO_OVERLAP: "names another line than the one whose large calls are exposed longest",
}


def not_an_answer(question: Any, right: Any, got: Any) -> str | None:
    if not isinstance(got, tuple) or len(got) != 2:
        return "should return a pair: the cause and its place"
    cause, place = got
    if cause not in CAUSES:
        return f"should return one of the causes {', '.join(map(repr, CAUSES))}"
    kind, wanted = (int, "a rank, an int") if cause in BY_RANK else (str, "a line, as in the step")
    if type(place) is not kind:
        return f"should return as the place of {cause!r} {wanted}"
    return None


def not_the_cause(question: Any, right: Any, got: Any) -> MistakeText:
    if got[0] == right[0]:
        return PLACES[right[0]]
    otherwise = NO_STRAGGLER if got[0] == STRAGGLER else OTHERWISE[right[0]]
    return CONFUSED.get((right[0], got[0]), otherwise)


def steps(*names: str) -> list[tuple[Plain]]:
    return [(VISIBLE[name]["summary"],) for name in names]


def as_pair(answer: Any) -> Plain:
    """A list for a tuple, and numpy's or torch's integers for Python's."""
    if not isinstance(answer, list | tuple):
        return answer
    return tuple(index(each) if hasattr(each, "__index__") else each for each in answer)


def shown(answer: str, question: Plain) -> str:
    """A step is long: show its name."""
    name = next((name for name, step in VISIBLE.items() if [step["summary"]] == question), "…")
    return f"{answer}(step {name})"


EXERCISE = Formula(
    points=4,
    cases=(
        questions("one of each cause", *steps(*"ABCDE")),
        questions("the same signs, another cause", *steps(*"FGHI")),
    ),
    read=as_pair,
    forms=(not_an_answer, not_the_cause),
    shown=shown,
)
