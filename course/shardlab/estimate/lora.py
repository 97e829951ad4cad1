"""What LoRA trains, stores and sends: W + (α/r) · B·A, with B [rows, r] and A [r, columns].

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685.  The base W is
frozen: it has no gradient, no optimizer state, and is not reduced.  A and B are in fp32, as peft
keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardlab.estimate.collectives import ring_sent_bytes
from shardlab.estimate.memory import FP32_BYTES

Shape = tuple[int, int]  # of a weight: (rows, columns), which are its outputs and inputs
# An adapter's element, its gradient, and Adam's two states.
TRAINED_BYTES = 4 * FP32_BYTES


def adapter_parameters(shapes: Iterable[Shape], r: int) -> int:
    """Elements of A and B of all weights that get an adapter: r · (rows + columns) each.

    Raises ValueError for r below 1.
    """
    if r < 1:
        raise ValueError(f"r={r}: an adapter's rank is at least 1")
    return sum(r * (rows + columns) for rows, columns in shapes)


def trained_bytes(adapter_parameters: int) -> int:
    """Adapters, their gradients and Adam's states on each rank, with DDP."""
    return TRAINED_BYTES * adapter_parameters


def sent_bytes(adapter_parameters: int, world_size: int) -> float:
    """By each rank in a step with DDP: only the adapters' gradients are all-reduced."""
    return ring_sent_bytes(FP32_BYTES * adapter_parameters, world_size)


def training_flops(parameters: float, tokens: float, is_frozen: bool) -> float:
    """Of the matrix products of a step: 6N for each token, or 4N if the weights are frozen.

    Forward takes 2N, and backward 2N for the gradients of the inputs and 2N for those of the
    weights (Kaplan et al., arXiv 2001.08361, section 2.1).  Frozen weights need only the former.
    The adapters' own products are left out.
    """
    return (4 if is_frozen else 6) * parameters * tokens
