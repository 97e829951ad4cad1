"""The transformer layer whose activations Korthikanti et al. count, and a function to count them.

arXiv 2205.05198, section 4: attention is separate matmuls, so scores, softmax and their dropout are
tensors; a dropout mask has one byte per element.  Our GPT (shardlab.models) saves less: its
attention is one fused kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class PaperLayer(nn.Module):
    """x [b, s, h] -> [b, s, h]: b sequences of s tokens, h wide, a heads"""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm_1(x)).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2)
        q, k, v = (part.contiguous() for part in qkv.chunk(3, dim=1))  # each [b, a, s, h/a]
        x = x + byte_mask_dropout(self.out(self.attend(q, k, v).transpose(1, 2).flatten(2)))
        return x + byte_mask_dropout(self.down(functional.gelu(self.up(self.norm_2(x)))))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        return byte_mask_dropout(scores) @ v


def byte_mask_dropout(x: Tensor) -> Tensor:
    """Dropout with the kernel that saves a mask of one byte per element, and nothing else."""
    y: Tensor = torch.native_dropout(x, 0.1, True)[0]
    return y


def saved_bytes(module: nn.Module, *inputs: Tensor) -> int:
    """Bytes that autograd saves for backward while ``module(*inputs)`` runs, weights not counted.

    A storage counts once, however many tensors share it.  On torch's meta device tensors have
    shapes but no data, so a layer of any size can be counted.
    """
    weights = {weight.untyped_storage()._cdata for weight in module.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}  # kept alive, so no address is reused

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        module(*inputs)
    return sum(storage.nbytes() for at, storage in saved.items() if at not in weights)
