"""Bytes that each rank sends for one optimizer step, by method of data parallelism.

All of it follows from the collectives a method makes (shardlab.estimate.collectives), each counted
as a ring runs it.  With Ψ parameters and large N, in elements per rank: DDP 2Ψ, ZeRO-1 and -2 2Ψ,
ZeRO-3 3Ψ (Rajbhandari et al., arXiv 1910.02054, section 7).

Where ranks share one model, activations travel instead: shardlab.estimate.model_traffic, whose
functions are at hand here, too.
"""

from __future__ import annotations

from shardlab.estimate.collectives import (
    hub_sent_bytes,
    ring_sent_bytes,
    scatter_or_gather_sent_bytes,
)
from shardlab.estimate.memory import check_world
from shardlab.estimate.model_traffic import (
    PassBytes,
    activation_bytes,
    pipeline_boundaries,
    tensor_parallel_layer,
    vocabulary_parallel_ends,
)

__all__ = [
    "METHODS",
    "REDUCE_SCATTERS",
    "SYNCS",
    "PassBytes",
    "activation_bytes",
    "pipeline_boundaries",
    "sent_bytes",
    "tensor_parallel_layer",
    "vocabulary_parallel_ends",
]

METHODS = ("hub", "ddp", "zero1", "zero2", "zero3")
SYNCS = ("step", "micro_batch")
REDUCE_SCATTERS = ("ring", "gloo")


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
    """[N] bytes that each rank sends for one optimizer step.

    method:
      "hub"    rank 0 sends everybody the parameters and receives their gradients: the picture of
               nn.DataParallel.  Inputs and outputs, which grow with the batch, come on top.
      "ddp"    a ring all-reduce of the gradients
      "zero1"  a reduce-scatter of the gradients, an all-gather of the updated parameters
      "zero2"  the same, bucket by bucket as backward goes
      "zero3"  an all-gather of the parameters in forward, another in backward, a reduce-scatter of
               the gradients
    parameter_bytes, gradient_bytes: of one element as it travels.
    micro_batches, sync: "step" adds gradients up on each rank and exchanges their sum once;
      "micro_batch" exchanges after every backward.  Stages 2 and 3 hold no whole gradients to add
      to, and stage 3 gathers for each forward and backward: they take "micro_batch" only.
    reduce_scatter: "ring" as NCCL does it; "gloo" runs it as an all-reduce, twice the bytes.  So do
      DeepSpeed's stages 1 and 2 by themselves (``use_multi_rank_bucket_allreduce``, on by default
      in 0.19.8): they all-reduce their buckets and keep a slice, over any backend.

    Raises ValueError for what cannot be.
    """
    check_world(parameters, world_size)
    for name, value, known in (
        ("method", method, METHODS),
        ("sync", sync, SYNCS),
        ("reduce_scatter", reduce_scatter, REDUCE_SCATTERS),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r} is not known: one of {', '.join(known)}")
    if micro_batches < 1 or micro_batches != int(micro_batches):
        raise ValueError(f"micro_batches={micro_batches}: a whole number, 1 or more")
    if min(parameter_bytes, gradient_bytes) <= 0:
        raise ValueError("parameter_bytes and gradient_bytes are bytes of an element, above 0")
    if method in ("zero2", "zero3") and sync == "step" and micro_batches > 1:
        raise ValueError(
            f"{method} keeps no whole gradients to add micro-batches up in: sync='micro_batch'"
        )
    syncs = micro_batches if sync == "micro_batch" else 1
    all_parameters, all_gradients = parameters * parameter_bytes, parameters * gradient_bytes

    if method == "hub":
        replicate = hub_sent_bytes(all_parameters, world_size)[0]
        reduce = hub_sent_bytes(all_gradients, world_size)[1:]
        return [syncs * replicate, *(syncs * gradients for gradients in reduce)]
    if method == "ddp":
        return [syncs * ring_sent_bytes(all_gradients, world_size)] * world_size
    if reduce_scatter == "gloo":
        reduced = ring_sent_bytes(all_gradients, world_size)
    else:
        reduced = scatter_or_gather_sent_bytes(all_gradients, world_size)
    gathered = scatter_or_gather_sent_bytes(all_parameters, world_size)
    gathers = 2 * micro_batches if method == "zero3" else 1
    return [syncs * reduced + gathers * gathered] * world_size
