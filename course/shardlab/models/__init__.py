"""Models to train, split, measure and count by hand; `gpt` is the one most chapters use."""

from shardlab.models.decoder import (
    GPT,
    IGNORE,
    MLP,
    SIZES,
    Attention,
    Block,
    GPTConfig,
    SeparateAttention,
    count_parameters,
    gpt,
    separate_projections,
)

__all__ = [
    "GPT",
    "IGNORE",
    "MLP",
    "SIZES",
    "Attention",
    "Block",
    "GPTConfig",
    "SeparateAttention",
    "count_parameters",
    "gpt",
    "separate_projections",
]
