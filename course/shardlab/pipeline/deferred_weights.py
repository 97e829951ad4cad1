"""A backward pass in two halves: input gradients now, weight gradients later.

For y = x·Wᵀ backward computes two products of the same size: ∂x = ∂y·W, which the previous stage
is waiting for, and ∂W = ∂yᵀ·x, which is not needed before the update.  Inside a
``DeferredWeightGradients`` context, each ``functional.linear`` with a parameter (every nn.Linear
calls it) defers the second.  Biases, norms and embeddings are cheap and get their gradients in the
first half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Products = list[tuple[Tensor, Tensor, Tensor]]  # weight, input, gradient of the output


class DeferredWeightGradients(TorchFunctionMode):
    """A context for a forward pass; its backward collects the deferred products in ``pending``."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: Products = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear:
            x, weight, bias = _linear(*args, **kwargs)
            if weight.requires_grad and weight.is_leaf and torch.is_grad_enabled():
                y = _Product.apply(x, weight, self.pending)
                return y if bias is None else y + bias
        return func(*args, **kwargs)

    @torch.no_grad()
    def finish(self) -> None:
        """Run the second half: add each weight's gradient to its ``grad``."""
        for weight, x, grad_y in self.pending:
            grad = grad_y.flatten(0, -2).T @ x.flatten(0, -2)
            weight.grad = grad if weight.grad is None else weight.grad + grad
        self.pending.clear()


def _linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


class _Product(torch.autograd.Function):
    """x [..., I] · weight [O, I] transposed -> [..., O]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, pending: Products) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pending = pending
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.pending.append((weight, x, grad_y))
        return (grad_y @ weight if ctx.needs_input_grad[0] else None), None, None
