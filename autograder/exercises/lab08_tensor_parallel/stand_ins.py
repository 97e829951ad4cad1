"""Replacements for the student's earlier answers, so that a mistake there costs nothing later.

Also correct, but different: they gather all ranks' tensors and add them, which sends more bytes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def total(tensor: Tensor) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.stack(parts).sum(dim=0)


class StandInSumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return total(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def own_part(parameter: Tensor, dim: int) -> nn.Parameter:
    parts = parameter.detach().tensor_split(dist.get_world_size(), dim)
    return nn.Parameter(parts[dist.get_rank()].clone())


class StandInColumnLinear(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = own_part(linear.weight, 0), own_part(linear.bias, 0)

    def forward(self, x: Tensor) -> Tensor:
        here = x.view_as(x)
        if here.requires_grad:
            here.register_hook(total)
        return here @ self.weight.T + self.bias


class StandInRowLinear(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = own_part(linear.weight, 1)
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return StandInSumOverRanks.apply(x @ self.weight.T) + self.bias
