"""A DeepSpeed configuration for a budget of device memory, started for real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText
from autograder.exercises.lab06_offload import shared
from autograder.exercises.lab06_offload.shared import asks_for_nvme, section, start_engine

# The notebook's table: (stage, optimizer's place, parameters' place) and bytes on the device for
# each parameter on n ranks, from the one with the least traffic to the one with the least memory
# (arXiv 1910.02054, section 5, and 2101.06840, section 3; K = 12, 16-bit parameters, gradients).
ROWS = {
    (0, "device", "device"): lambda n: 16.0,
    (1, "device", "device"): lambda n: 4 + 12 / n,
    (2, "device", "device"): lambda n: 2 + 14 / n,
    (3, "device", "device"): lambda n: 16 / n,
    (2, "host", "device"): lambda n: 2.0,
    (3, "host", "device"): lambda n: 2 / n,
    (3, "host", "host"): lambda n: 0.0,
}
Row = tuple[int, str, str]
# Inside zero_optimization.
ZERO_KEYS = {"stage", "offload_optimizer", "offload_param", "cpu_offload"}
REFUSED = {  # by words of DeepSpeed's message
    "train_batch_size is not equal to": (
        "has a train_batch_size that is not micro-batch × accumulation × world size"
    ),
    "Extra inputs are not permitted": "has a key that DeepSpeed does not know",
    "": "does not start and train with DeepSpeed",
}
DIFFERS = {
    "precision": "does not train in bf16",
    "micro_batch": "does not use the micro_batch asked for",
    "global_batch": "does not use the global_batch asked for",
}
# Parameters, ranks and bytes on each device, without a start: exact in floats, as the number of
# ranks is a power of 2.
Budgets = list[tuple[int, int, int]]


def budget_case(
    world_size: int,
    bytes_each: float,
    layers: int,
    batch: tuple[int, int],
    others: Budgets | None = None,
    what: str = "",
) -> Case:
    """``batch``: sequences per micro-batch, and per step on all ranks together.  ``others``: more
    budgets, for which a row is chosen but no engine started."""
    plural = "s" if world_size > 1 else ""
    params = {"bytes_each": bytes_each, "layers": layers, "batch": list(batch)}
    name = f"{world_size} rank{plural}, {bytes_each:g}Ψ bytes each{what}"
    return Case(name, world_size, params | {"others": others or []})


def at_each_row(parameters: int, world_size: int) -> Budgets:
    """Exactly each row's bytes, and one byte less."""
    exact = [int(need(world_size) * parameters) for need in ROWS.values()]
    return [(parameters, world_size, most) for row in exact for most in (row, row - 1) if most > 0]


def first_row(parameters: int, world_size: int, device_bytes: int) -> Row:
    fits = (row for row, need in ROWS.items() if need(world_size) * parameters <= device_bytes)
    return next(fits)


def other_batch(ranks: int) -> dict[str, int]:
    """For budgets without a start."""
    return {"micro_batch": 2, "global_batch": 6 * ranks}


def budget_of(case: Case, rng: np.random.Generator) -> dict[str, int]:
    """The arguments that write_config is called with."""
    parameters = case.params["layers"] * shared.WIDTH**2
    micro_batch, global_batch = case.params["batch"]
    return {
        "parameters": parameters,
        "world_size": case.world_size,
        "device_bytes": int(case.params["bytes_each"] * parameters),
        "micro_batch": micro_batch,
        "global_batch": global_batch,
    }


def drive(subject: Any, budget: dict[str, int], case: Case) -> Plain:
    config = subject(**budget)
    if not isinstance(config, dict):
        return {"kind": type(config).__name__}
    asked = json.loads(json.dumps(config, default=str))  # before DeepSpeed changes it
    others, rows, outside = [], [], ZERO_KEYS & asked.keys()
    for parameters, ranks, device_bytes in case.params["others"]:
        budget = {"parameters": parameters, "world_size": ranks, "device_bytes": device_bytes}
        other = subject(**budget, **other_batch(ranks))
        others.append(other if isinstance(other, dict) else {})
        rows.append(row_of(other) if isinstance(other, dict) else ())
        outside |= ZERO_KEYS & other.keys() if isinstance(other, dict) else set()
    for each in (config, *others):
        if nvme := asks_for_nvme(each):  # before an engine is started
            return {"nvme": nvme}
    engine = start_engine(config, case.params["layers"])
    read = [
        settings(other, ranks)
        for other, (_, ranks, _) in zip(others, case.params["others"], strict=True)
    ]
    return {**engine, "config": asked, "rows": rows, "outside": sorted(outside), "others": read}


def settings(config: dict[str, Any], world_size: int) -> dict[str, Any]:
    """As an engine on ``world_size`` ranks would report them, or {"refused": why}."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        read = DeepSpeedConfig(
            config, mpu=SimpleNamespace(get_data_parallel_world_size=lambda: world_size)
        )
    except Exception as error:
        return {"refused": " ".join(str(error).split(" [type=")[0].split())}
    precision = "float16" if read.float16_config.enabled else "float32"
    return {
        "precision": "bfloat16" if read.bfloat16_config.enabled else precision,
        "micro_batch": int(read.train_micro_batch_size_per_gpu),
        "accumulation": int(read.gradient_accumulation_steps),
        "global_batch": int(read.train_batch_size),
    }


def row_of(config: dict[str, Any]) -> tuple[Any, ...]:
    """As `ROWS` has it, from a configuration; DeepSpeed still accepts the old keys."""
    zero = section(config, "zero_optimization")

    def place(key: str, old_key: str) -> str:
        is_off = section(zero, key).get("device", "none") != "none" or zero.get(old_key)
        return "host" if is_off else "device"

    optimizer = place("offload_optimizer", "cpu_offload")
    return (zero.get("stage", 0), optimizer, place("offload_param", "cpu_offload_param"))


@shared.on_rank_0
def not_a_dict(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    return ("should be a dict", f"its type is {output['kind']}") if "kind" in output else None


@shared.on_rank_0
def offload_is_ignored(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    """Offload that DeepSpeed ignores: at the wrong level or at the wrong stage."""
    asked = output["config"]
    if outside := output["outside"]:
        what = "has its stage" if "stage" in outside else "asks for offload"
        mistake = (
            f"{what} at the wrong level: it belongs inside zero_optimization; DeepSpeed ignores it "
            "without a warning"
        )
        return mistake, ", ".join(outside)
    if "zero_optimization" not in asked and attempt.expected[0]["stage"]:
        return "has no zero_optimization section", f"it has {', '.join(asked)}"
    _, *places = row_of(asked)
    whats = {"offload_optimizer": "optimizer", "offload_param": "parameters"}
    for place, (key, what) in zip(places, whats.items(), strict=True):
        if place == "host" and output[what]["place"] == "device":
            return ignored(key), f"stage {output['stage']}"
    return None


def ignored(key: str) -> str:
    return (
        f"asks for {key} at a stage that ignores it, and DeepSpeed gives no warning: "
        "offload_optimizer needs a stage above 0, offload_param needs stage 3"
    )


@shared.on_rank_0
def other_is_refused(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    for row, read, asked in of_others(output, attempt):
        if row and (why := read.get("refused")):
            mistake = next(REFUSED[words] for words in REFUSED if words in why)
            return mistake, f"{budget_text(*asked)}: {why}"
    return None


@shared.on_rank_0
def other_differs(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    for _, read, asked in of_others(output, attempt):
        batch = other_batch(asked[1])
        for key, wanted in {"precision": "bfloat16", **batch}.items():
            if read[key] != wanted:
                evidence = f"{budget_text(*asked)}: {key} is {read[key]}, not {wanted}"
                return DIFFERS[key], evidence
    return None


def of_others(output: Mapping[str, Any], attempt: Attempt) -> list[tuple[Any, Any, Any]]:
    """(row, settings, budget) of each configuration that is not started."""
    each = output["rows"], output["others"], attempt.case.params["others"]
    return list(zip(*each, strict=True))


@shared.on_rank_0
def wrong_row(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    """Another row of the table: too large for the device, or more traffic than needed."""
    budget, right = attempt.inputs[0], attempt.expected[0]
    asked = budget["parameters"], budget["world_size"], budget["device_bytes"]
    if mistake := compared(started_row(output), started_row(right), *asked):
        return mistake
    for (made, _, asked), wanted in zip(of_others(output, attempt), right["rows"], strict=True):
        if mistake := compared(made, wanted, *asked):
            return mistake
    return None


def started_row(engine: Mapping[str, Any]) -> tuple[Any, ...]:
    return engine["stage"], engine["optimizer"]["place"], engine["parameters"]["place"]


def budget_text(parameters: int, world_size: int, device_bytes: int) -> str:
    ranks = f"{world_size} rank{'s' if world_size > 1 else ''}"
    return f"{device_bytes:,} bytes for {parameters:,} parameters on {ranks}"


def compared(
    made: tuple[Any, ...],
    wanted: tuple[Any, ...],
    parameters: int,
    world_size: int,
    device_bytes: int,
) -> MistakeText:
    budget = budget_text(parameters, world_size, device_bytes)
    if made == wanted:
        return None
    if len(made) != 3:
        return "should be a dict for every model and budget", budget
    stage, optimizer, others = made
    row = f"stage {stage}, optimizer on the {optimizer}, parameters on the {others}"
    if not isinstance(stage, int | float):
        return "should have a number as its stage", f"{stage!r}; the budget is {budget}"
    if optimizer == "host" and stage == 0:
        return ignored("offload_optimizer"), budget
    if others == "host" and stage != 3:
        return ignored("offload_param"), budget
    if made not in ROWS:
        return "is not a row of the table", f"{row}; the budget is {budget}"
    needed_bytes = ROWS[made](world_size) * parameters
    evidence = f"{row}: {needed_bytes:,.0f} bytes; the budget is {budget}"
    if needed_bytes > device_bytes:
        return "chooses a row whose model states do not fit on the device", evidence
    if wanted[1:] == made[1:]:
        return "has the wrong stage: a lower one fits", evidence
    if (made[1:].count("host"), made[0]) > (wanted[1:].count("host"), wanted[0]):
        return "offloads more than necessary", evidence
    return "is not the first row of the table that fits", evidence


# Between a row with the fraction Ψ/N and the same row with a padded shard, which is larger; and
# between it and the same row rounded down.
NEXT_TO_FRACTIONS = [(6401, 4, most) for most in (44_808, 35_206, 25_610, 3201, 35_205)]
EACH_ROW = [*at_each_row(6400, 4), (6400, 16, 2 * 6400), *NEXT_TO_FRACTIONS]
EXERCISE = OnRanks(
    points=4,
    cases=(
        budget_case(2, 9.5, 2, (2, 8)),
        budget_case(1, 12, 2, (4, 8), EACH_ROW, ", and each row exactly or a byte less"),
        budget_case(4, 1, 4, (1, 8)),
    ),
    inputs=budget_of,
    drive=drive,
    signs=(
        *(shared.refused(mistake, words) for words, mistake in REFUSED.items()),
        not_a_dict,
        shared.offloads_to_nvme,
        offload_is_ignored,
        other_is_refused,
        wrong_row,
        shared.engine_differs(**DIFFERS),
        other_differs,
    ),
    timeout_s=shared.DEEPSPEED_TIMEOUT_S,
    engine="deepspeed",
)
