"""Five broken configurations of DeepSpeed, repaired and started for real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autograder.exercise import Attempt, Case, OnRanks, Plain, equal
from autograder.exercise.signs import MistakeText, raises
from autograder.exercises.lab07_offload import shared
from autograder.exercises.lab07_offload.shared import reject_nvme, start_engine


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"duplicate key {key!r}: json keeps only the last one")
    return dict(pairs)


def drive(subject: Any, letter: str, case: Case) -> Plain:
    code, repaired = entry(subject(), letter)
    config = json.loads(repaired, object_pairs_hook=without_duplicates)
    reject_nvme(config)  # before an engine is started
    settings, known = settings_of(config), defaults()
    plain = {path: known.get(path) for path, _ in settings}
    is_off = {path: json.dumps(default) for path, default in plain.items() if default is False}
    return {**start_engine(config, layers=1), "settings": settings, "code": code, "is off": is_off}


def entry(answers: Any, letter: str) -> Any:
    form = "{letter: (name of the mistake, repaired text)}"
    if isinstance(answers, dict) and letter not in answers:
        raise TypeError(
            f"fix_config returns no entry {letter!r}, only {', '.join(map(repr, answers))}"
        )
    try:
        code, repaired = answers[letter]
    except (TypeError, ValueError) as error:
        raise TypeError(f"fix_config should return a dict, {form}") from error
    if "{" in str(code):
        raise TypeError(f"fix_config returns (text, name) for {letter}: it should be (name, text)")
    return code, repaired


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


REPORTED = (
    *("optimizer", "pinned", "micro_batch", "accumulation", "global_batch", "bucket_size"),
    *("precision", "stage"),
)


@shared.on_rank_0
def engine_differs(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    """It starts, but not with what the author wanted."""
    expected = attempt.expected[0]
    for key in REPORTED:
        if key in expected and not equal(expected[key], output.get(key)):
            made, wanted = (readable(each.get(key)) for each in (output, expected))
            evidence = f"the engine reports {key} {made}, not {wanted}"
            return "starts, but not with what the author wanted", evidence
    return None


@shared.on_rank_0
def changes_more(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    """What is false by default may be missing from the author's text, or be written there."""
    wanted, made = dict(attempt.expected[0]["settings"]), dict(output["settings"])
    wanted = output.get("is off", {}) | wanted
    for key in sorted({*wanted, *made}):
        found, right = (readable(of.get(key, "missing")) for of in (made, wanted))
        if found != right:
            return "has another setting than the author wanted", f"{key} is {found}, not {right}"
    return None


def readable(value: Any) -> str:
    value = value["place"] if isinstance(value, dict) else value
    return f"{int(value):,}" if str(value).isdecimal() else str(value)


@shared.on_rank_0
def misnamed(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    """Without it, the first difference would be shown: the right name."""
    if equal(attempt.expected[0]["code"], output["code"]):
        return None
    return "is repaired, but that is not the name of its mistake", output["code"]


EXERCISE = OnRanks(
    points=5,
    cases=tuple(Case(f"configuration {letter}", 2, {"letter": letter}) for letter in "ABCDE"),
    inputs=lambda case, rng: case.params["letter"],
    drive=drive,
    signs=(
        raises("^TypeError: fix_config ", "has another form", who="the answer", quoted=True),
        shared.asks_for_fp16,
        shared.refused("still does not start and train with DeepSpeed"),
        engine_differs,
        changes_more,
        misnamed,
    ),
    timeout_s=shared.DEEPSPEED_TIMEOUT_S,
    engine="deepspeed",
)
