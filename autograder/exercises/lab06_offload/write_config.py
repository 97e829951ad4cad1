"""A DeepSpeed configuration for a budget of device memory, started for real."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
OFFLOAD_KEYS = {"offload_optimizer", "offload_param", "cpu_offload"}  # inside zero_optimization
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
    others, rows, outside = [], [], OFFLOAD_KEYS & asked.keys()
    for parameters, ranks, device_bytes in case.params["others"]:
        batch = {"micro_batch": 2, "global_batch": 6 * ranks}
        other = subject(parameters=parameters, world_size=ranks, device_bytes=device_bytes, **batch)
        others.append(other if isinstance(other, dict) else {})
        rows.append(row_of(other) if isinstance(other, dict) else ())
        outside |= OFFLOAD_KEYS & other.keys() if isinstance(other, dict) else set()
    for each in (config, *others):
        if nvme := asks_for_nvme(each):  # before an engine is started
            return {"nvme": nvme}
    engine = start_engine(config, case.params["layers"])
    return {**engine, "config": asked, "rows": rows, "outside": sorted(outside)}


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
    if offload := output["outside"]:
        mistake = (
            "asks for offload at the wrong level: it belongs inside zero_optimization; DeepSpeed "
            "ignores it without a warning"
        )
        return mistake, ", ".join(offload)
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
def wrong_row(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    """Another row of the table: too large for the device, or more traffic than needed."""
    budget, right = attempt.inputs[0], attempt.expected[0]
    asked = budget["parameters"], budget["world_size"], budget["device_bytes"]
    if mistake := compared(started_row(output), started_row(right), *asked):
        return mistake
    for made, wanted, asked in zip(
        output["rows"], right["rows"], attempt.case.params["others"], strict=True
    ):
        if mistake := compared(made, wanted, *asked):
            return mistake
    return None


def started_row(engine: Mapping[str, Any]) -> tuple[Any, ...]:
    return engine["stage"], engine["optimizer"]["place"], engine["parameters"]["place"]


def compared(
    made: tuple[Any, ...],
    wanted: tuple[Any, ...],
    parameters: int,
    world_size: int,
    device_bytes: int,
) -> MistakeText:
    ranks = f"{world_size} rank{'s' if world_size > 1 else ''}"
    budget = f"{device_bytes:,} bytes for {parameters:,} parameters on {ranks}"
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
        return "is a row whose model states do not fit on the device", evidence
    if wanted[1:] == made[1:]:
        return "has the wrong stage: a lower one fits", evidence
    if (made[1:].count("host"), made[0]) > (wanted[1:].count("host"), wanted[0]):
        return "offloads more than necessary", evidence
    return "is not the first row of the table that fits", evidence


# Between a row with the fraction Ψ/N and the same row with a padded shard, which is larger.
BELOW_PADDED = [(6401, 4, most) for most in (44_808, 35_206, 25_610, 3201)]
EACH_ROW = [*at_each_row(6400, 4), (6400, 16, 2 * 6400), *BELOW_PADDED]
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
        shared.refused(
            "has a train_batch_size that is not micro-batch × accumulation × world size",
            "train_batch_size is not equal to",
        ),
        shared.refused("does not start and train with DeepSpeed"),
        not_a_dict,
        shared.offloads_to_nvme,
        offload_is_ignored,
        wrong_row,
        shared.engine_differs(
            precision="does not train in bf16",
            micro_batch="does not use the micro_batch asked for",
            global_batch="does not use the global_batch asked for",
        ),
    ),
    timeout_s=shared.DEEPSPEED_TIMEOUT_S,
    engine="deepspeed",
)
