"""A tiny language model whose every byte can be counted by hand, and a count of a real step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Reader(nn.Module):
    """Guesses each next token from this one alone.  B tokens, V vocabulary, D width."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, activation: str, tied: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        kind = {"relu": nn.ReLU, "gelu": nn.GELU}[activation]
        pairs = [(nn.Linear(width, width), kind()) for _ in range(layers)]
        self.layers = nn.Sequential(*(module for pair in pairs for module in pair))
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """tokens [B], targets [B]  ->  their mean loss []"""
        x_BD = self.embedding(tokens)
        x_BD = self.layers(x_BD)
        logits_BV = self.head(x_BD)
        return F.cross_entropy(logits_BV, targets)


def train_one_step(
    vocabulary: int,
    width: int,
    layers: int,
    batch_size: int,
    activation: str,
    tied: bool,
    precision: str,
    optimizer: str,
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """One step of a new Reader on random tokens; "bf16" keeps masters, which are what is stepped.

    Returns the model, its gradients still there, and the optimizer, whose parameters are the
    masters in "bf16" and the model's own in "fp32".
    """
    model = Reader(vocabulary, width, layers, activation, tied).to(DTYPES[precision])
    weights = list(model.parameters())
    masters = weights if precision == "fp32" else [to_master(weight) for weight in weights]
    stepper = OPTIMIZERS[optimizer](masters)
    tokens, targets = torch.randint(vocabulary, (2, batch_size))
    model(tokens, targets).backward()
    if precision != "fp32":
        for weight, master in zip(weights, masters, strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
    stepper.step()
    if precision != "fp32":
        for weight, master in zip(weights, masters, strict=True):
            weight.data.copy_(master)
            master.grad = None  # an fp32 copy for the length of the step
    return model, stepper


def to_master(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach().float())


def counted_bytes(**setting: Any) -> dict[str, int]:
    """Bytes by category, counted in one step of a real Reader, here and now.

    Each storage counts once.  Activations are what autograd keeps for the backward pass, without
    the weights and the batch.
    """
    kept: dict[int, int] = {}  # by address: all of these live until the backward pass

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() if tensor.is_floating_point() else 0
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model, optimizer = train_one_step(**setting)
    weights = list(model.parameters())
    masters = [master for group in optimizer.param_groups for master in group["params"]]
    states = [state for states in optimizer.state.values() for state in states.values()]
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    return {
        "parameters": storage_bytes(weights),
        "gradients": storage_bytes([weight.grad for weight in weights]),
        "optimizer": storage_bytes(states) + storage_bytes(masters, without=own),
        "activations": sum(size for at, size in kept.items() if at not in own),
    }


def storage_bytes(tensors: Iterable[Any], without: Iterable[int] = ()) -> int:
    storages = [t.untyped_storage() for t in tensors if isinstance(t, Tensor)]
    by_address = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(size for at, size in by_address.items() if at not in set(without))
