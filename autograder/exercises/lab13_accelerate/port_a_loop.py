"""A hand-written DDP loop, ported to Accelerate: the same losses, weights and collectives."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Limit,
    OnRanks,
    Plain,
    equal,
)
from autograder.exercise.budget import recorded_calls_explain, sent_bytes
from autograder.exercise.signs import MistakeText, is_over, on_each_call, on_each_rank
from autograder.exercises.common import FLOAT_BYTES
from autograder.exercises.lab13_accelerate.shared import (
    EXCHANGES,
    as_number,
    forget_accelerators,
    numbered,
    with_weights,
)
from shardlab.run import Call, Run

FEATURES, WIDTH, CLASSES = 8, 16, 4
SENT_FROM_BYTES = 2**17  # of gradients: gloo's own messages would exceed a few percent of less
LR = 0.4
TOLERANCE = 2e-5
TORCH_CLIP = "torch's clip_grad_norm_"
ALL_REDUCED = "bytes all-reduced"
METHODS = ("prepare", "accumulate", "no_sync", "backward", "clip_grad_norm_")


def make_model(weights: list[Tensor]) -> nn.Module:
    width = len(weights[0])
    layers = nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, CLASSES)
    return with_weights(nn.Sequential(*layers), weights)


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Every rank has the whole data set, and starts with different weights."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    samples, width = case.params["samples"], case.params["width"]
    data = [normal(samples, FEATURES), torch.from_numpy(rng.integers(CLASSES, size=samples))]
    scale = (WIDTH / width) ** 0.5 / 2
    shapes = [(width, FEATURES), (width,), (CLASSES, width), (CLASSES,)]
    return [
        {"data": data, "weights": [normal(*shape) * scale for shape in shapes]}
        for _ in range(case.world_size)
    ]


def kind_of(thing: Any) -> str:
    if isinstance(thing, DataLoader) and isinstance(thing.sampler, RandomSampler):
        return "shuffled loader"
    kinds = {
        DistributedDataParallel: "DDP",
        nn.Module: "model",
        torch.optim.Optimizer: "optimizer",
        DataLoader: "loader",
    }
    return next((name for kind, name in kinds.items() if isinstance(thing, kind)), "")


class Watch:
    """Counts calls of an Accelerator's methods, and of torch's clip_grad_norm_, which one of them
    calls: those on the given model.  A call on another model trains nothing."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.parameters = model, [*map(id, model.parameters())]
        self.used, self.prepared = Counter[str](), list[str]()
        self.passes = 0  # of backward, that have reached the model
        next(model.parameters()).register_hook(self.on_gradient)

    def on_gradient(self, _: Tensor) -> None:
        self.passes += 1

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def count(*args: Any, **kwargs: Any) -> Any:
            args, passes = (*args,), self.passes
            given = args[0] if name == TORCH_CLIP else None if len(args) < 2 else args[1]
            if name in (TORCH_CLIP, "clip_grad_norm_") and not isinstance(given, Tensor):
                at = 0 if name == TORCH_CLIP else 1  # a generator can be read only once
                given = [*given] if given is not None else [*kwargs.pop("parameters")]
                args = (*args[:at], given, *args[at + 1 :])
            if name == "prepare":
                self.prepared.extend(self.kind_of(each) for each in args[1:])
            returned = function(*args, **kwargs)
            was_reached = self.passes > passes
            self.used[name] += was_reached if name == "backward" else self.is_own(name, given)
            return returned

        return count

    def is_own(self, name: str, given: Any) -> bool:
        if name in (TORCH_CLIP, "clip_grad_norm_"):
            return {*map(id, given)} >= {*self.parameters}
        while isinstance(given, DistributedDataParallel):
            given = given.module
        is_about_models = name in ("accumulate", "no_sync") and given is not None
        return given is self.model if is_about_models else True

    def kind_of(self, thing: Any) -> str:
        kind = kind_of(thing)
        is_other = {
            "model": lambda: thing is not self.model,
            "optimizer": lambda: (
                not {*self.parameters}.issuperset(
                    id(each) for group in thing.param_groups for each in group["params"]
                )
            ),
        }
        return f"another {kind}" if kind in is_other and is_other[kind]() else kind


@contextmanager
def watched(model: nn.Module) -> Iterator[Watch]:
    from accelerate import Accelerator

    watch = Watch(model)
    functions = [(Accelerator, name, name) for name in METHODS]
    with ExitStack() as patches:
        for owner, name, label in (*functions, (nn.utils, "clip_grad_norm_", TORCH_CLIP)):
            count = watch.counted(label, getattr(owner, name))
            patches.enter_context(mock.patch.object(owner, name, count))
        yield watch


def drive(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    from accelerate.state import PartialState

    forget_accelerators()
    params, saved = case.params, list[Plain]()
    rank, of_machine = dist.get_rank(), case.world_size // params["machines"]
    machine = {"LOCAL_RANK": str(rank % of_machine), "LOCAL_WORLD_SIZE": str(of_machine)}

    def save(state: Any) -> None:
        is_dict = isinstance(state, dict)
        copy = {k: v.detach().clone() for k, v in state.items()} if is_dict else None
        saved.append(f"a {type(state).__name__}" if copy is None else copy)

    model = make_model(given["weights"])
    loop = (params["batch_size"], params["accumulation"], LR, params["max_norm"], save)
    # As a launcher sets them; with several machines, Accelerate needs an address.
    variables = mock.patch.dict(os.environ, machine, MASTER_ADDR="localhost")
    with variables, watched(model) as watch:
        losses = subject(model, TensorDataset(*given["data"]), *loop)
    is_list = isinstance(losses, list | tuple)
    return {
        "number of losses": len(losses) if is_list else losses,
        **numbered("losses", map(as_number, losses if is_list else [])),
        "parameters": {name: each.detach() for name, each in model.named_parameters()},
        "saved": saved,
        "used": dict(watch.used),
        "passes": watch.passes,
        "prepared": watch.prepared,
        "processes": PartialState._shared_state.get("num_processes", 0),
    }


def exchanged(run: Run) -> list[int]:
    return [
        sum(call.bytes for call in run.calls_of(rank) if call.op in EXCHANGES)
        for rank in range(run.world_size)
    ]


def exchanged_limit(case: Case) -> Limit:
    """The gradients of each step, and 64 bytes more for each and at the end."""
    gradients = steps_of(case) * gradient_bytes(case)
    return Limit(gradients + (steps_of(case) + 1) * 64, gradients)


def steps_of(case: Case) -> int:
    p = case.params
    samples = p["batch_size"] * p["accumulation"] * case.world_size  # of a step
    return int(-(-p["samples"] // samples))


def micro_batches_of(case: Case) -> int:
    """Of each rank, in all steps."""
    return int(case.params["samples"] // (case.params["batch_size"] * case.world_size))


def gradient_bytes(case: Case) -> int:
    width = case.params["width"]
    return int(FLOAT_BYTES * (width * (FEATURES + 1) + CLASSES * (width + 1)))


def wire_limit(case: Case) -> Limit | None:
    """On two ranks: what DDP broadcasts from rank 0 at its start, as an answer may once more, and
    one all-reduce a step."""
    own, steps = gradient_bytes(case), steps_of(case)
    if case.world_size > 2 or own < SENT_FROM_BYTES:
        return None
    least = 0.95 * steps * own
    return Limit([1.05 * (steps + 2) * own, 1.05 * steps * own], least)


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
            "never calls accelerator.clip_grad_norm_, which, unlike torch's function, knows scaled "
            "and sharded gradients"
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
    if "shuffled loader" in output["prepared"]:
        return "shuffles the data, which the loop by hand takes in order"
    for kind, reason in reasons.items():
        if kind not in output["prepared"]:
            return f"does not pass the {kind} to prepare: {reason}"
    return None


@on_each_rank
def trains_elsewhere(output: Any, expected: Any, case: Case) -> MistakeText:
    """Of a loop whose results are right; a mistake in others is named."""
    due, got = micro_batches_of(case), output["used"]["backward"]
    if got == output["passes"] == due or not equal(expected, output, TOLERANCE):
        return None
    mistake = (
        "does not compute the gradients in one accelerator.backward for each of its micro-batches, "
        "with the loss of the prepared model"
    )
    return mistake, f"{got} of {output['passes']} passes, {due} micro-batches"


@on_each_call
def waits_in_each_step(call: Call, attempt: Attempt) -> MistakeText:
    barriers = [each for each in attempt.calls_of(call.rank) if each.op == "barrier"]
    if len(barriers) < 2 or call is not barriers[1]:
        return None
    return "calls a barrier in the loop: its collectives are all the synchronization it needs"


@on_each_rank
def saves_otherwise(output: Any, rank: int, case: Case) -> MistakeText:
    saved, of_machine = output["saved"], case.world_size // case.params["machines"]
    if saved and rank and rank % of_machine == 0:
        return "calls save as well, the first rank of another machine: ask is_main_process"
    if len(saved) != (rank == 0):
        times = f"save was called {len(saved)} time{'s' * (len(saved) != 1)}"
        return "should call save once, on the main process only", times
    if rank == 0 and isinstance(saved[0], str):
        return "calls save with something other than a state dict", saved[0]
    if rank == 0 and any("module." in name for name in saved[0]):
        return (
            "saves the wrapper's names: take the state dict of accelerator.unwrap_model(model)",
            next(iter(saved[0])),
        )
    return None


def losses_of(output: Any) -> list[float]:
    return [output[f"losses[{i}]"] for i in range(output["number of losses"] or 0)]


@on_each_rank
def losses_of_its_own(output: Any, attempt: Attempt) -> MistakeText:
    by_rank = [losses_of(each) for each in attempt.outputs]
    if by_rank[0] and not losses_of(output):
        return "returns no losses, only rank 0 does: every rank should return them"
    if len({len(each) for each in by_rank}) > 1:
        return None
    means = [sum(each) / len(each) for each in zip(*by_rank, strict=True)]
    if losses_of(output) == by_rank[0] or not equal(losses_of(attempt.expected[0]), means, 1e-4):
        return None
    return "returns the losses of its own micro-batches: average them over the ranks"


@on_each_rank
def other_weights(output: Any, attempt: Attempt) -> MistakeText:
    """DDP starts with equal weights, so they differ only if gradients do."""
    if equal(attempt.outputs[0]["parameters"], output["parameters"]):
        return None
    return (
        "ends with other weights than rank 0: its gradients were not averaged; DDP does that in "
        "the backward pass of the prepared model, in the last micro-batch of a step"
    )


@on_each_rank
def reduces_gradients_again(rank: int, attempt: Attempt) -> MistakeText:
    if rank not in is_over(attempt, ALL_REDUCED):
        return None
    calls = [call for call in attempt.calls_of(rank) if call.op == "all_reduce"]
    if sum(call.bytes for call in calls) <= attempt.spent[0].limit[rank]:
        return None
    return (
        "all-reduces gradients more than once a step: DDP does it in the last micro-batch, if "
        "accelerator.accumulate gets the prepared model"
    )


def case_of(
    name: str,
    world_size: int,
    samples: int,
    batch_size: int,
    accumulation: int,
    max_norm: float,
    machines: int = 1,
    width: int = WIDTH,
) -> Case:
    """``max_norm`` is below the norm of most gradients, but above half of it."""
    loop = {"samples": samples, "batch_size": batch_size, "accumulation": accumulation}
    params = {**loop, "max_norm": max_norm, "machines": machines, "width": width}
    return Case(name, world_size, params)


EXERCISE = OnRanks(
    points=4,
    cases=(
        case_of("2 ranks, 3 steps of 2 micro-batches", 2, 36, 3, 2, 1.0),
        case_of("4 ranks on 2 machines, 2 steps of 4 micro-batches", 4, 64, 2, 4, 0.8, machines=2),
        case_of("2 ranks, the last step has one micro-batch of 3", 2, 32, 4, 3, 0.7),
    ),
    inputs=draw_inputs,
    drive=drive,
    tolerance=TOLERANCE,
    engine="torch",
    timeout_s=40,  # Accelerate is imported in the first case
    budgets=(
        Budget(
            "all-reduces the gradients once a step, and at most 64 bytes more",
            exchanged,
            exchanged_limit,
            ALL_REDUCED,
        ),
        Budget("sends ≤ 1.05 × weights once, gradients once a step", sent_bytes, wire_limit),
        recorded_calls_explain(sent_bytes, lambda case: wire_limit(case) is not None),
    ),
    rules=(
        *(trains_alone, not_ported, wraps_twice, leaves_unprepared),
        *(trains_elsewhere, waits_in_each_step),
    ),
    signs=(
        NAMED_MISTAKES,
        saves_otherwise,
        losses_of_its_own,
        other_weights,
        reduces_gradients_again,
    ),
)
