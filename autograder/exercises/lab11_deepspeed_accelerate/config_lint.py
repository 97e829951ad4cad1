"""What a DeepSpeed configuration really runs through Accelerate, against recorded engines."""

from autograder.exercise import Formula, Plain, questions
from shardlab.recorded_runs import config_runs
from shardlab.recorded_runs.config_runs import Asked

VISIBLE = config_runs.load()
KEYS = tuple(next(iter(VISIBLE.values()))[1])


def configurations(*names: str) -> list[Asked]:
    return [VISIBLE[name][0] for name in names]


def other_keys(question: Plain, right: Plain, got: Plain) -> str | None:
    if isinstance(got, dict) and set(got) == set(KEYS):
        return None
    return f"should return a dict with the keys {', '.join(KEYS)}"


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
    forms=(other_keys,),
    shown=shown,
    closed=("shardlab.recorded_runs.config_runs",),
)
