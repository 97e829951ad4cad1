from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab07_offload.write_config import (
    at_each_row,
    budget_case,
    first_row,
    other_batch,
)

OTHERS = [
    (6400, 4, 0),
    (1001, 64, 4191),
    (1001, 64, 250),
    *at_each_row(12_800, 8),
    *at_each_row(6400, 64),
    *at_each_row(640, 2),
]
CASES = (budget_case(4, 4.2, 2, (3, 36), OTHERS), budget_case(2, 0.5, 3, (2, 4)))
BOUNDARIES = {
    "divides": "2 ranks, 9.5Ψ bytes each",
    "does not divide": "1 rank, 12Ψ bytes each; for 4 ranks, each row exactly or a byte less",
    "one rank": "1 rank, 12Ψ bytes each; for 4 ranks, each row exactly or a byte less",
    "more ranks than elements": "not tested: DeepSpeed pads and reports the padded size",
    "exactly the cap": "1 rank, 12Ψ bytes each; for 4 ranks, each row exactly or a byte less",
    "nothing else fits": "2 ranks, 0.5Ψ bytes each",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer('"train_batch_size": global_batch,', "", "DeepSpeed multiplies the other two"),
    EquivalentAnswer(
        'zero["offload_optimizer"] = {"device": "cpu"}',
        'zero["cpu_offload"] = True',
        "DeepSpeed still accepts its old key",
    ),
    EquivalentAnswer('"bf16": {"enabled": True}', '"bfloat16": {"enabled": True}', "an alias"),
)


def reference(case: Case, inputs: Any) -> Plain:
    budget = inputs[0]
    whole, n = budget["parameters"], budget["world_size"]
    stage, optimizer, parameters = first_row(whole, n, budget["device_bytes"])
    shard = whole // n
    return {
        "stage": stage,
        "precision": "bfloat16",
        "micro_batch": budget["micro_batch"],
        "accumulation": budget["global_batch"] // (budget["micro_batch"] * n),
        "global_batch": budget["global_batch"],
        "parameters": {"place": parameters, "elements": shard if stage == 3 else whole},
        "optimizer": {"place": optimizer, "elements": shard if stage else whole},
        "steps": 1,
        "others": [
            {"precision": "bfloat16", "accumulation": 3, **other_batch(ranks)}
            for _, ranks, _ in case.params["others"]
        ],
        "rows": [
            (stage, optimizer, parameters),
            *(first_row(*other) for other in case.params["others"]),
        ],
        "wrong keys": [],
    }
