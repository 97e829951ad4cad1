from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer

BOUNDARIES = {
    "divides": "configuration D",
    "does not divide": "not tested: the five configurations are given, for 2 ranks",
    "one rank": "not tested, as above",
    "more ranks than elements": "not tested, as above",
}
EQUAL_ANSWERS = (
    EqualAnswer('"gradient_accumulation_steps": 4,', "", "DeepSpeed computes it from the others"),
    EqualAnswer(
        '"two_precisions",\n            """{',
        '"two_precisions",\n            """{"fp16": {"enabled": false},',
        "a precision that is not enabled is not tested for",
    ),
)

# The name of the mistake, and what the author wanted.
ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "A": ("not_json", {"stage": 3, "optimizer": {"place": "host"}, "accumulation": 2}),
    "B": ("duplicate_key", {"stage": 2, "optimizer": {"place": "host"}, "bucket_size": 2 * 10**8}),
    "C": ("wrong_level", {"stage": 2, "optimizer": {"place": "host"}, "pinned": False}),
    "D": ("batch_size", {"stage": 3, "micro_batch": 4, "global_batch": 32}),
    "E": ("two_precisions", {"stage": 2, "precision": "bfloat16"}),
}


def reference(case: Case, inputs: Any) -> Plain:
    code, wanted = ANSWERS[inputs[0]]
    return {"problem": "", **wanted, "steps": 1, "code": code}
