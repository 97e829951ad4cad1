"""Real English text that ships with Python, cut into batches without overlap.

The text is Python's own language reference, as ``pydoc`` shows it; a token is a byte.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def tokens() -> Tensor:
    """The whole text as bytes 0 to 255: [n] int64, about half a million."""
    return _text().long()


@cache
def _text() -> Tensor:
    """[n] uint8: an eighth of the memory of int64."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)


def batch(
    step: int, batch_size: int = 8, context: int = 64, rank: int = 0, world_size: int = 1
) -> tuple[Tensor, Tensor]:
    """The sequences that ``rank`` trains on in ``step``, and the next token of each token.

    rank0 [a b] | rank1 [c d]   ==   one process with a batch twice as large: [a b c d]

    Returns tokens and targets, each [batch_size, context].  The text is cut into sequences, which
    are reshuffled for each epoch; within an epoch, no two ranks or steps share one.  The same
    arguments give the same batch, so a run that stopped can resume where it was.

    Raises ValueError for a rank that does not exist and for a batch larger than the text.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank}: must be 0 to {world_size - 1} with world_size={world_size}")
    if step < 0 or batch_size < 1 or context < 1:
        raise ValueError("step must be at least 0, batch_size and context at least 1")
    text = _text()
    sequences = (len(text) - 1) // context
    per_step = batch_size * world_size  # over all ranks
    steps_per_epoch = sequences // per_step
    if steps_per_epoch == 0:
        raise ValueError(
            f"a step needs {per_step} sequences of {context} tokens; the text has {sequences}"
        )
    epoch, step = divmod(step, steps_per_epoch)
    order = torch.randperm(sequences, generator=torch.Generator().manual_seed(epoch))
    first = step * per_step + rank * batch_size
    starts = order[first : first + batch_size] * context
    positions = starts[:, None] + torch.arange(context)
    return text[positions].long(), text[positions + 1].long()
