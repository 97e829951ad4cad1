"""A small GPT in plain PyTorch, to train, split and measure.

The decoder of Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2): layer
norm before each half of a block, learned positions, and one matrix for both the token embedding and
the output logits (tied embeddings).

Shapes: b sequences, s tokens in each, D width, H heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORE = -100  # a target to ignore, as in torch's cross_entropy


@dataclass(frozen=True)
class GPTConfig:
    """Raises ValueError if the heads do not divide the width."""

    layers: int
    heads: int
    width: int
    context: int  # the most tokens of one sequence
    vocabulary: int = 256  # bytes
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {self.width}")


# By approximate number of parameters.
SIZES = {
    "0.1M": GPTConfig(layers=2, heads=2, width=64, context=64),
    "0.3M": GPTConfig(layers=2, heads=4, width=96, context=128),
    "1M": GPTConfig(layers=4, heads=4, width=128, context=128),
    "3M": GPTConfig(layers=6, heads=6, width=192, context=128),
    "10M": GPTConfig(layers=8, heads=8, width=320, context=256),
    "50M": GPTConfig(layers=16, heads=8, width=512, context=256),
}


class Attention(nn.Module):
    """Causal self-attention: each token attends to itself and to those before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, s, D] -> [b, s, D]"""
        batch, tokens, _ = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )  # each [b, H, s, D/H]; with tensor parallelism, only the heads of this rank
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return y


class SeparateAttention(nn.Module):
    """The same with separate matrices for queries, keys and values.

    Their rows are ordered by head, so tensor parallelism can split them into whole heads.  The
    number of heads follows from the shapes of the projections' outputs.
    """

    def __init__(self, fused: Attention) -> None:
        super().__init__()
        width = fused.out.in_features
        self.head_width = width // fused.heads
        self.dropout = fused.dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        weights, biases = fused.qkv.weight.chunk(3), fused.qkv.bias.chunk(3)
        for part, weight, bias in zip(self._parts, weights, biases, strict=True):
            part.weight, part.bias = _as_parameter(weight), _as_parameter(bias)
        self.out = fused.out

    @property
    def _parts(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.query, self.key, self.value

    def forward(self, x: Tensor) -> Tensor:
        """x [b, s, D] -> [b, s, D]"""
        q, k, v = (
            part(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in self._parts
        )  # each [b, heads of this rank, s, D/H]
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y


class MLP(nn.Module):
    """Per token: a linear layer to four times the width, and one back."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, s, D] -> [b, s, D]"""
        y: Tensor = self.down(functional.gelu(self.up(x)))
        return y


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention: Attention | SeparateAttention = Attention(config)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, s, D] -> [b, s, D]"""
        x = x + self.dropout(self.attention(self.norm_1(x)))
        return x + self.dropout(self.mlp(self.norm_2(x)))


class GPT(nn.Module):
    """``model(tokens)`` gives logits, ``model(tokens, targets)`` the loss."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.token.weight  # tied: one matrix, two uses
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        """GPT-2's initialization: small weights, smaller still at the end of residual branches."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Block):
            for out in (module.attention.out, module.mlp.down):
                nn.init.normal_(out.weight, std=0.02 / (2 * self.config.layers) ** 0.5)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens [b, s] int64  ->  logits [b, s, V], or with targets [b, s] their mean loss [].

        Targets of -100 are ignored.  Raises ValueError for more tokens than the context.
        """
        length = tokens.shape[1]
        if length > self.config.context:
            raise ValueError(f"{length} tokens do not fit in a context of {self.config.context}")
        positions = torch.arange(length, device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        if targets is None:
            return logits
        logits = logits.flatten(0, 1)
        return functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE)


def gpt(size: str) -> GPT:
    """A GPT of about this many parameters: gpt("1M"). Raises ValueError for a size not in SIZES."""
    if size not in SIZES:
        raise ValueError(f"there is no size {size!r}: choose one of {', '.join(SIZES)}")
    return GPT(SIZES[size])


def separate_projections(model: GPT) -> GPT:
    """``model``, changed in place: every block gets `SeparateAttention` with the same weights."""
    for block in model.modules():
        if isinstance(block, Block) and isinstance(block.attention, Attention):
            block.attention = SeparateAttention(block.attention)
    return model


def count_parameters(model: nn.Module) -> int:
    """Elements of all parameters; a shared parameter counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _as_parameter(part: Tensor) -> nn.Parameter:
    """A new parameter with the values of ``part``."""
    return nn.Parameter(part.detach().clone())
