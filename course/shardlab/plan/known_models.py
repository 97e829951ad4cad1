"""Models by name, and by what is written on a command line."""

from __future__ import annotations

from dataclasses import fields, replace

from shardlab.estimate.activations import Kernels
from shardlab.plan.model import Model

# Without dropout and with FlashAttention, as these are trained today
MODERN = Kernels(dropout=False, fused_attention=True)


def llama(layers: int, width: int, heads: int, mlp_width: int, sequence: int = 8192) -> Model:
    """Llama 3 (Meta 2024, arXiv 2407.21783, table 3)."""
    return Model(
        layers, width, heads, sequence, 128_256,
        mlp_width=mlp_width, kv_heads=8, gated=True, tied=False, kernels=MODERN,
    )  # fmt: skip


MODELS = {
    "gpt-3-175b": Model(96, 12288, 96, 2048, 51_200),
    "bloom-176b": Model(70, 14336, 112, 2048, 250_880),
    "llama-3-8b": llama(32, 4096, 32, 14_336),
    "llama-3-70b": llama(80, 8192, 64, 28_672),
    "llama-3-405b": llama(126, 16_384, 128, 53_248),
}


def model_of(text: str) -> Model:
    """ "llama-3-8b", "llama-3-8b,sequence=32768" or "layers=32,width=4096,heads=32,…".

    Raises ValueError with what is known.
    """
    name, *rest = text.split(",")
    if "=" in name:
        name, rest = "", [name, *rest]
    kinds = {each.name: each.type for each in fields(Model) if each.name != "kernels"}
    values: dict[str, int | bool] = {}
    for word in rest:
        key, _, value = word.partition("=")
        if key not in kinds or not value.isdecimal():
            raise ValueError(f"{word!r}: expected NUMBER after one of {', '.join(kinds)}=")
        values[key] = bool(int(value)) if kinds[key] == "bool" else int(value)
    if name:
        if name not in MODELS:
            raise ValueError(f"{name!r}: expected one of {', '.join(MODELS)}, or layers=…,width=…")
        return replace(MODELS[name], **values)  # type: ignore[arg-type]
    needed = ("layers", "width", "heads", "sequence", "vocabulary")
    if missing := [key for key in needed if key not in values]:
        raise ValueError(f"{text!r}: {', '.join(missing)} missing")
    return Model(**values, kernels=MODERN)  # type: ignore[arg-type]
