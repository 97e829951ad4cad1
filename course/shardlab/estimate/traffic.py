"""Bytes that each rank sends in one optimizer step, by data-parallel method.

The bytes follow from each method's collectives, counted as rings (shardlab.estimate.collectives).
With Ψ parameters and large N, in elements per rank: DDP 2Ψ, ZeRO-1 and -2 2Ψ, ZeRO-3 3Ψ
(Rajbhandari et al., arXiv 1910.02054, section 7).

When a model is split, ranks send activations instead: see shardlab.estimate.model_traffic, whose
functions are re-exported here.
"""

from __future__ import annotations

from shardlab.estimate.collectives import (
    hub_sent_bytes,
    reduce_scatter_sent_bytes,
    ring_sent_bytes,
    scatter_or_gather_sent_bytes,
)
from shardlab.estimate.memory import check_world
from shardlab.estimate.model_traffic import (
    PassBytes,
    activation_bytes,
    pipeline_boundaries,
    tensor_parallel_layer,
    vocabulary_parallel_embedding_and_loss,
)

__all__ = [
    "METHODS",
    "SYNCS",
    "PassBytes",
    "activation_bytes",
    "pipeline_boundaries",
    "sent_bytes",
    "tensor_parallel_layer",
    "vocabulary_parallel_embedding_and_loss",
]

METHODS = ("hub", "ddp", "zero1", "zero2", "zero3")
SYNCS = ("step", "micro_batch")


def sent_bytes(
    method: str,
    parameters: float,
    world_size: int,
    *,
    parameter_bytes: float = 4,
    gradient_bytes: float = 4,
    micro_batches: int = 1,
    sync: str = "step",
    reduce_scatter: str = "ring",
) -> list[float]:
    """[N] bytes that each rank sends in one optimizer step.

    method:
      "hub"    rank 0 sends the parameters to all ranks and receives their gradients, like
               nn.DataParallel.  Inputs and outputs, which grow with the batch, are not counted.
      "ddp"    a ring all-reduce of the gradients
      "zero1"  a reduce-scatter of the gradients, an all-gather of the updated parameters
      "zero2"  the same, bucket by bucket during backward
      "zero3"  an all-gather of the parameters in forward, another in backward, a reduce-scatter of
               the gradients
    parameter_bytes, gradient_bytes: bytes of one element as it is sent.
    micro_batches, sync: "step" accumulates gradients on each rank and reduces them once;
      "micro_batch" reduces after every backward.  ZeRO-2 and -3 keep no whole gradients to
      accumulate in, and ZeRO-3 gathers in each forward and backward: they need "micro_batch".
    reduce_scatter: "ring" as in NCCL; "gloo" implements it as an all-reduce, twice the bytes.
      DeepSpeed's stages 1 and 2 also all-reduce their buckets and keep a slice, over any backend
      (``use_multi_rank_bucket_allreduce``, on by default in 0.19.8).

    Raises ValueError for invalid arguments.
    """
    check_world(parameters, world_size)
    for name, value, known in (
        ("method", method, METHODS),
        ("sync", sync, SYNCS),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r}: expected one of {', '.join(known)}")
    if micro_batches < 1 or micro_batches != int(micro_batches):
        raise ValueError(f"micro_batches={micro_batches}: expected a whole number, 1 or more")
    if min(parameter_bytes, gradient_bytes) <= 0:
        raise ValueError("parameter_bytes and gradient_bytes (of one element) must be above 0")
    if method in ("zero2", "zero3") and sync == "step" and micro_batches > 1:
        raise ValueError(
            f"{method} keeps no whole gradients to accumulate in: use sync='micro_batch'"
        )
    syncs = micro_batches if sync == "micro_batch" else 1
    all_parameters, all_gradients = parameters * parameter_bytes, parameters * gradient_bytes
    reduced = reduce_scatter_sent_bytes(all_gradients, world_size, reduce_scatter)

    if method == "hub":
        replicate = hub_sent_bytes(all_parameters, world_size)[0]
        reduce = hub_sent_bytes(all_gradients, world_size)[1:]
        return [syncs * replicate, *(syncs * gradients for gradients in reduce)]
    if method == "ddp":
        return [syncs * ring_sent_bytes(all_gradients, world_size)] * world_size
    gathered = scatter_or_gather_sent_bytes(all_parameters, world_size)
    gathers = 2 * micro_batches if method == "zero3" else 1
    return [syncs * reduced + gathers * gathered] * world_size
