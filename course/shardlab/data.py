"""Real text that ships with Python, cut into batches without overlap; a token is a byte.

``"documentation"`` is Python's language reference in English, as ``pydoc`` shows it.  ``"code"`` is
the source of modules of the standard library: a second text, to fine-tune a model on.
"""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

TEXTS = ("documentation", "code")
MODULES = (
    "argparse",
    "ast",
    "configparser",
    "difflib",
    "fractions",
    "inspect",
    "random",
    "tarfile",
)


def tokens(text: str = "documentation") -> Tensor:
    """The whole text as bytes 0 to 255: [n] int64, about half a million."""
    return _bytes_of(text).long()


@cache
def _bytes_of(text: str) -> Tensor:
    """[n] uint8: an eighth of the memory of int64."""
    if text == "documentation":
        from pydoc_data.topics import topics

        parts = [topics[name].encode() for name in sorted(topics)]
    elif text == "code":
        library = Path(sysconfig.get_path("stdlib"))
        parts = [(library / f"{name}.py").read_bytes() for name in MODULES]
    else:
        raise ValueError(f"text is one of {', '.join(TEXTS)}, not {text!r}")
    return torch.frombuffer(bytearray(b"\n\n".join(parts)), dtype=torch.uint8)


def batch(
    step: int,
    batch_size: int = 8,
    context: int = 64,
    rank: int = 0,
    world_size: int = 1,
    text: str = "documentation",
) -> tuple[Tensor, Tensor]:
    """The sequences that ``rank`` trains on in ``step``, and the next token of each token.

    rank0 [a b] | rank1 [c d]   ==   one process with a batch twice as large: [a b c d]

    Returns tokens and targets, each [batch_size, context].  The text is cut into sequences, which
    are reshuffled for each epoch; within an epoch, no two ranks or steps share one.  The same
    arguments give the same batch, so a run that stopped can resume where it was.

    Raises ValueError for a rank or a text that does not exist and for a batch larger than the text.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank}: must be 0 to {world_size - 1} with world_size={world_size}")
    if step < 0 or batch_size < 1 or context < 1:
        raise ValueError("step must be at least 0, batch_size and context at least 1")
    read = _bytes_of(text)
    sequences = (len(read) - 1) // context
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
    return read[positions].long(), read[positions + 1].long()
