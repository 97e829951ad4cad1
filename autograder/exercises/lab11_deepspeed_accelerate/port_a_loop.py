"""A hand-written DDP loop, ported to Accelerate: the same losses, weights and collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from autograder.exercise import NAMED_MISTAKES, Attempt, Budget, Case, Limit, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.common import FLOAT_BYTES
from autograder.exercises.lab11_deepspeed_accelerate.shared import (
    EXCHANGES,
    as_number,
    forget_accelerators,
    with_weights,
)
from shardlab.run import Run

FEATURES, WIDTH, CLASSES = 8, 16, 4
LR = 0.4
TORCH_CLIP = "torch's clip_grad_norm_"
METHODS = ("prepare", "accumulate", "no_sync", "backward", "clip_grad_norm_")


def make_model(weights: list[Tensor]) -> nn.Module:
    layers = nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)
    return with_weights(nn.Sequential(*layers), weights)


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Every rank has the whole data set, and starts with different weights."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    samples = case.params["samples"]
    data = [normal(samples, FEATURES), torch.from_numpy(rng.integers(CLASSES, size=samples))]
    shapes = [(WIDTH, FEATURES), (WIDTH,), (CLASSES, WIDTH), (CLASSES,)]
    return [
        {"data": data, "weights": [normal(*shape) / 2 for shape in shapes]}
        for _ in range(case.world_size)
    ]


def kind_of(thing: Any) -> str:
    kinds = {
        DistributedDataParallel: "DDP",
        nn.Module: "model",
        torch.optim.Optimizer: "optimizer",
        DataLoader: "loader",
    }
    return next((name for kind, name in kinds.items() if isinstance(thing, kind)), "")


@contextmanager
def watched() -> Iterator[tuple[Counter[str], list[str]]]:
    """Count calls of an Accelerator's methods and of torch's clip_grad_norm_, which one of them
    calls, and collect what is passed to `prepare`."""
    from accelerate import Accelerator

    used, prepared = Counter[str](), list[str]()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def count(*args: Any, **kwargs: Any) -> Any:
            used[name] += 1
            if name == "prepare":
                prepared.extend(map(kind_of, args[1:]))
            return function(*args, **kwargs)

        return count

    functions = [(Accelerator, name, name) for name in METHODS]
    with ExitStack() as patches:
        for owner, name, label in (*functions, (nn.utils, "clip_grad_norm_", TORCH_CLIP)):
            count = counted(label, getattr(owner, name))
            patches.enter_context(mock.patch.object(owner, name, count))
        yield used, prepared


def drive(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    from accelerate.state import PartialState

    forget_accelerators()
    params, saved = case.params, list[Plain]()

    def save(state: Any) -> None:
        is_dict = isinstance(state, dict)
        copy = {k: v.detach().clone() for k, v in state.items()} if is_dict else None
        saved.append(f"a {type(state).__name__}" if copy is None else copy)

    model = make_model(given["weights"])
    loop = (params["batch_size"], params["accumulation"], LR, params["max_norm"], save)
    with watched() as (used, prepared):
        losses = subject(model, TensorDataset(*given["data"]), *loop)
    if isinstance(losses, list | tuple):
        losses = [as_number(each) for each in losses]
    return {
        "losses": losses,
        "parameters": [each.detach() for each in model.parameters()],
        "saved": saved,
        "used": dict(used),
        "prepared": prepared,
        "processes": PartialState._shared_state.get("num_processes", 0),
    }


def exchanged(run: Run) -> list[int]:
    return [
        sum(call.bytes for call in run.calls_of(rank) if call.op in EXCHANGES)
        for rank in range(run.world_size)
    ]


def exchanged_limit(case: Case) -> Limit:
    """The gradients of each step, and 64 bytes more for each and at the end."""
    p = case.params
    samples = p["batch_size"] * p["accumulation"] * case.world_size  # of a step
    steps = -(-p["samples"] // samples)
    gradients = steps * FLOAT_BYTES * (WIDTH * (FEATURES + 1) + CLASSES * (WIDTH + 1))
    return Limit(gradients + (steps + 1) * 64, gradients)


@on_each_rank
def trains_alone(output: Any, case: Case) -> MistakeText:
    processes, n = output["processes"], case.world_size
    if processes == 0:
        return "never creates an Accelerator"
    if processes == n:
        return None
    mistake = (
        "trains alone, without an error: on CPU ranks an Accelerator joins the process group only "
        "with Accelerator(cpu=True)"
    )
    return mistake, f"its num_processes is {processes}, of {n} ranks"


@on_each_rank
def not_ported(output: Any, case: Case) -> MistakeText:
    used = output["used"]
    if not used.get("prepare"):
        return "never calls accelerator.prepare"
    accumulates = case.params["accumulation"] > 1
    if accumulates and not used.get("accumulate") and not used.get("no_sync"):
        return (
            "never enters accelerator.accumulate(model): without it each backward pass all-reduces "
            "the gradients, and the prepared optimizer steps at every micro-batch"
        )
    if not used.get("backward"):
        return (
            "never calls accelerator.backward(loss): only this divides by the accumulation steps, "
            "and scales the loss under fp16 or DeepSpeed"
        )
    if not used.get("clip_grad_norm_"):
        return (
            "never clips with accelerator.clip_grad_norm_: torch's function knows neither scaled "
            "nor sharded gradients"
        )
    if used.get(TORCH_CLIP, 0) > used["clip_grad_norm_"]:
        return "clips with torch's clip_grad_norm_ as well: leave it to the accelerator's alone"
    return None


@on_each_rank
def wraps_twice(output: Any) -> MistakeText:
    if "DDP" in output["prepared"]:
        return (
            "passes a DistributedDataParallel model to prepare, which wraps it again: accumulate "
            "switches off the outer all-reduce, but the inner one stays on"
        )
    return None


@on_each_rank
def leaves_unprepared(output: Any) -> MistakeText:
    reasons = {
        "model": "only prepare wraps it for DDP or DeepSpeed, which average its gradients",
        "loader": "only prepare divides its batches among the ranks, and lets the accelerator know "
        "where it ends and the last step is due",
        "optimizer": "only a prepared one waits for the last micro-batch of a step, and skips a "
        "step whose fp16 gradients overflow",
    }
    for kind, reason in reasons.items():
        if kind not in output["prepared"]:
            return f"does not pass the {kind} to prepare: {reason}"
    return None


@on_each_rank
def saves_otherwise(output: Any, rank: int) -> MistakeText:
    saved = output["saved"]
    if len(saved) != (rank == 0):
        return "should call save once, on the main process only", f"{len(saved)} calls"
    if rank == 0 and isinstance(saved[0], str):
        return "calls save with something other than a state dict", saved[0]
    if rank == 0 and any("module." in name for name in saved[0]):
        return (
            "saves the wrapper's names: take the state dict of accelerator.unwrap_model(model)",
            next(iter(saved[0])),
        )
    return None


@on_each_rank
def losses_of_its_own(output: Any, attempt: Attempt) -> MistakeText:
    if output["losses"] in (None, attempt.outputs[0]["losses"]):
        return None
    return "returns the losses of its own micro-batches: average them over the ranks"


def case_of(
    name: str, world_size: int, samples: int, batch_size: int, accumulation: int, max_norm: float
) -> Case:
    """``max_norm`` is below the norm of most gradients, but above half of it."""
    loop = {"samples": samples, "batch_size": batch_size, "accumulation": accumulation}
    return Case(name, world_size, {**loop, "max_norm": max_norm})


EXERCISE = OnRanks(
    points=4,
    cases=(
        case_of("2 ranks, 3 steps of 2 micro-batches", 2, 36, 3, 2, 1.0),
        case_of("4 ranks, 2 steps of 4 micro-batches", 4, 64, 2, 4, 0.8),
        case_of("2 ranks, the last step has one micro-batch of 3", 2, 32, 4, 3, 0.7),
    ),
    inputs=draw_inputs,
    drive=drive,
    tolerance=2e-5,
    engine="torch",
    timeout_s=40,  # Accelerate is imported in the first case
    budgets=(
        Budget(
            "all-reduces the gradients once a step, and at most 64 bytes more",
            exchanged,
            exchanged_limit,
            "bytes all-reduced",
        ),
    ),
    rules=(trains_alone, not_ported, wraps_twice, leaves_unprepared),
    signs=(NAMED_MISTAKES, saves_otherwise, losses_of_its_own),
)
