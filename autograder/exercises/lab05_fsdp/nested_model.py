"""Shared by `wrap` and `accumulate`: models of nested modules of unequal sizes, and their shards.

A model is plain data in a case: a tuple (in, out) is a linear layer, a list a block of parts.

    {"vocabulary": 40, "width": 16, "parts": [[(16, 32), (32, 16)], (16, 6)]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autograder.exercise import Case, Plain
from autograder.exercises.common import normal

GATHER, SCATTER = "all_gather_single", "reduce_scatter_single"
SAMPLES = 6  # of a batch


class Block(nn.Sequential):
    """x [B, D]  ->  x + scale · parts(x), with a tanh after each part"""

    def __init__(self, width: int, parts: Sequence[nn.Module]) -> None:
        super().__init__(*parts)
        self.scale = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for part in self:
            y = torch.tanh(part(y))
        return x + self.scale * y


def module_of(part: Any, width: int) -> nn.Module:
    if isinstance(part, tuple):
        return nn.Linear(*part)
    return Block(width, [module_of(each, width) for each in part])


def nested_model(params: Mapping[str, Any], values: Sequence[Tensor] = ()) -> nn.Sequential:
    """tokens [B]  ->  [B, out of the last part]; ``values``: of its parameters, copied."""
    width = params["width"]
    parts = [module_of(part, width) for part in params["parts"]]
    model = nn.Sequential(nn.Embedding(params["vocabulary"], width), *parts)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=False):
            parameter.copy_(value)
    return model


def on_meta(case: Case) -> nn.Sequential:
    """The case's model, without memory for its parameters."""
    with torch.device("meta"):
        return nested_model(case.params)


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same parameters on all ranks, different batches: [tokens [B], targets [B, out]]."""
    shapes = [each.shape for each in on_meta(case).parameters()]

    def batch() -> list[Tensor]:
        tokens = rng.integers(0, case.params["vocabulary"], SAMPLES)
        return [torch.from_numpy(tokens), normal(rng, SAMPLES, shapes[-1][0])]

    values = [normal(rng, *shape) / max(shape[-1], 4) ** 0.5 for shape in shapes]
    batches = case.params["batches"]
    return [
        {"parameters": values, "batches": [batch() for _ in range(batches)]}
        for _ in range(case.world_size)
    ]


def local(tensor: Tensor | None) -> Tensor | None:
    """This rank's part, a copy."""
    return None if tensor is None else shard(tensor).detach().clone()


def shard(tensor: Tensor) -> Tensor:
    """This rank's part, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Those that are no shards, by name."""
    return {name: p for name, p in model.named_parameters() if not isinstance(p, DTensor)}


def padded_elements(parameters: Iterable[Tensor], world_size: int) -> int:
    """As fully_shard pads them: each to a multiple of N rows."""
    return sum(-(-len(each) // world_size) * world_size * each[0].numel() for each in parameters)


def shards_by_rank(tensors: Mapping[str, Tensor], world_size: int) -> list[dict[str, Tensor]]:
    """As fully_shard splits: between rows, ⌈rows/N⌉ on each of the first ranks."""
    found: list[dict[str, Tensor]] = [{} for _ in range(world_size)]
    for name, tensor in tensors.items():
        rows = -(-len(tensor) // world_size)
        for rank, own in enumerate(found):
            own[name] = tensor[rank * rows : (rank + 1) * rows]
    return found


def steps(values: Iterable[Any]) -> dict[str, Any]:
    """By step: a difference is shown with the names of where it is."""
    return {f"step {step}": value for step, value in enumerate(values)}
