import json
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer

BOUNDARIES = {
    "divides": "configuration D",
    "does not divide": "not tested: the five configurations are given, for 2 ranks",
    "one rank": "not tested, as above",
    "more ranks than elements": "not tested, as above",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        '"gradient_accumulation_steps": 4,', "", "DeepSpeed computes it from the others"
    ),
    EquivalentAnswer(
        '"two_precisions",\n            """{',
        '"two_precisions",\n            """{"fp16": {"enabled": false},',
        "a precision that is not enabled is not tested for",
    ),
)

OFFLOAD = {"offload_optimizer.device": "cpu"}
# The name of the mistake, what the author wanted, and the settings of zero_optimization.
ANSWERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "A": ("not_json", {"accumulation": 2, "global_batch": 8}, {"stage": 3} | OFFLOAD),
    "B": (
        "duplicate_key",
        {"bucket_size": 200_000_000},
        {"stage": 2, "allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000}
        | OFFLOAD,
    ),
    "C": (
        "wrong_level",
        {"pinned": False},
        {"stage": 2, "offload_optimizer.pin_memory": False} | OFFLOAD,
    ),
    "D": ("batch_size", {"micro_batch": 4, "global_batch": 32}, {"stage": 3}),
    "E": ("two_precisions", {}, {"stage": 2}),
}


def reference(case: Case, inputs: Any) -> Plain:
    code, wanted, zero = ANSWERS[inputs[0]]
    settings = {f"zero_optimization.{key}": value for key, value in zero.items()}
    settings["bf16.enabled"] = True
    place = {"optimizer": {"place": "host"}} if "offload_optimizer.device" in zero else {}
    return {
        **{"micro_batch": 2, "global_batch": 4, "precision": "bfloat16"},
        **{"stage": zero["stage"], "steps": 1, "code": code},
        **place,
        **wanted,
        "settings": sorted([key, json.dumps(value)] for key, value in settings.items()),
    }
