"""A run whose loss stalls because its parameters are bf16: repaired by policy, on real ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from autograder.exercise import Attempt, Budget, Case, Finding, Limit, OnRanks, Plain, sent_bytes
from autograder.exercise.signs import (
    HALF_PRECISION,
    MistakeText,
    never_waited,
    on_each_call,
    on_each_rank,
    raises,
)
from autograder.exercises.common import BUDGET_FROM_BYTES
from autograder.exercises.lab05_fsdp.nested_model import padded_elements, shard, whole_parameters
from autograder.exercises.lab05_fsdp.wrap import leaves_out, top_down
from shardlab.estimate import scatter_or_gather_sent_bytes
from shardlab.run import Call

VOCABULARY = 64
LR = 3e-4
# All weights are between 1/8 and 1/4, where two bf16 numbers are 2⁻¹⁰ apart: an update of LR is
# less than half of that, so every one of them is rounded away.
SMALLEST, LARGEST = 0.13, 0.24
# Of the losses, for sums in another order; computing in bf16 changes them as much.
TOLERANCE = 0.002
OPTIONS = ("betas", "eps", "weight_decay", "amsgrad", "maximize")  # which change the updates
WITHIN = 1.03


class Block(nn.Module):
    """x + down(tanh(up(x)))"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    """Predicts the next token from one token. ``blocks`` are its layers."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B] -> logits [B, V]"""
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def model_of(case: Case) -> Model:
    return Model(case.params["width"], case.params["blocks"])


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same pretrained weights on all ranks, each rank's own tokens and their targets."""
    weights = {
        name: torch.from_numpy(
            rng.uniform(SMALLEST, LARGEST, tuple(each.shape)) * rng.choice((-1, 1), each.shape)
        ).float()
        for name, each in model_of(case).named_parameters()
    }
    size = (2, case.params["samples"])
    return [
        {"weights": weights, "tokens": torch.from_numpy(rng.integers(0, VOCABULARY, size))}
        for _ in range(case.world_size)
    ]


def loader(weights: Mapping[str, Tensor], case: Case) -> Callable[..., Model]:
    def load(dtype: torch.dtype) -> Model:
        """A new copy of the pretrained model, its parameters in ``dtype``."""
        model = model_of(case)
        model.load_state_dict(weights)
        return model.to(dtype)

    return load


def train(model: nn.Module, optimizer: Any, tokens: Tensor, steps: int) -> Tensor:
    """The loss in each step: [steps]"""
    losses = []
    for _ in range(steps):
        loss = functional.cross_entropy(model(tokens[0]).float(), tokens[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def drive(subject: Any, given: Any, case: Case) -> Plain:
    lr = case.params["lr"]
    returned = subject(loader(given["weights"], case), lr)
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    if not is_pair or not isinstance(returned[0], nn.Module):
        return {"returned": type(returned).__name__}
    model, optimizer = returned
    parameters = list(model.parameters())
    before = [shard(each).detach().clone() for each in parameters]
    updated = {id(each) for group in optimizer.param_groups for each in group["params"]}
    own = {id(each) for each in parameters}
    usual = torch.optim.AdamW([torch.zeros(1)]).defaults
    changed = {
        option: group[option]
        for group in optimizer.param_groups
        for option in OPTIONS
        if option in group and group[option] != usual[option]
    }
    found = {
        "returned": "",
        "whole": len(whole_parameters(model)),
        "trains": model.training,
        "optimizer": type(optimizer).__name__,
        "lr": [group["lr"] / lr for group in optimizer.param_groups],
        "options": ", ".join(f"{option}={value}" for option, value in changed.items()),
        "strangers": len(updated - own),
        "left out": len(own - updated),
        "dtypes": sorted({str(each.dtype).removeprefix("torch.") for each in before}),
    }
    if found["whole"]:  # it may not even run
        return found
    found["losses"] = train(model, optimizer, given["tokens"], case.params["steps"])
    now = [shard(each) for each in model.parameters()]
    moved = sum(int((a != b).sum()) for a, b in zip(before, now, strict=True))
    found["moved"] = [moved, sum(each.numel() for each in now)]
    return found


@on_each_rank
def returns_no_pair(output: Any) -> MistakeText:
    if kind := output["returned"]:
        return "should return the model and its optimizer: return model, optimizer", f"a {kind}"
    return None


@on_each_rank
def changes_the_rate(output: Any) -> MistakeText:
    if factor := next((each for each in output["lr"] if not 0.999 < each < 1.001), None):
        return "changes the learning rate: keep lr, and let small updates count", f"{factor:g} × lr"
    return None


@on_each_rank
def another_optimizer(output: Any) -> MistakeText:
    if output["optimizer"] != "AdamW":
        return "changes the optimizer: keep AdamW", output["optimizer"]
    if output["options"]:
        return "changes options of AdamW: keep those that it has by default", output["options"]
    return None


@on_each_rank
def not_sharded(output: Any) -> MistakeText:
    if output["whole"]:
        return "has parameters that are not sharded: fully_shard each block, then the model"
    if output["strangers"]:
        return (
            "gives the optimizer parameters that are not the model's: build it after fully_shard, "
            "which replaces them"
        )
    return None


@on_each_rank
def is_in_eval_mode(output: Any) -> MistakeText:
    return None if output["trains"] else "returns the model in eval mode: fine-tuning trains it"


@on_each_rank
def masters_are_not_fp32(output: Any) -> MistakeText:
    if (dtypes := output["dtypes"]) == ["float32"]:
        return None
    if not set(dtypes) & {*HALF_PRECISION}:
        return "trains parameters that are not float32", ", ".join(dtypes)
    moved, elements = output["moved"]
    return (
        "trains parameters that are not float32: an update below half the distance to the next "
        "bfloat16 number is rounded away, whatever dtype gradients are reduced in",
        f"{', '.join(dtypes)}; {moved:,} of its {elements:,} elements changed in all steps",
    )


@on_each_call
def wrong_dtype(call: Call) -> MistakeText:
    evidence = f"{call.bytes:,} bytes"
    if call.op.startswith("all_gather") and call.dtype != "bfloat16":
        why = (
            ": param_dtype of a MixedPrecisionPolicy casts before the all-gather; autocast only "
            "casts inside layers, after it"
        )
        mistake = f"gathers parameters in {call.dtype}, not in bfloat16"
        return mistake + (why if call.dtype == "float32" else ""), evidence
    if call.op.startswith("reduce_scatter") and call.dtype != "float32":
        return (
            f"reduces gradients in {call.dtype}: reduce_dtype is param_dtype unless it is given, "
            "and the task asks for float32",
            evidence,
        )
    return None


def has_other_units(attempt: Attempt) -> Finding | None:
    """After wrong_dtype: parameters are gathered in 2 bytes each."""
    case = attempt.case
    expected = {2 * elements for elements in unit_elements(case)}
    gathers = [call for call in attempt.calls if call.op.startswith("all_gather")]
    wanted = case.params["steps"] * (case.params["blocks"] + 1)
    if (count := sum(call.rank == 0 for call in gathers)) < wanted:
        mistake = "has too few units: keep each block a unit of its own, and the rest in the root"
        return Finding("rank 0", mistake, f"{count} all-gathers, {wanted} at least")
    for call in gathers:
        whole = call.bytes * case.world_size
        if whole not in expected:
            mistake = "has the wrong units: each block is one, and the root has the rest"
            return Finding(f"rank {call.rank}", mistake, f"a unit of {whole // 2:,} parameters")
    return None


def unit_elements(case: Case) -> list[int]:
    """Of each unit, padded."""
    model = model_of(case)
    units = [*(block.parameters() for block in model.blocks)]
    units.append(chain(model.token.parameters(), model.head.parameters()))
    return [padded_elements(unit, case.world_size) for unit in units]


def bytes_limit(case: Case) -> Limit | None:
    """At most two all-gathers of each unit in 2 bytes and a reduce-scatter in 4, which gloo runs as
    an all-reduce; at least one all-gather of each."""

    def sent(gathers: int) -> float:
        each = (2 * gathers + 2 * 4) * sum(unit_elements(case))
        return case.params["steps"] * scatter_or_gather_sent_bytes(each, case.world_size)

    if sent(2) < BUDGET_FROM_BYTES:
        return None
    return Limit(WITHIN * sent(2), sent(1) / WITHIN)


def case_of(
    name: str, world_size: int, width: int, blocks: int, steps: int, lr: float, samples: int = 64
) -> Case:
    sizes = {"width": width, "blocks": blocks, "steps": steps, "samples": samples}
    return Case(name, world_size, {**sizes, "lr": lr})


EXERCISE = OnRanks(
    points=3,
    cases=(case_of("2 ranks, 3 blocks, 8 steps", 2, width=96, blocks=3, steps=8, lr=2.5e-4),),
    inputs=draw_inputs,
    drive=drive,
    tolerance=TOLERANCE,
    budgets=(Budget("sends ≤ 1.03 × ideal bytes per rank", sent_bytes, bytes_limit),),
    rules=(
        returns_no_pair,
        changes_the_rate,
        another_optimizer,
        not_sharded,
        leaves_out,
        is_in_eval_mode,
        masters_are_not_fp32,
        wrong_dtype,
        has_other_units,
        never_waited,
    ),
    signs=(
        top_down,
        raises(
            "must have the same dtype",
            "computes with tensors of two dtypes: give the policy to every fully_shard, of the "
            "blocks and of the root",
            quoted=True,
        ),
    ),
    compares_calls=False,  # FSDP makes them, on no line of the answer
)
