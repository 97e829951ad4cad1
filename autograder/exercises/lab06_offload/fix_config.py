"""Five broken configurations of DeepSpeed, repaired and started for real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autograder.exercise import Attempt, Case, OnRanks, Plain, equal
from autograder.exercise.signs import MistakeText
from autograder.exercises.lab06_offload import shared
from autograder.exercises.lab06_offload.shared import asks_for_nvme, start_engine


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise KeyError(key)
    return dict(pairs)


def drive(subject: Any, letter: str, case: Case) -> Plain:
    answers = subject()
    if not isinstance(answers, dict):
        return {"problem": "no dict", "evidence": f"its type is {type(answers).__name__}"}
    if letter not in answers:
        return {"problem": "missing", "evidence": ""}
    answer = answers[letter]
    is_pair = isinstance(answer, tuple | list) and len(answer) == 2
    if not is_pair or not all(isinstance(part, str) for part in answer):
        return {"problem": "no pair", "evidence": ""}
    code, repaired = answer
    if code.lstrip().startswith("{") and not repaired.lstrip().startswith("{"):
        return {"problem": "swapped", "evidence": ""}
    try:
        config = json.loads(repaired, object_pairs_hook=reject_duplicate_keys)
    except KeyError as error:  # of reject_duplicate_keys
        return {"problem": "duplicate key", "evidence": error.args[0]}
    except (ValueError, TypeError) as error:
        return {"problem": "not json", "evidence": str(error)}
    if not isinstance(config, dict):
        return {"problem": "not json", "evidence": "not an object"}
    if nvme := asks_for_nvme(config):  # before an engine is started
        return {"problem": "", "nvme": nvme}
    settings = settings_of(config)
    reported = start_engine(config, layers=1)
    return {"problem": "", **reported, "settings": settings, "code": code}


# Reported by the engine, however they are written, or needed to start it with torch's AdamW.
ELSEWHERE = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
}
PRECISIONS = {"bf16", "fp16"}  # sections that are off without "enabled"
IN_SECTIONS = ("BFLOAT16_", "FP16_", "TORCH_AUTOCAST_")  # DeepSpeed's constants for their keys


def defaults() -> dict[str, Any]:
    """{path of a key: its default value}, as DeepSpeed has them.

    Runs on ranks, so it is not cached: a cached function would be imported there.
    """
    from deepspeed.runtime import constants, precision_config
    from deepspeed.runtime.zero import config, offload_config

    models = {
        "bf16": precision_config.DeepSpeedBF16Config,
        "fp16": precision_config.DeepSpeedFP16Config,
        "zero_optimization": config.DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    }
    of_names = vars(constants)
    found = {
        of_names[name]: of_names[f"{name}_DEFAULT"]
        for name in of_names
        if f"{name}_DEFAULT" in of_names and not name.startswith(IN_SECTIONS)
    }
    for path, model in models.items():
        for name, field in model.model_fields.items():
            found |= {f"{path}.{key}": field.default for key in (name, field.alias or name)}
    return found


def settings_of(config: dict[str, Any]) -> list[list[str]]:
    """[path of a key, value as JSON] of each, without what is off or has its default value."""
    found: list[list[str]] = []
    known = defaults()

    def collect(path: str, value: Any) -> None:
        if isinstance(value, dict):
            is_enabled = value.get("enabled", path not in PRECISIONS) is not False
            if is_enabled and value.get("device") != "none":
                for key, inside in value.items():
                    collect(f"{path}.{key}", inside)
        elif path not in known or value != known[path]:
            is_whole = isinstance(value, float) and value.is_integer()  # 2e8
            found.append([path, json.dumps(int(value) if is_whole else value)])

    for key, value in config.items():
        if key not in ELSEWHERE:
            collect("bf16" if key == "bfloat16" else key, value)
    return sorted(found)


@shared.on_rank_0
def not_parsed(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    mistakes = {
        "no dict": "cannot be read: fix_config should return a dict",
        "missing": "is not among your answers",
        "no pair": "should have two texts as its answer: (name of the mistake, repaired text)",
        "swapped": "has its pair in the wrong order: first the name of the mistake, then the text",
        "duplicate key": "still has a duplicate key: json keeps only the last one",
        "not json": "is still not valid JSON",
    }
    problem = output["problem"]
    return (mistakes[problem], output["evidence"]) if problem else None


BOOLEANS = ("true", "false")  # as JSON has them


@shared.on_rank_0
def changes_more(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    """Keys that are not part of the mistake, or values that the author did not ask for."""
    wanted, made = dict(attempt.expected[0]["settings"]), dict(output["settings"])
    for key in sorted({*wanted, *made}):
        if key not in made:
            return f"loses {key}, which the author wanted", readable(wanted[key])
        if key not in wanted:
            return f"sets {key}, which the author had disabled or left out", readable(made[key])
        if wanted[key] in BOOLEANS and made[key] not in BOOLEANS:
            return f"should have a boolean as {key}", f"{made[key]}, not {wanted[key]}"
        if wanted[key] != made[key]:
            values = f"{readable(made[key])}, not {readable(wanted[key])}"
            return f"changes {key}, which was right", values
    return None


def readable(value: str) -> str:
    return f"{int(value):,}" if value.isdecimal() else value


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
        shared.offloads_to_nvme,
        shared.refused("still does not start and train with DeepSpeed"),
        # It starts, but not with what the author wanted.
        shared.engine_differs(
            optimizer="starts, but the optimizer stays on the device: the author wanted it on the "
            "host (zero_optimization.offload_optimizer)",
            pinned="starts, but pins host memory, which the author did not want",
            micro_batch="starts, but changes train_micro_batch_size_per_gpu, which was right",
            accumulation="starts, but changes gradient_accumulation_steps, which was right",
            global_batch="starts, but loses the author's global batch",
            bucket_size="starts, but loses the author's bucket sizes",
            precision="starts, but does not train in bf16, which the author enabled",
            stage="starts, but not at the stage that the author wanted",
        ),
        changes_more,
        misnamed,
    ),
    timeout_s=shared.DEEPSPEED_TIMEOUT_S,
    engine="deepspeed",
)
