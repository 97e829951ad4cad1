"""Bytes on the fullest device of each layout, by category."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardlab.estimate import activations
from shardlab.estimate.memory import model_states
from shardlab.plan.layouts import RECOMPUTE, Layouts
from shardlab.plan.model import Model


def rank_parameters(model: Model, layouts: Layouts) -> tuple[np.ndarray, np.ndarray]:
    """On the rank that has most, before ZeRO divides them: (what every token uses, experts).

    A rank holds 1/t of its stage's layers, and 1/(t · expert) of their experts.  Embedding and
    logits: on the first and the last stage; with one stage both.
    """
    t, layers = layouts.tensor, layouts.layers(model)
    embedding = model.vocabulary * model.width
    ends = np.where(layouts.pipeline == 1, model.embedding_parameters, embedding) / t
    dense = model.attention_parameters + (0 if model.experts else model.mlp_parameters)
    dense += model.width * model.experts  # the router
    experts = model.experts * model.mlp_parameters / (t * layouts.expert)
    return layers * dense / t + ends, layers * experts


def state_bytes(
    model: Model, layouts: Layouts, *, gradient_bytes: int = 4
) -> dict[str, np.ndarray]:
    """Parameters, gradients, and Adam's states with fp32 master copies (estimate.memory).

    gradient_bytes: 4 where gradients are summed in fp32 (Megatron: 18 bytes for each parameter
    without ZeRO), 2 where they are 16-bit (DeepSpeed: 16).
    """
    dense, experts = rank_parameters(model, layouts)
    ranks = layouts.data * layouts.context
    found = {name: np.zeros(len(layouts)) for name in ("parameters", "gradients", "optimizer")}
    for parameters, among in ((dense, ranks), (experts, ranks // layouts.expert)):
        for stage in np.unique(layouts.stage):
            whole, one = (
                model_states(1.0, stage=int(stage), world_size=size).device for size in (1, 2)
            )
            for name, column in found.items():
                sharded = one[name] < whole[name]
                share = np.where(layouts.stage == stage, 1 / among if sharded else 1.0, 0.0)
                column += whole[name] * parameters * share
    found["gradients"] *= gradient_bytes / 2
    return found


def activation_bytes(model: Model, layouts: Layouts, batch: int) -> dict[str, np.ndarray]:
    """What the fullest stage keeps for backward, and the logits if it has them.

    The first stage keeps as many micro-batches as there are stages (1F1B), or 1 + (p−1)/(pv) times
    that (interleaved): Korthikanti et al., section 4.2.3.
    """
    p, v = layouts.pipeline, layouts.interleave
    m = layouts.micro_batches(batch)
    one = layouts.layers(model) * layer_bytes(model, layouts)  # micro-batch in flight
    one *= np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)
    first = np.minimum(m, p) * one
    shapes, which = layouts.shapes
    logits = np.array([_outer_bytes(model, *shape) for shape in shapes])[which]
    is_last = (p == 1) | (one + logits > first)  # the fullest stage is the one with the logits
    # Recomputation needs one layer's activations again.
    is_full = layouts.recompute == RECOMPUTE.index("full")
    return {
        "activations": np.where(is_last & (p > 1), one, first),
        "recomputed layer": np.where(is_full, layer_bytes(model, layouts, "none"), 0.0),
        "embedding and logits": np.where(is_last, logits, 0.0),
    }


def layer_bytes(model: Model, layouts: Layouts, recompute: str = "") -> np.ndarray:
    """Of one micro-batch and layer; ``recompute``: another kind than the layouts'."""
    shapes, which = layouts.shapes
    rows = [[_layer_bytes(model, *shape, kind) for kind in RECOMPUTE] for shape in shapes]
    table = np.array(rows).reshape(-1, len(RECOMPUTE))
    kinds = RECOMPUTE.index(recompute) if recompute else layouts.recompute
    found: np.ndarray = table[which, kinds]
    return found


@lru_cache(4096)
def _layer_bytes(
    model: Model, tensor: int, context: int, micro_batch: int, sharded: bool, recompute: str
) -> float:
    h, element = model.width, model.kernels.element_bytes

    def paper(tokens: int, kind: str) -> float:
        return activations.layer_bytes(
            tokens,
            micro_batch,
            h,
            model.heads,
            tensor_parallel=tensor,
            sequence_parallel=sharded,
            recompute=kind,
            kernels=model.kernels,
        )

    tokens = model.sequence // context
    if recompute == "full":
        return paper(tokens, "full")
    linear = paper(tokens, "selective")
    # The paper's layer has keys and values as wide as queries and an MLP of 4h that saves its two
    # hidden tensors; gated ones save three, and experts those of each expert that a token uses.
    used = model.experts_per_token if model.experts else 1
    hidden = used * (3 if model.gated else 2) * model.hidden - 8 * h
    narrower = 2 * (model.kv_width - h)
    linear += element * tokens * micro_batch * (hidden + narrower) / tensor
    if recompute == "selective":
        return linear
    scores = paper(model.sequence, "none") - paper(model.sequence, "selective")
    return linear + scores / context


@lru_cache(4096)
def _outer_bytes(model: Model, tensor: int, context: int, micro_batch: int, sharded: bool) -> float:
    terms = activations.outer_terms(
        model.sequence // context,
        micro_batch,
        model.width,
        model.vocabulary,
        tensor_parallel=tensor,
        sequence_parallel=sharded,
        kernels=model.kernels,
    )
    return sum(terms.values())
