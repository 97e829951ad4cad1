"""A language model small enough to count every byte by hand, and one training step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class BigramModel(nn.Module):
    """Predicts the next token from the current one alone.

    T tokens in the batch, V vocabulary, D width.
    """

    def __init__(
        self, vocabulary: int, width: int, layers: int, activation: str, tied: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        new_activation = {"relu": nn.ReLU, "gelu": nn.GELU}[activation]
        pairs = [(nn.Linear(width, width), new_activation()) for _ in range(layers)]
        self.layers = nn.Sequential(*(module for pair in pairs for module in pair))
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """tokens [T], targets [T]  ->  their mean loss []"""
        x_TD = self.embedding(tokens)
        x_TD = self.layers(x_TD)
        logits_TV = self.head(x_TD)
        return functional.cross_entropy(logits_TV, targets)


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
    """Train a new model for one step on random tokens.

    Returns the model with its gradients, and the optimizer.  With "bf16" the optimizer updates fp32
    master weights, with "fp32" the model's own.
    """
    model = BigramModel(vocabulary, width, layers, activation, tied).to(DTYPES[precision])
    weights = list(model.parameters())
    masters = weights if precision == "fp32" else [to_master(weight) for weight in weights]
    torch_optimizer = OPTIMIZERS[optimizer](masters)
    tokens, targets = torch.randint(vocabulary, (2, batch_size))
    model(tokens, targets).backward()
    if precision != "fp32":
        for weight, master in zip(weights, masters, strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
    torch_optimizer.step()
    if precision != "fp32":
        for weight, master in zip(weights, masters, strict=True):
            weight.data.copy_(master)
            master.grad = None  # an fp32 copy, needed only during the step
    return model, torch_optimizer


def to_master(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach().float())
