"""Lab 06, configurations of DeepSpeed: each is given to a real engine, which tells what it made.

A configuration is right when an engine starts with it, takes a step, and then says of itself what
was asked for: stage, batch, precision, what lives where, and the sizes of its own buffers.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import by_case, kept_back
from shardlab import placement

WIDTH = 64  # of the square layers of the model that is trained
# Added to every configuration: they say that torch's own AdamW, passed in by the driver, will do.
ALWAYS = {
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "gradient_clipping": 0.0,
    "steps_per_print": 10**9,
}
DEEPSPEED_TIMEOUT_S = 60.0  # the first start of DeepSpeed's server is among them


def start_engine(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """Starts a real engine, takes one optimizer step, and returns what the engine says of itself.

    Runs on every rank.  The model has ``layers`` square matrices of WIDTH² parameters each.
    """
    import deepspeed

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = {**config, **ALWAYS}
    engine = deepspeed.initialize(model=model, optimizer=adam, config=config)[0]
    sequences = torch.randn(engine.train_micro_batch_size_per_gpu(), WIDTH)
    for _ in range(engine.gradient_accumulation_steps()):
        output = engine(sequences.to(next(model.parameters()).dtype))
        engine.backward(output.float().pow(2).mean())
        engine.step()
    return {
        **placement.of_deepspeed(engine),
        "allgather_bucket": int(engine._config.zero_config.allgather_bucket_size),
        "steps": int(engine.global_steps),
    }


def said_by(attempt: Attempt) -> str:
    """What DeepSpeed raised, if it did."""
    return getattr(attempt.error, "message", "") if attempt.error else ""


# ---- write_config -------------------------------------------------------------------------------

# (stage, optimizer's place, parameters' place) and bytes on the device for each parameter, from
# the one that costs the least traffic to the one that needs the least memory (arXiv 1910.02054,
# section 5, and 2101.06840, section 3; K = 12, 16-bit parameters and gradients).
CHOICES = (
    ((0, "device", "device"), lambda n: 16.0),
    ((1, "device", "device"), lambda n: 4 + 12 / n),
    ((2, "device", "device"), lambda n: 2 + 14 / n),
    ((3, "device", "device"), lambda n: 16 / n),
    ((2, "host", "device"), lambda n: 2.0),
    ((3, "host", "device"), lambda n: 2 / n),
    ((3, "host", "host"), lambda n: 0.0),
)


def budget_case(
    world_size: int, bytes_each: float, layers: int, batch: tuple[int, int], hidden: bool = False
) -> Case:
    """``batch``: sequences of a micro-batch, and of all ranks in a step."""
    plural = "s" if world_size > 1 else ""
    name = f"{world_size} rank{plural}, {bytes_each:g}Ψ bytes each"
    params = {"bytes_each": bytes_each, "layers": layers, "batch": list(batch)}
    return Case(name, world_size, params, hidden)


def budget_of(case: Case) -> dict[str, int]:
    """The arguments that write_config is called with."""
    parameters = case.params["layers"] * WIDTH**2
    micro_batch, global_batch = case.params["batch"]
    return {
        "parameters": parameters,
        "world_size": case.world_size,
        "device_bytes": int(case.params["bytes_each"] * parameters),
        "micro_batch": micro_batch,
        "global_batch": global_batch,
    }


@kept_back(by_case)
def needs(case: Case) -> list[tuple[tuple[int, str, str], float]]:
    """Each choice, from the one with the least traffic on, and the bytes that it takes."""
    parameters = budget_of(case)["parameters"]
    return [(choice, need(case.world_size) * parameters) for choice, need in CHOICES]


@kept_back(by_case)
def choice_for(case: Case) -> tuple[int, str, str]:
    return next(
        choice for choice, need in CHOICES if need(case.world_size) <= case.params["bytes_each"]
    )


def draw_budget(case: Case, rng: np.random.Generator) -> list[Plain]:
    return [budget_of(case)] * case.world_size


def drive_write_config(subject: Any, budget: dict[str, int], case: Case) -> Plain:
    config = subject(**budget)
    if not isinstance(config, dict):
        return {"kind": type(config).__name__}
    told = json.dumps(config, default=str)  # before DeepSpeed changes it
    return {**start_engine(config, case.params["layers"]), "config": told}


def expect_write_config(case: Case, inputs: Any) -> list[Plain]:
    stage, optimizer, parameters = choice_for(case)
    micro_batch, global_batch = case.params["batch"]
    whole = case.params["layers"] * WIDTH**2
    shard = whole // case.world_size  # all cases divide
    engine = {
        "stage": stage,
        "precision": "bfloat16",
        "micro_batch": micro_batch,
        "accumulation": global_batch // (micro_batch * case.world_size),
        "global_batch": global_batch,
        "parameters": {"place": parameters, "elements": shard if stage == 3 else whole},
        "optimizer": {"place": optimizer, "elements": shard if stage else whole},
        "steps": 1,
    }
    return [engine] * case.world_size


def your_config(mistake: str, evidence: str = "") -> Finding:
    return Finding("your configuration", mistake, evidence, anyone="your configuration")


def config_of(attempt: Attempt) -> dict[str, Any]:
    output = attempt.outputs[0]
    told = output.get("config", "{}") if isinstance(output, dict) else "{}"
    config = json.loads(told)
    return config if isinstance(config, dict) else {}


def engine_of(attempt: Attempt) -> dict[str, Any] | None:
    """What rank 0's engine said, where one started."""
    output = attempt.outputs[0]
    ran = attempt.error is None and isinstance(output, dict) and "stage" in output
    return output if ran else None


def batch_does_not_multiply(attempt: Attempt) -> Finding | None:
    if "train_batch_size" not in said_by(attempt):
        return None
    return your_config(
        "has a train_batch_size that is not micro-batch × accumulation × world size",
        said_by(attempt).splitlines()[-1],
    )


def not_a_dict(attempt: Attempt) -> Finding | None:
    output = attempt.outputs[0]
    if isinstance(output, dict) and "kind" in output:
        return Finding(
            "write_config", "should return a dict", f"it is a {output['kind']}", "write_config"
        )
    return None


def wrong_level(attempt: Attempt) -> Finding | None:
    offload = {"offload_optimizer", "offload_param", "cpu_offload"} & config_of(attempt).keys()
    if not offload or not engine_of(attempt):
        return None
    return your_config(
        "asks for offload at the wrong level: it belongs inside zero_optimization; DeepSpeed "
        "leaves it out without a word",
        ", ".join(sorted(offload)),
    )


def stage_leaves_it_out(attempt: Attempt) -> Finding | None:
    engine, zero = engine_of(attempt), config_of(attempt).get("zero_optimization", {})
    if not engine or not isinstance(zero, dict):
        return None
    asked = {"offload_optimizer": "optimizer", "offload_param": "parameters"}
    for key, what in asked.items():
        if key in zero and engine[what]["place"] == "device":
            return your_config(
                f"asks for {key} at a stage that leaves it out, and DeepSpeed says nothing: "
                "offload_optimizer needs a stage above 0, offload_param needs stage 3",
                f"stage {engine['stage']}",
            )
    return None


def other_choice(attempt: Attempt) -> Finding | None:
    """Another row of the table: too much for the device, or more traffic than needed."""
    engine = engine_of(attempt)
    if not engine:
        return None
    case = attempt.case
    made = engine["stage"], engine["optimizer"]["place"], engine["parameters"]["place"]
    known = dict(needs(case))
    wanted = choice_for(case)
    if made == wanted or made not in known:
        return None
    needed_bytes = known[made]
    evidence = (
        f"stage {made[0]}, optimizer on the {made[1]}, parameters on the {made[2]}: "
        f"{needed_bytes:,.0f} bytes of {budget_of(case)['device_bytes']:,}"
    )
    if needed_bytes > budget_of(case)["device_bytes"]:
        return your_config("is of a wrong stage: its model states do not fit the device", evidence)
    if wanted[1:] == made[1:]:
        return your_config("is of a wrong stage: a lower one fits", evidence)
    return your_config("offloads more than it has to", evidence)


def not_16_bit(attempt: Attempt) -> Finding | None:
    engine = engine_of(attempt)
    if not engine or engine["precision"] == "bfloat16":
        return None
    return your_config(
        "does not train in bf16", f"the engine's parameters are {engine['precision']}"
    )


def other_batch(attempt: Attempt) -> Finding | None:
    engine, expected = engine_of(attempt), attempt.expected[0]
    for name in ("micro_batch", "global_batch"):
        if engine and not equal(expected[name], engine[name]):
            return your_config(
                f"makes another {name} than asked for", f"{engine[name]}, not {expected[name]}"
            )
    return None


WRITE_CONFIG = Exercise(
    name="offload.write_config",
    points=4,
    cases=(
        budget_case(2, 9.5, 2, (2, 8)),
        budget_case(1, 12, 2, (4, 8)),
        budget_case(4, 1, 4, (1, 8)),
        budget_case(4, 4.2, 2, (3, 36), hidden=True),
        budget_case(2, 0.5, 3, (2, 4), hidden=True),
    ),
    draw=draw_budget,
    drive=drive_write_config,
    expect=expect_write_config,
    diagnoses=(
        batch_does_not_multiply,
        not_a_dict,
        wrong_level,
        stage_leaves_it_out,
        other_choice,
        not_16_bit,
        other_batch,
    ),
    timeout_s=DEEPSPEED_TIMEOUT_S,
    engine="deepspeed",
)


# ---- fix_config ---------------------------------------------------------------------------------

# What each author wanted, and the name of what is wrong.
WANTED: dict[str, tuple[str, dict[str, Any]]] = {
    "A": ("not_json", {"stage": 3, "optimizer": {"place": "host"}, "accumulation": 2}),
    "B": (
        "duplicate_key",
        {"stage": 2, "optimizer": {"place": "host"}, "allgather_bucket": 200_000_000},
    ),
    "C": ("wrong_level", {"stage": 2, "optimizer": {"place": "host"}, "pinned": False}),
    "D": ("batch_size", {"stage": 3, "micro_batch": 4, "global_batch": 32}),
    "E": ("two_precisions", {"stage": 2, "precision": "bfloat16"}),
}
RANKS = 2


@kept_back(lambda case, inputs: [(case.params["letter"],)])
def wanted_by(letter: str) -> tuple[str, dict[str, Any]]:
    return WANTED[letter]


class _Twice(ValueError):
    pass


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, _ in pairs:
        if [other for other, _ in pairs].count(key) > 1:
            raise _Twice(key)
    return dict(pairs)


def drive_fix_config(subject: Any, letter: str, case: Case) -> Plain:
    answers = subject()
    if not isinstance(answers, dict) or letter not in answers:
        return {"problem": "missing", "evidence": ""}
    answer = answers[letter]
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return {"problem": "no pair", "evidence": ""}
    code, repaired = answer
    found = {"code": code if isinstance(code, str) else "", "problem": "", "evidence": ""}
    try:
        config = json.loads(repaired, object_pairs_hook=_no_key_twice)
    except _Twice as error:
        return {**found, "problem": "twice", "evidence": str(error)}
    except (ValueError, TypeError) as error:
        return {**found, "problem": "not json", "evidence": str(error)}
    if not isinstance(config, dict):
        return {**found, "problem": "not json", "evidence": "no object"}
    return {**found, "engine": start_engine(config, layers=1)}


def expect_fix_config(case: Case, inputs: Any) -> list[Plain]:
    code, engine = WANTED[case.params["letter"]]
    return [{"problem": "", "engine": {**engine, "steps": 1}, "code": code}] * case.world_size


def repair(attempt: Attempt, mistake: str, evidence: str = "") -> Finding:
    letter = attempt.case.params["letter"]
    return Finding(f"configuration {letter}", mistake, evidence, anyone="a configuration")


def not_parsed(attempt: Attempt) -> Finding | None:
    output = attempt.outputs[0]
    problem = output["problem"] if isinstance(output, dict) else ""
    mistakes = {
        "missing": "is not among your answers",
        "no pair": "should have a pair as its answer: (name of the mistake, repaired text)",
        "twice": "still has a key twice: of two, json keeps the last",
        "not json": "still is no JSON",
    }
    return repair(attempt, mistakes[problem], output["evidence"]) if problem else None


def refused(attempt: Attempt) -> Finding | None:
    message = said_by(attempt)
    if not message or getattr(attempt.error, "kind", "") == "NotImplementedError":
        return None
    return repair(attempt, "is still refused by DeepSpeed", " ".join(message.split()))


def wish_given_up(attempt: Attempt) -> Finding | None:
    """It starts, but not with what its author wanted."""
    output = attempt.outputs[0]
    engine = output.get("engine") if isinstance(output, dict) else None
    if not engine:
        return None
    wanted = wanted_by(attempt.case.params["letter"])[1]
    mistakes = {
        "optimizer": "starts, but the optimizer stays on the device: its author wanted it off",
        "pinned": "starts, but pins host memory, which its author did not want: move pin_memory to "
        "where DeepSpeed looks for it",
        "global_batch": "starts, but gives up its author's global batch",
        "micro_batch": "starts, but changes the micro-batch, which was right",
        "accumulation": "starts, but gives up its author's accumulation",
        "allgather_bucket": "starts, but gives up its author's bucket sizes",
        "precision": "starts, but does not train in its author's precision",
        "stage": "starts, but at another stage than its author wanted",
    }
    for key, mistake in mistakes.items():
        if key in wanted and not equal(wanted[key], engine[key]):
            return repair(attempt, mistake, f"the engine says: {key} {engine[key]}")
    return None


def misnamed(attempt: Attempt) -> Finding | None:
    output = attempt.outputs[0]
    code = wanted_by(attempt.case.params["letter"])[0]
    if not isinstance(output, dict) or "engine" not in output or output["code"] == code:
        return None
    return repair(attempt, "is repaired, but that is not the name of its mistake", output["code"])


FIX_CONFIG = Exercise(
    name="offload.fix_config",
    points=5,
    cases=tuple(Case(f"configuration {letter}", RANKS, {"letter": letter}) for letter in WANTED),
    draw=lambda case, rng: [case.params["letter"]] * case.world_size,
    drive=drive_fix_config,
    expect=expect_fix_config,
    diagnoses=(not_parsed, refused, wish_given_up, misnamed),
    timeout_s=DEEPSPEED_TIMEOUT_S,
    engine="deepspeed",
)
