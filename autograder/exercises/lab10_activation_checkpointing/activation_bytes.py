"""What a transformer layer keeps on each rank, in 16 bit: the paper's formula, and a real layer."""

from typing import Any

from autograder.exercise import Case, Formula, questions
from autograder.exercise.compare import is_number

# A real layer also keeps its layer norms' means and standard deviations.
TOLERANCE = 0.005
RECOMPUTE = ("none", "selective", "full")
GPT_3 = {"tokens": 2048, "samples": 1, "width": 12288, "heads": 96}
# The paper's table 2: without, tensor parallel, both, selective, full; and full with both.
TABLE_2 = (
    *((1, False, "none"), (8, False, "none"), (8, True, "none")),
    *((8, True, "selective"), (8, False, "full"), (8, True, "full")),
)


DEFAULTS = {"tp_size": 1, "sequence_parallel": False, "recompute": "none"}


def setting(**changes: Any) -> dict[str, Any]:
    """Arguments, without those that equal the defaults."""
    plain = {"tokens": 512, "samples": 4, "width": 1024, "heads": 16} | changes
    return {key: value for key, value in plain.items() if value != DEFAULTS.get(key)}


def complete(asked: dict[str, Any]) -> dict[str, Any]:
    return DEFAULTS | asked


def published(name: str, model: dict[str, int]) -> Case:
    rows = (
        setting(**model, tp_size=t, sequence_parallel=s, recompute=how) for t, s, how in TABLE_2
    )
    return questions(name, *rows)


def counted(name: str, **changes: Any) -> Case:
    """The right answers are counted in shardlab.models.paper_layer."""
    return questions(name, *(setting(**changes, recompute=how) for how in RECOMPUTE))


def in_sbh(asked: dict[str, Any], right: Any, answer: Any) -> str:
    """How far off an answer is: ", 8/8 sbh too little" with t = 8."""
    if not is_number(answer):
        return ""
    t = complete(asked)["tp_size"]
    difference = t * (answer - right) / (asked["tokens"] * asked["samples"] * asked["width"])
    if not abs(difference) < 1000:
        return ""
    # A counted layer's means and standard deviations are a small part of sbh.
    near = round(difference) if abs(difference - round(difference)) < 0.03 * t else difference
    over_t = f"/{t}" if t > 1 else ""
    return f", {abs(near):.4g}{over_t} sbh too {'much' if near > 0 else 'little'}"


EXERCISE = Formula(
    points=4,
    cases=(
        questions("one rank", setting(), setting(tokens=100, samples=3, width=768, heads=12)),
        published("175B on 8 ranks, the paper's table", GPT_3),
        counted("counted in a layer: none, selective, full"),
    ),
    tolerance=TOLERANCE,
    how_far=in_sbh,
)
