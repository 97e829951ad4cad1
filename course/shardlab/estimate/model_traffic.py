"""Bytes that ranks send when a model is split: tensor, sequence and pipeline parallelism.

Ranks send activations and their gradients, not parameters: bytes grow with the tokens of a
micro-batch and the width of the model, and are sent for each micro-batch.  Collectives are counted
as rings (shardlab.estimate.collectives).

Below, S is the size of a layer's output, `activation_bytes`: tokens · width · element bytes.

Sources: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3 (two all-reduces forward, two
backward in each layer); Narayanan et al., arXiv 2104.04473, section 3.2 (8·bsh·(t−1)/t elements for
each layer and device, bsh across a pipeline's boundary) and 4.1 (bsh/t); Korthikanti et al., arXiv
2205.05198, section 4.2 (sequence parallelism).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.estimate.collectives import (
    reduce_scatter_sent_bytes,
    ring_sent_bytes,
    scatter_or_gather_sent_bytes,
)

HALVES = 2  # of a layer: attention and MLP, each with a column-parallel and a row-parallel part


@dataclass(frozen=True)
class PassBytes:
    """Bytes that each rank sends in the forward and in the backward pass of one micro-batch."""

    forward_bytes: float
    backward_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.forward_bytes + self.backward_bytes

    def __mul__(self, times: float) -> PassBytes:
        """The bytes of ``times`` layers or micro-batches."""
        return PassBytes(times * self.forward_bytes, times * self.backward_bytes)

    def __add__(self, other: PassBytes) -> PassBytes:
        forward_bytes = self.forward_bytes + other.forward_bytes
        return PassBytes(forward_bytes, self.backward_bytes + other.backward_bytes)


def activation_bytes(tokens: float, width: float, element_bytes: float = 2) -> float:
    """S, a layer's output for a micro-batch of ``tokens`` (batch · sequence)."""
    if min(tokens, width, element_bytes) <= 0:
        raise ValueError("tokens, width and element_bytes must be above 0")
    return tokens * width * element_bytes


def tensor_parallel_layer(
    tokens: float,
    width: float,
    tp_size: int,
    *,
    element_bytes: float = 2,
    sequence_parallel: bool = False,
    gather_inputs_again: bool = False,
    reduce_scatter: str = "ring",
) -> PassBytes:
    """One transformer layer, with attention and MLP each split by columns, then by rows.

    Plain: an all-reduce of S after each half in forward, and one for the gradient of each half's
    input in backward: 2 + 2 all-reduces, 4(t−1)/t·S each way.
    sequence_parallel: an all-gather before each half and a reduce-scatter after it, and in backward
      the reverse.  The bytes are the same, since the two together are an all-reduce.
    gather_inputs_again: with sequence parallelism, each rank saves only its own part of each half's
      input and gathers it again in backward (as Megatron does; DTensor saves the whole input).
    reduce_scatter: "ring" as in NCCL; "gloo" implements it as an all-reduce, twice the bytes.

    Not counted: with sequence parallelism, the gradients of norms (4·width elements) and, if biases
    are added to each rank's own tokens, of row-parallel biases (2·width) cover only a rank's tokens
    and are summed once per step.

    Raises ValueError for invalid arguments.
    """
    size = activation_bytes(tokens, width, element_bytes)
    scatter = reduce_scatter_sent_bytes(size, tp_size, reduce_scatter)
    if gather_inputs_again and not sequence_parallel:
        raise ValueError(
            "gather_inputs_again needs sequence_parallel: without it, inputs are not sharded"
        )
    if not sequence_parallel:
        each_way = HALVES * ring_sent_bytes(size, tp_size)
        return PassBytes(each_way, each_way)
    gather = scatter_or_gather_sent_bytes(size, tp_size)
    once_more = gather if gather_inputs_again else 0.0
    return PassBytes(HALVES * (gather + scatter), HALVES * (gather + scatter + once_more))


def vocabulary_parallel_embedding_and_loss(
    tokens: float, width: float, tp_size: int, *, element_bytes: float = 2
) -> PassBytes:
    """The embedding and the loss of a model whose vocabulary is sharded over the ranks.

    Forward: an all-reduce of S after the embedding, and three of one fp32 number per token in the
    loss (the largest logit, the sum of exponentials, the target's logit).  Backward: an all-reduce
    of S for the gradient of the output projection's input.  Without sequence parallelism.
    """
    size = activation_bytes(tokens, width, element_bytes)
    embedding = ring_sent_bytes(size, tp_size)
    loss = 3 * ring_sent_bytes(tokens * 4, tp_size)
    return PassBytes(embedding + loss, embedding)


def pipeline_boundaries(
    stage_devices: Sequence[int], micro_batches: int, boundary_bytes: float
) -> list[list[float]]:
    """[N][N] bytes of one step, from row to column: activations forward, gradients backward.

    stage_devices: the device of each stage in order: [0, 1, 2, 3]; interleaved with two stages
      each, [0, 1, 2, 3, 0, 1, 2, 3]; in a V, [0, 1, 2, 3, 3, 2, 1, 0] (the turn sends nothing).
    boundary_bytes: bytes of one micro-batch between two stages: S, or S/t if each of t
      tensor-parallel ranks sends its part (`activation_bytes`).

    Raises ValueError for invalid arguments.
    """
    if not stage_devices or set(stage_devices) != set(range(max(stage_devices) + 1)):
        raise ValueError(
            f"stage_devices={list(stage_devices)}: each device from 0 to N - 1 needs a stage"
        )
    if micro_batches < 1 or micro_batches != int(micro_batches):
        raise ValueError(f"micro_batches={micro_batches}: expected a whole number, 1 or more")
    if boundary_bytes < 0:
        raise ValueError(f"boundary_bytes={boundary_bytes}: must not be negative")
    devices = max(stage_devices) + 1
    sent = [[0.0] * devices for _ in range(devices)]
    for before, after in itertools.pairwise(stage_devices):
        if before != after:
            sent[before][after] += micro_batches * boundary_bytes
            sent[after][before] += micro_batches * boundary_bytes
    return sent
