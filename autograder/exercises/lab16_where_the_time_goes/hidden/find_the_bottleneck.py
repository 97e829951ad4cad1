from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab16_where_the_time_goes.find_the_bottleneck import (
    NO_OVERLAP,
    SLOW_LOADER,
    SMALL,
    SMALL_BYTES,
    STRAGGLER,
    SYNC,
    VISIBLE,
)
from shardlab.recorded_runs import bottlenecks

HIDDEN = Path(__file__).with_name("bottlenecks.json")
RECORDED = bottlenecks.load(HIDDEN)  # by "case: cause"
Answer = tuple[str, int | str]


def of_case(case: str) -> Case:
    """In an order of its own: with the recipes', an answer could count its calls."""
    steps = [step for name, step in RECORDED.items() if name.startswith(f"{case}: ")]
    random.Random(case).shuffle(steps)
    return questions(case, *((step["summary"],) for step in steps))


CASES = tuple(map(of_case, dict.fromkeys(name.partition(": ")[0] for name in RECORDED)))
BOUNDARIES = {
    "divides": "not tested: nothing is divided",
    "does not divide": "not tested, as above",
    "one rank": "not tested: it waits for nobody",
    "more ranks than elements": "not tested, as above",
    "two ranks": "the five causes, in other steps",
    "a rank that computes less than the others": "one rank has less to do",
    "synchronizations that cost little": "collectives in every micro-batch",
    "many small calls that cost little": "collectives in every micro-batch",
    "calls of 40 KiB": "one rank has less to do",
    "calls of 100 KiB": "collectives in every micro-batch",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("< 2**16", "<= 2**16", "no call of a recorded step has exactly 64 KiB"),
)
_ANSWERS = {
    json.dumps(step["summary"]): (step["cause"], step["place"])
    for step in (*VISIBLE.values(), *RECORDED.values())
}


def right(step: Any) -> Answer:
    """The cause that the step was recorded with."""
    return _ANSWERS[json.dumps(step)]


def lost_s(step: Any) -> dict[Answer, float]:
    """What a step would gain at most by repairing each cause."""
    compute_s, loader_s = step["compute_s"], step["loader_s"]
    *_, second_s, longest_s = sorted(compute_s)
    found: dict[Answer, float] = {
        (STRAGGLER, compute_s.index(longest_s)): longest_s - second_s,
        (SLOW_LOADER, loader_s.index(max(loader_s))): max(loader_s),
    }
    for each in step["lines"]:
        is_small = each["bytes"] / each["calls"] < SMALL_BYTES
        found[SMALL if is_small else NO_OVERLAP, each["line"]] = min(each["exposed_s"])
        found[SYNC, each["line"]] = min(each["waiting_s"])
    return found
