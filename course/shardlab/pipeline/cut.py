"""Splits a GPT into pipeline stages."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from shardlab.models import GPT


class GPTStage(nn.Module):
    """Consecutive blocks; the first stage embeds tokens, the last one computes logits.

    Parameters are shared with the model and keep their names, with one exception: the tied matrix
    of embedding and head.  With more than one stage, the last stage has a copy whose gradient comes
    only from the logits.  Training has to sum the two gradients.
    """

    def __init__(self, model: GPT, first: int, last: int) -> None:
        super().__init__()
        self.is_first, self.is_last = first == 0, last == len(model.blocks)
        if self.is_first:
            self.token, self.position, self.dropout = model.token, model.position, model.dropout
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in range(first, last)})
        if self.is_last:
            self.norm, self.head = model.norm, model.head
            if not self.is_first:
                vocabulary, width = model.head.weight.shape
                self.head = nn.Linear(width, vocabulary, bias=False)
                self.head.weight = nn.Parameter(model.head.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """tokens [b, s] or previous stage's output [b, s, D] -> [b, s, D] or logits [b, s, V]"""
        if self.is_first:
            x = self.dropout(self.token(x) + self.position.weight[: x.shape[1]])
        for block in self.blocks.values():
            x = block(x)
        y: Tensor = self.head(self.norm(x)) if self.is_last else x
        return y


def cut_gpt(model: GPT, stages: int) -> list[GPTStage]:
    """Split the model into ``stages`` stages with nearly equal numbers of blocks.

    Raises ValueError for more stages than blocks.
    """
    layers = len(model.blocks)
    if not 1 <= stages <= layers:
        raise ValueError(
            f"{stages} stages for a model of {layers} blocks: expected 1 to {layers} stages"
        )
    boundaries = [layers * stage // stages for stage in range(stages + 1)]
    return [GPTStage(model, *pair) for pair in pairwise(boundaries)]
