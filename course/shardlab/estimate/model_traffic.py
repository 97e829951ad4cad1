"""Bytes that ranks send where they share one model: tensor, sequence and pipeline parallelism.

What travels here are activations and their gradients, not parameters: bytes grow with the tokens of
a micro-batch and the width of the model, and are sent for each micro-batch.  Counted as rings run
the collectives (shardlab.estimate.collectives).

Below, S is the size of a layer's output, `activation_bytes`: tokens · width · bytes of an element.

Sources: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3 (two all-reduces forward, two
backward in each layer); Narayanan et al., arXiv 2104.04473, section 3.2 (8·bsh·(t−1)/t elements for
each layer and device, bsh across a pipeline's boundary) and 4.1 (bsh/t); Korthikanti et al., arXiv
2205.05198, section 4.2 (sequence parallelism).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.estimate.collectives import ring_sent_bytes, scatter_or_gather_sent_bytes

REDUCE_SCATTERS = ("ring", "gloo")
HALVES = 2  # of a layer: attention and MLP, each a column-parallel part and a row-parallel one


@dataclass(frozen=True)
class PassBytes:
    """Bytes that each rank sends in the forward and in the backward pass of one micro-batch."""

    forward_bytes: float
    backward_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.forward_bytes + self.backward_bytes

    def __mul__(self, times: float) -> PassBytes:
        """For so many layers, or micro-batches."""
        return PassBytes(times * self.forward_bytes, times * self.backward_bytes)

    def __add__(self, other: PassBytes) -> PassBytes:
        forward_bytes = self.forward_bytes + other.forward_bytes
        return PassBytes(forward_bytes, self.backward_bytes + other.backward_bytes)


def activation_bytes(tokens: float, width: float, element_bytes: float = 2) -> float:
    """S, a layer's output for a micro-batch of ``tokens`` (batch · sequence)."""
    if min(tokens, width, element_bytes) <= 0:
        raise ValueError("tokens, width and element_bytes are above 0")
    return tokens * width * element_bytes


def tensor_parallel_layer(
    tokens: float,
    width: float,
    tp_size: int,
    *,
    element_bytes: float = 2,
    sequence_parallel: bool = False,
    gathers_again: bool = False,
    reduce_scatter: str = "ring",
) -> PassBytes:
    """One transformer layer, attention and MLP each as columns, then rows.

    Plain: an all-reduce of S behind each half in forward, one before each half's input in backward:
    2 + 2 all-reduces, 4(t−1)/t·S each way.
    sequence_parallel: an all-gather before each half and a reduce-scatter behind it, in backward
      the same the other way round.  As many bytes, since the two are the halves of an all-reduce.
    gathers_again: with sequence parallelism, only a rank's own part of each half's input is kept
      for backward, and gathered once more there (Megatron does; DTensor keeps the whole).
    reduce_scatter: "ring" as NCCL does it; "gloo" runs it as an all-reduce, twice the bytes.

    Not counted: with sequence parallelism each rank has the gradients of norms (4·width elements)
    and, where it adds them to its own tokens, of row-parallel biases (2·width) for its tokens only.
    They are summed once for a step.

    Raises ValueError for what cannot be.
    """
    size = activation_bytes(tokens, width, element_bytes)
    if reduce_scatter not in REDUCE_SCATTERS:
        known = ", ".join(REDUCE_SCATTERS)
        raise ValueError(f"reduce_scatter={reduce_scatter!r} is not known: one of {known}")
    if gathers_again and not sequence_parallel:
        raise ValueError("without sequence_parallel inputs are whole: gathers_again has no meaning")
    if not sequence_parallel:
        each_way = HALVES * ring_sent_bytes(size, tp_size)
        return PassBytes(each_way, each_way)
    gather = scatter_or_gather_sent_bytes(size, tp_size)
    scatter = ring_sent_bytes(size, tp_size) if reduce_scatter == "gloo" else gather
    once_more = gather if gathers_again else 0.0
    return PassBytes(HALVES * (gather + scatter), HALVES * (gather + scatter + once_more))


def vocabulary_parallel_ends(
    tokens: float,
    width: float,
    tp_size: int,
    *,
    element_bytes: float = 2,
    loss_element_bytes: float = 4,
) -> PassBytes:
    """The embedding and the loss of a model whose vocabulary is cut over the ranks.

    Forward: an all-reduce of S behind the embedding, and three of one number for each token in the
    loss (the largest logit, the sum of exponentials, the target's logit).  Backward: an all-reduce
    of S before the matrix that makes the logits.  Without sequence parallelism.
    """
    size = activation_bytes(tokens, width, element_bytes)
    embedding = ring_sent_bytes(size, tp_size)
    loss = 3 * ring_sent_bytes(tokens * loss_element_bytes, tp_size)
    return PassBytes(embedding + loss, embedding)


def pipeline_boundaries(
    stage_devices: Sequence[int], micro_batches: int, boundary_bytes: float
) -> list[list[float]]:
    """[N][N] bytes of one step, from row to column: activations forward, gradients backward.

    stage_devices: the device of each stage in order: [0, 1, 2, 3]; interleaved, two stages each,
      [0, 1, 2, 3, 0, 1, 2, 3]; in a V, [0, 1, 2, 3, 3, 2, 1, 0], where the turn costs nothing.
    boundary_bytes: of one micro-batch between two stages: S, or S/t where each of t tensor-parallel
      ranks sends its part (`activation_bytes`).

    Raises ValueError for what cannot be.
    """
    if not stage_devices or set(stage_devices) != set(range(max(stage_devices) + 1)):
        raise ValueError(f"stage_devices={list(stage_devices)}: devices 0 to N - 1, each with one")
    if micro_batches < 1 or micro_batches != int(micro_batches):
        raise ValueError(f"micro_batches={micro_batches}: a whole number, 1 or more")
    if boundary_bytes < 0:
        raise ValueError(f"boundary_bytes={boundary_bytes}: a size is not negative")
    devices = max(stage_devices) + 1
    sent = [[0.0] * devices for _ in range(devices)]
    for before, after in itertools.pairwise(stage_devices):
        if before != after:
            sent[before][after] += micro_batches * boundary_bytes
            sent[after][before] += micro_batches * boundary_bytes
    return sent
