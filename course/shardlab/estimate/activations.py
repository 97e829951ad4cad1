"""Bytes of activations that a transformer keeps for its backward pass, tensor by tensor.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv
2205.05198, section 4.  With s tokens, b sequences, h width, a heads on t tensor-parallel ranks, a
layer keeps on each rank, in 16 bit:

    no parallelism                       sbh · (34 + 5as/h)
    tensor parallel                      sbh · (10 + 24/t + 5as/(ht))
    tensor + sequence parallel           sbh/t · (34 + 5as/h)
    tensor parallel, selective           sbh · (10 + 24/t)
    tensor + sequence, selective         34 · sbh/t
    full recomputation                   2 · sbh

"Selective" recomputes the attention's scores, softmax and dropout: the part with s².  "Full" keeps
a layer's input alone.  Which tensors these bytes are is in `layer_terms`; what the paper leaves out
as small, and our GPT keeps all the same, is in `small_terms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardlab.models import GPTConfig  # it brings torch

RECOMPUTE = ("none", "selective", "full", "partitioned")


@dataclass(frozen=True)
class Kernels:
    """How an implementation keeps what it keeps. The defaults are the paper's.

    element_bytes    of one activation
    dropout          False: none anywhere, so no masks and no dropped-out copies
    mask_bytes       of one element of a dropout mask
    fused_attention  True: one kernel (FlashAttention, arXiv 2205.14135) that never stores the
                     scores and recomputes them in backward: what "selective" does by hand
    score_bytes      of one element of queries, keys, values, scores and their mask within unfused
                     attention, which some implementations compute in fp32; None: as elsewhere
    logit_bytes      of one logit as the loss keeps it
    """

    element_bytes: float = 2
    dropout: bool = True
    mask_bytes: float = 1
    fused_attention: bool = False
    score_bytes: float | None = None
    logit_bytes: float = 4


PAPER = Kernels()


def cpu_kernels(element_bytes: float, dropout: bool) -> Kernels:
    """What torch 2.13 does with our GPT on a CPU, for fp32 (4 bytes) and bf16 (2).

    Without dropout, attention is one fused kernel.  With it, attention is made of matmuls and a
    softmax in fp32, and each dropout mask has the size of its input.
    """
    return Kernels(
        element_bytes=element_bytes,
        dropout=dropout,
        mask_bytes=element_bytes,
        fused_attention=not dropout,
        score_bytes=4,
        logit_bytes=element_bytes,
    )


def layer_terms(
    tokens: int,
    batch: int,
    width: int,
    heads: int,
    *,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    kernels: Kernels = PAPER,
) -> dict[str, float]:
    """What one layer keeps on each rank: {tensors: bytes}.

    tensor_parallel (t): heads, and columns of the MLP, are cut over t ranks.  What lies between
      the cut parts (layer norms, residual dropout) every rank keeps whole,
    sequence_parallel: or keeps for its own 1/t of the tokens, gathered where a cut part needs them.
    recompute:
      "none"         keeps everything
      "selective"    all but the attention's scores, softmax and dropout
      "full"         the layer's input alone, which sequence parallelism cuts as well
      "partitioned"  the layer's input in t pieces, one on each rank, gathered for backward:
                     section 5 of the paper mentions it; DeepSpeed's partition_activations

    Raises ValueError for what cannot be.
    """
    for name, value in (("tokens", tokens), ("batch", batch), ("width", width), ("heads", heads)):
        if value < 1 or value != int(value):
            raise ValueError(f"{name}={value}: a whole number, 1 or more")
    t = tensor_parallel
    if t < 1 or heads % t or width % t:
        raise ValueError(
            f"tensor_parallel={t} does not divide {heads} heads and a width of {width}"
        )
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute={recompute!r} is not known: one of {', '.join(RECOMPUTE)}")
    sbh, scores = tokens * batch * width, heads * tokens**2 * batch
    element = kernels.element_bytes
    cut = t if sequence_parallel else 1
    if recompute in ("full", "partitioned"):
        return {"layer's input": element * sbh / (t if recompute == "partitioned" else cut)}
    unfused = element if kernels.score_bytes is None else kernels.score_bytes
    terms = {
        "inputs of both layer norms": 2 * element * sbh / cut,
        "input of qkv": element * sbh / cut,
        "queries, keys, values": 3 * (element if kernels.fused_attention else unfused) * sbh / t,
    }
    if not kernels.fused_attention and recompute != "selective":
        terms["softmax"] = unfused * scores / t
        if kernels.dropout:
            mask = kernels.mask_bytes if kernels.score_bytes is None else unfused
            terms["mask of the scores' dropout"] = mask * scores / t
            terms["scores after dropout"] = unfused * scores / t
    terms["input of the attention's output"] = element * sbh / t
    terms["input of mlp.up"] = element * sbh / cut
    terms["input of GELU"] = 4 * element * sbh / t
    terms["input of mlp.down"] = 4 * element * sbh / t
    if kernels.dropout:
        terms["masks of the residual dropouts"] = 2 * kernels.mask_bytes * sbh / cut
    return terms


def layer_bytes(
    tokens: int,
    batch: int,
    width: int,
    heads: int,
    *,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    kernels: Kernels = PAPER,
) -> float:
    """Bytes that one layer keeps on each rank, all of `layer_terms` together."""
    terms = layer_terms(
        tokens,
        batch,
        width,
        heads,
        tensor_parallel=tensor_parallel,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        kernels=kernels,
    )
    return sum(terms.values())


def outer_terms(
    tokens: int,
    batch: int,
    width: int,
    vocabulary: int,
    *,
    tensor_parallel: int = 1,
    sequence_parallel: bool = True,
    kernels: Kernels = PAPER,
) -> dict[str, float]:
    """What embedding, last layer norm, output projection and loss keep on each rank, once.

    Section 4.3 of the paper, with sequence parallelism: sbh/t of a mask, 4sbh/t · (1 + v/h) of the
    rest.  (It counts the layer norm's input with the projection's: 2sbh/t each.)
    """
    cut = tensor_parallel if sequence_parallel else 1
    sbh, element = tokens * batch * width, kernels.element_bytes
    terms = {"mask of the embedding's dropout": kernels.mask_bytes * sbh / cut}
    if not kernels.dropout:
        terms = {}
    return terms | {
        "input of the last layer norm": element * sbh / cut,
        "input of the output projection": element * sbh / cut,
        "logits": kernels.logit_bytes * tokens * batch * vocabulary / tensor_parallel,
    }


def gpt_terms(
    config: GPTConfig, batch: int, tokens: int, kernels: Kernels, *, recompute: str = "none"
) -> dict[str, float]:
    """What our GPT keeps for its backward pass on one device, all layers: {tensors: bytes}."""
    layer = layer_terms(
        tokens, batch, config.width, config.heads, recompute=recompute, kernels=kernels
    )
    outer = outer_terms(tokens, batch, config.width, config.vocabulary, kernels=kernels)
    return {name: config.layers * size for name, size in layer.items()} | outer


def small_terms(
    config: GPTConfig, batch: int, tokens: int, kernels: Kernels, *, recompute: str = "none"
) -> dict[str, float]:
    """What our GPT keeps that `gpt_terms` and the paper do not count: {tensors: bytes}.

    Mean and deviation of each token in each layer norm; the sums that fused attention keeps of each
    head's scores, in fp32; token numbers and targets, of 8 bytes, and the number of them.  With
    "full" a layer keeps no norms and no attention, and the state of the random numbers instead,
    which lies outside of any tensor's storage that a rank's memory counts.
    """
    whole_layers = config.layers if recompute in ("none", "selective") else 0
    norms = (2 * whole_layers + 1) * 2 * kernels.element_bytes * batch * tokens
    terms = {"statistics of layer norms": norms}
    if kernels.fused_attention and whole_layers:
        terms["sums of fused attention"] = 4.0 * whole_layers * config.heads * batch * tokens
    terms["tokens, positions and targets"] = 8.0 * (2 * batch * tokens + tokens)
    terms["number of targets"] = kernels.element_bytes
    return terms


def layers_in_flight(layers: int, pipeline: int, chunks: int = 1) -> float:
    """How many layers' activations the first of ``pipeline`` stages keeps under 1F1B.

    It has 1/p of the layers and p micro-batches in flight: L, whatever p.  Interleaved, with
    ``chunks`` on each device, L · (1 + (p − 1)/(p · chunks)): section 4.2.3 of the paper.
    """
    return layers * (1 + (pipeline - 1) / (pipeline * chunks)) if chunks > 1 else layers
