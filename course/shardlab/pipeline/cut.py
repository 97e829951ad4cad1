"""A GPT in pieces, one for each stage of a pipeline."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from shardlab.models import GPT


class GPTStage(nn.Module):
    """Some neighbouring blocks; the first stage embeds tokens, the last one gives logits.

    Parameters are the model's own, by the model's own names, with one exception: the matrix that
    GPT uses at both ends.  With more than one stage its two uses live in two places, so that the
    last stage has a copy, and its gradient is that of the logits alone.  Training has to add both
    up.
    """

    def __init__(self, model: GPT, first: int, last: int) -> None:
        super().__init__()
        self.embeds, self.ends = first == 0, last == len(model.blocks)
        if self.embeds:
            self.token, self.position, self.dropout = model.token, model.position, model.dropout
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in range(first, last)})
        if self.ends:
            self.norm, self.head = model.norm, model.head
            if not self.embeds:
                vocabulary, width = model.head.weight.shape
                self.head = nn.Linear(width, vocabulary, bias=False)
                self.head.weight = nn.Parameter(model.head.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """tokens [B, T] or what the piece before made [B, T, D] -> [B, T, D] or logits [B, T, V]"""
        if self.embeds:
            x = self.dropout(self.token(x) + self.position.weight[: x.shape[1]])
        for block in self.blocks.values():
            x = block(x)
        y: Tensor = self.head(self.norm(x)) if self.ends else x
        return y


def cut_gpt(model: GPT, stages: int) -> list[GPTStage]:
    """The model in so many pieces, of as equal numbers of blocks as can be.

    Raises ValueError for more stages than blocks.
    """
    layers = len(model.blocks)
    if not 1 <= stages <= layers:
        raise ValueError(f"{stages} stages of a model of {layers} blocks: 1 to {layers}")
    borders = [layers * stage // stages for stage in range(stages + 1)]
    return [GPTStage(model, *pair) for pair in pairwise(borders)]
