"""The name of the method, given the calls and sizes of one training step."""

from autograder.exercise import Formula, Plain, questions
from shardlab.recorded_runs import step_traces
from shardlab.recorded_runs.step_traces import METHODS

VISIBLE = step_traces.load()


def traces(*names: str) -> list[tuple[step_traces.Trace]]:
    return [(VISIBLE[name][1],) for name in names]


def not_a_name(question: Plain, right: Plain, got: Plain) -> str | None:
    if got in METHODS:
        return None
    return f"should return one of {', '.join(map(repr, METHODS))}"


def shown(answer: str, question: Plain) -> str:
    """A trace is long: show its name."""
    name = next((name for name, (_, trace) in VISIBLE.items() if [trace] == question), "…")
    return f"{answer}(trace {name})"


EXERCISE = Formula(
    points=3,
    cases=(
        questions("one of each method", *traces(*"ABCDEF")),
        questions("the same operations, used for something else", *traces(*"GHIJ")),
    ),
    forms=(not_a_name,),
    shown=shown,
)
