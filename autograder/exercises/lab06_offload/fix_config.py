"""Five broken configurations of DeepSpeed, repaired and started for real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autograder.exercise import Attempt, Case, OnRanks, Plain, equal
from autograder.exercise.signs import MistakeText
from autograder.exercises.lab06_offload import shared
from autograder.exercises.lab06_offload.shared import start_engine


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise KeyError(key)
    return dict(pairs)


def drive(subject: Any, letter: str, case: Case) -> Plain:
    answers = subject()
    if not isinstance(answers, dict) or letter not in answers:
        return {"problem": "missing", "evidence": ""}
    answer = answers[letter]
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return {"problem": "no pair", "evidence": ""}
    code, repaired = answer
    try:
        config = json.loads(repaired, object_pairs_hook=reject_duplicate_keys)
    except KeyError as error:  # of reject_duplicate_keys
        return {"problem": "duplicate key", "evidence": error.args[0]}
    except (ValueError, TypeError) as error:
        return {"problem": "not json", "evidence": str(error)}
    if not isinstance(config, dict):
        return {"problem": "not json", "evidence": "not an object"}
    reported = start_engine(config, layers=1)
    return {"problem": "", **reported, "code": code if isinstance(code, str) else ""}


@shared.on_rank_0
def not_parsed(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    mistakes = {
        "missing": "is not among your answers",
        "no pair": "should have a pair as its answer: (name of the mistake, repaired text)",
        "duplicate key": "still has a duplicate key: json keeps only the last one",
        "not json": "is still not valid JSON",
    }
    problem = output["problem"]
    return (mistakes[problem], output["evidence"]) if problem else None


@shared.on_rank_0
def misnamed(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    if equal(attempt.expected[0]["code"], output["code"]):
        return None
    return "is repaired, but that is not the name of its mistake", output["code"]


EXERCISE = OnRanks(
    points=5,
    cases=tuple(Case(f"configuration {letter}", 2, {"letter": letter}) for letter in "ABCDE"),
    inputs=lambda case, rng: case.params["letter"],
    drive=drive,
    signs=(
        not_parsed,
        shared.refused(r"^(?!NotImplementedError)\w+:\s*\S", "is still rejected by DeepSpeed"),
        # It starts, but not with what the author wanted.
        shared.engine_differs(
            optimizer="starts, but the optimizer stays on the device: the author wanted it on the "
            "host",
            pinned="starts, but pins host memory, which the author did not want: move pin_memory "
            "to where DeepSpeed looks for it",
            global_batch="starts, but loses the author's global batch",
            micro_batch="starts, but changes the micro-batch, which was right",
            accumulation="starts, but loses the author's accumulation",
            bucket_size="starts, but loses the author's bucket sizes",
            precision="starts, but does not train in the author's precision",
            stage="starts, but not at the stage that the author wanted",
        ),
        misnamed,
    ),
    timeout_s=shared.DEEPSPEED_TIMEOUT_S,
    engine="deepspeed",
)
