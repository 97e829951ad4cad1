"""Bytes of activations that a transformer saves for its backward pass, tensor by tensor.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv
2205.05198, section 4.  With s tokens, b sequences, width h and a heads on t tensor-parallel ranks,
a layer saves on each rank, in 16 bit:

    no parallelism                       sbh · (34 + 5as/h)
    tensor parallel                      sbh · (10 + 24/t + 5as/(ht))
    tensor + sequence parallel           sbh/t · (34 + 5as/h)
    tensor parallel, selective           sbh · (10 + 24/t)
    tensor + sequence, selective         34 · sbh/t
    full recomputation                   2 · sbh

"Selective" recomputes the attention's scores, softmax and dropout: the term in s².  "Full" saves
only a layer's input.  `layer_terms` lists the tensors.  `small_terms` lists small tensors that the
paper neglects but our GPT saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardlab.models import GPTConfig  # imports torch

RECOMPUTE = ("none", "selective", "full", "partitioned")


@dataclass(frozen=True)
class Kernels:
    """What an implementation's kernels save for backward. The defaults are the paper's.

    element_bytes    bytes of one activation
    dropout          False: no dropout, so no masks and no dropped-out copies
    mask_bytes       bytes of one element of a dropout mask
    fused_attention  True: one kernel (FlashAttention, arXiv 2205.14135) that never stores the
                     scores and recomputes them in backward, like "selective"
    score_bytes      bytes of one element of queries, keys, values, scores and their mask in unfused
                     attention, which some implementations compute in fp32; None: element_bytes
    logit_bytes      bytes of one logit as saved by the loss
    """

    element_bytes: float = 2
    dropout: bool = True
    mask_bytes: float = 1
    fused_attention: bool = False
    score_bytes: float | None = None
    logit_bytes: float = 4


PAPER = Kernels()


def cpu_kernels(element_bytes: float, dropout: bool) -> Kernels:
    """What torch 2.13 saves for our GPT on a CPU, in fp32 (4 bytes) or bf16 (2).

    Without dropout, attention is one fused kernel.  With dropout, it consists of matmuls and a
    softmax in fp32, and each dropout mask is as large as its input.
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
    """What one layer saves on each rank: {tensors: bytes}.

    tensor_parallel (t): heads and MLP columns are split over t ranks.  Everything in between
      (layer norms, residual dropout) is saved whole on each rank.
    sequence_parallel: each rank saves those tensors only for its own 1/t of the tokens, and the
      split parts gather all tokens.
    recompute:
      "none"         saves everything
      "selective"    saves all except the attention's scores, softmax and dropout
      "full"         saves only the layer's input, which sequence parallelism shards as well
      "partitioned"  saves 1/t of the layer's input on each rank and gathers it for backward:
                     mentioned in section 5 of the paper; DeepSpeed's partition_activations

    Raises ValueError for invalid arguments.
    """
    for name, value in (("tokens", tokens), ("batch", batch), ("width", width), ("heads", heads)):
        if value < 1 or value != int(value):
            raise ValueError(f"{name}={value}: expected a whole number, 1 or more")
    t = tensor_parallel
    if t < 1 or heads % t or width % t:
        raise ValueError(
            f"tensor_parallel={t} does not divide {heads} heads and a width of {width}"
        )
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute={recompute!r}: expected one of {', '.join(RECOMPUTE)}")
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
    """Bytes that one layer saves on each rank: the sum of `layer_terms`."""
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
    """What embedding, last layer norm, output projection and loss save on each rank.

    Section 4.3 of the paper, with sequence parallelism: sbh/t for a mask and 4sbh/t · (1 + v/h) for
    the rest.  (It counts the layer norm's input together with the projection's: 2sbh/t each.)
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
    """What all layers of our GPT save for backward on one device: {tensors: bytes}."""
    layer = layer_terms(
        tokens, batch, config.width, config.heads, recompute=recompute, kernels=kernels
    )
    outer = outer_terms(tokens, batch, config.width, config.vocabulary, kernels=kernels)
    return {name: config.layers * size for name, size in layer.items()} | outer


def small_terms(
    config: GPTConfig, batch: int, tokens: int, kernels: Kernels, *, recompute: str = "none"
) -> dict[str, float]:
    """What our GPT saves that `gpt_terms` and the paper do not count: {tensors: bytes}.

    Mean and deviation of each token in each layer norm; the log-sum-exp of each head's scores that
    fused attention saves in fp32; token ids and targets, 8 bytes each, and their count.  With
    "full" a layer saves no norms and no attention. It saves the random number generator's state
    instead, which is not in a tensor that a rank's memory counts.
    """
    whole_layers = config.layers if recompute in ("none", "selective") else 0
    norms = (2 * whole_layers + 1) * 2 * kernels.element_bytes * batch * tokens
    terms = {"statistics of layer norms": norms}
    if kernels.fused_attention and whole_layers:
        terms["sums of fused attention"] = 4.0 * whole_layers * config.heads * batch * tokens
    terms["tokens, positions and targets"] = 8.0 * (2 * batch * tokens + tokens)
    terms["number of targets"] = kernels.element_bytes
    return terms
