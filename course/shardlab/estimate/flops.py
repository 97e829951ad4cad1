"""Floating-point operations of a transformer's training, and the utilization that follows.

Per token, with N parameters in matrix products and L layers whose attention reads s tokens of a
heads' dimensions (h together): forward 2N + 4Lhs, backward twice that: 6N + 12Lhs.  Full
recomputation repeats the forward pass: four thirds of it.  The scores of all pairs are counted,
also where a causal mask or FlashAttention skips half of them.

MFU counts what the model needs, HFU also what is computed again.  Sources: Chowdhery et al.,
"PaLM", arXiv 2204.02311, appendix B (MFU, 6N + 12LHQT); Narayanan et al., arXiv 2104.04473, section
5.1 (96·BsLh²·(1 + s/6h + V/16Lh): recomputation counted, HFU); Korthikanti et al., arXiv
2205.05198, appendix A (72·BsLh²·(1 + s/6h + V/12Lh), and both names).
"""

from __future__ import annotations

FORWARD, BACKWARD = 2, 4  # for each parameter in a product and each token
RECOMPUTED = (FORWARD + BACKWARD + FORWARD) / (FORWARD + BACKWARD)  # 4/3: full recomputation


def transformer_parameters(
    layers: int, width: int, vocabulary: int, sequence: int = 0, *, embedding: bool = True
) -> float:
    """GPT's parameters in matrix products: 12Lh² + Vh, with an MLP of 4h and tied embeddings.

    The look-up of embeddings is no product; the logits, with the same matrix, are one.
    embedding=False leaves both out.  ``sequence``: adds learned positions (sh), biases and norms
    (13Lh), for the number of all parameters (Narayanan et al., equation 2).
    """
    products = 12 * layers * width**2 + (vocabulary * width if embedding else 0)
    return products + (sequence * width + 13 * layers * width if sequence else 0)


def attention_flops(layers: int, width: int, sequence: int) -> float:
    """12Lhs for each token: queries times keys and scores times values, forward and backward.

    ``width``: heads times a head's dimensions.
    """
    return (FORWARD + BACKWARD) * 2 * layers * width * sequence


def training_flops(
    parameters: float,
    tokens: float,
    *,
    layers: int = 0,
    width: int = 0,
    sequence: int = 0,
    recomputed: bool = False,
) -> float:
    """Operations to train on ``tokens``: (6N + 12Lhs) each; 6N without a sequence.

    parameters   N, in matrix products.  Of a mixture of experts, those that a token uses.
    recomputed   activations are all computed again in backward: what the hardware executes

    Raises ValueError if a number is negative.
    """
    if min(parameters, tokens, layers, width, sequence) < 0:
        raise ValueError("parameters, tokens, layers, width and sequence cannot be negative")
    per_token = (FORWARD + BACKWARD) * parameters + attention_flops(layers, width, sequence)
    return per_token * tokens * (RECOMPUTED if recomputed else 1)


def utilization(flops: float, seconds: float, devices: int, peak_flops_per_s: float) -> float:
    """The share of the devices' peak: MFU for what the model needs, HFU for what was executed.

    ``peak_flops_per_s``: of one device, for the data type of the products, without sparsity.

    Raises ValueError unless seconds, devices and peak are above 0.
    """
    if min(seconds, devices, peak_flops_per_s) <= 0:
        raise ValueError("seconds, devices and peak_flops_per_s must be above 0")
    return flops / seconds / (devices * peak_flops_per_s)
