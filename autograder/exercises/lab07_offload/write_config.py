"""A DeepSpeed configuration for a budget of device memory, started for real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText
from autograder.exercises.lab07_offload import shared
from autograder.exercises.lab07_offload.shared import reject_nvme, section, start_engine

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
BATCH_KEYS = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
)
ZERO_KEYS = {"stage", "offload_optimizer", "offload_param", "cpu_offload"}
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
    config = configured(subject, **budget)
    asked = json.loads(json.dumps(config, default=str))  # before DeepSpeed changes it
    others, rows, outside, wrong_keys = (
        [],
        [row_of(asked)],
        ZERO_KEYS & asked.keys(),
        misread(config),
    )
    for parameters, ranks, device_bytes in case.params["others"]:
        budget = {"parameters": parameters, "world_size": ranks, "device_bytes": device_bytes}
        others.append((configured(subject, **budget, **other_batch(ranks)), ranks))
        rows.append(row_of(others[-1][0]))
        outside |= ZERO_KEYS & others[-1][0].keys()
        wrong_keys = wrong_keys or misread(others[-1][0])
    return {
        **start_engine(config, case.params["layers"]),  # first, because `settings` need it
        "config": asked,
        "rows": rows,
        "outside": sorted(outside),
        "wrong keys": wrong_keys,
        "others": [settings(*other) for other in others],
    }


def configured(subject: Any, **budget: int) -> dict[str, Any]:
    config = subject(**budget)
    if not isinstance(config, dict):
        raise TypeError(f"write_config returned a {type(config).__name__}, not a dict")
    reject_nvme(config)
    return config


def settings(config: dict[str, Any], world_size: int) -> dict[str, Any]:
    """As an engine on ``world_size`` ranks would report them."""
    from deepspeed.runtime.config import DeepSpeedConfig

    ranks = SimpleNamespace(get_data_parallel_world_size=lambda: world_size)
    read = DeepSpeedConfig(config, mpu=ranks)
    precision = "float16" if read.float16_config.enabled else "float32"
    return {
        "precision": "bfloat16" if read.bfloat16_config.enabled else precision,
        "micro_batch": int(read.train_micro_batch_size_per_gpu),
        "accumulation": int(read.gradient_accumulation_steps),
        "global_batch": int(read.train_batch_size),
    }


def misread(config: dict[str, Any]) -> list[str]:
    """Keys at the top that DeepSpeed does not know and ignores, and counts that are not whole."""
    from deepspeed.runtime import constants

    known = {name for name in vars(constants).values() if isinstance(name, str)}
    known |= {"zero_optimization", "comms_logger", "monitor_config", "activation_checkpointing"}
    unknown = [f"{key}: no key of DeepSpeed" for key in config if key not in known | ZERO_KEYS]
    counts = [key for key in BATCH_KEYS if type(config.get(key, 0)) is not int]
    return unknown + [f"{key}: {config[key]!r}, not an int" for key in counts]


def row_of(config: dict[str, Any]) -> tuple[Any, str, str]:
    """As `ROWS` has it, from a configuration; DeepSpeed still accepts the old keys."""
    zero = section(config, "zero_optimization")

    def place(key: str, old_key: str) -> str:
        is_off = section(zero, key).get("device", "none") != "none" or zero.get(old_key)
        return "host" if is_off else "device"

    optimizer = place("offload_optimizer", "cpu_offload")
    return (zero.get("stage", 0), optimizer, place("offload_param", "cpu_offload_param"))


@shared.on_rank_0
def ignored(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    """DeepSpeed ignores keys at the wrong level, and gives no warning."""
    if outside := output["outside"]:
        mistake = (
            "has keys at the wrong level: they belong inside zero_optimization; DeepSpeed ignores "
            "them without a warning"
        )
        return mistake, ", ".join(outside)
    if "zero_optimization" not in output["config"] and attempt.expected[0]["stage"]:
        return "has no zero_optimization section", f"it has {', '.join(output['config'])}"
    if keys := output["wrong keys"]:
        return "has a top-level key that DeepSpeed ignores, or a count that is not an int", keys[0]
    return None


@shared.on_rank_0
def wrong_row(output: Mapping[str, Any], attempt: Attempt) -> MistakeText:
    """Another row of the table: too large for the device, or more traffic than needed."""
    budget, expected = attempt.inputs[0], attempt.expected[0]
    sizes = budget["parameters"], budget["world_size"], budget["device_bytes"]
    made, wanted = output["rows"], expected["rows"]
    all_sizes = [sizes, *attempt.case.params["others"]]
    for row, right, (parameters, ranks, device_bytes) in zip(made, wanted, all_sizes, strict=True):
        if row == right:
            continue
        evidence = (
            "stage {!r}, optimizer on the {}, parameters on the {}".format(*row)
            + (f": {ROWS[row](ranks) * parameters:,.0f} bytes" if row in ROWS else "")
            + f"; the budget is {device_bytes:,} bytes for {parameters:,} parameters, N = {ranks}"
        )
        if type(row[0]) is not int:
            return "has a stage that is not an int", f"it is {row[0]!r}"
        if row == (3, "device", "host"):
            mistake = "is not a row of the table: offload_param comes with offload_optimizer"
            return mistake, evidence
        if row not in ROWS:
            mistake = "is not a row of the table: DeepSpeed ignores, without a warning, "
            return f"{mistake}offload_optimizer at stage 0 and offload_param below 3", evidence
        if ROWS[row](ranks) * parameters > device_bytes:
            return "chooses a row whose model states do not fit on the device", evidence
        return "is not the first row of the table that fits", evidence
    return None


# Between a row with the fraction Ψ/N and the same row with a padded shard, which is larger; and
# between it and the same row rounded down.
NEXT_TO_FRACTIONS = [(6401, 4, most) for most in (44_808, 35_206, 25_610, 3201, 35_205)]
EACH_ROW = [*at_each_row(6400, 4), (6400, 16, 2 * 6400), *NEXT_TO_FRACTIONS]
EXERCISE = OnRanks(
    points=4,
    cases=(
        budget_case(2, 9.5, 2, (2, 8)),
        budget_case(1, 12, 2, (4, 8), EACH_ROW, "; for 4 ranks, each row exactly or a byte less"),
        budget_case(4, 1, 4, (1, 8)),
    ),
    inputs=budget_of,
    drive=drive,
    signs=(
        shared.asks_for_fp16,
        shared.refused("does not start and train with DeepSpeed"),
        ignored,
        wrong_row,
    ),
    timeout_s=shared.DEEPSPEED_TIMEOUT_S,
    engine="deepspeed",
)
