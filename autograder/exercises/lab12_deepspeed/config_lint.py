"""What a DeepSpeed configuration really runs through Accelerate, against recorded engines."""

import json
from typing import Any

from autograder.exercise import Formula, Plain, equal, questions
from autograder.exercise.signs import MistakeText
from shardlab.recorded_runs import config_runs
from shardlab.recorded_runs.config_runs import Asked

VISIBLE = config_runs.load()
KEYS = tuple(next(iter(VISIBLE.values()))[1])


def configurations(*names: str) -> list[Asked]:
    return [VISIBLE[name][0] for name in names]


def other_keys(question: Plain, right: Plain, got: Plain) -> MistakeText:
    if not isinstance(got, dict):
        return f"should return a dict with the keys {', '.join(KEYS)}"
    if lacks := ", ".join(key for key in KEYS if key not in got):
        return "should return a dict with all eight keys", f"it lacks {lacks}"
    return None


def other_stage(question: Any, right: Plain, got: Any) -> str | None:
    """A stage that the file has, but not where it counts."""
    text, stage = question["json_text"], got["stage"]
    first = json.loads(text, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    if equal(right, right | {"stage": stage}):
        return None
    if equal(stage, first["zero_optimization"].get("stage")):
        return "takes the first of equal keys: when Accelerate reads the file, the last one counts"
    if equal(stage, json.loads(text).get("stage")):
        return "has a stage that the file names only at the top level, where DeepSpeed ignores it"
    return None


def shown(answer: str, question: Plain) -> str:
    """A configuration is long: show its name."""
    name = next((name for name, (asked, _) in VISIBLE.items() if asked == question), "…")
    return f"{answer}(configuration {name})"


EXERCISE = Formula(
    points=4,
    cases=(
        questions('"auto", numbers, and keys that are left out', *configurations(*"ABC")),
        questions("keys that are repeated or misplaced", *configurations(*"DE")),
        questions("who owns the optimizer", *configurations(*"FGH")),
    ),
    forms=(other_keys, other_stage),
    shown=shown,
    closed=("shardlab.recorded_runs.config_runs",),
)
