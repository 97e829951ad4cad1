from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autograder.exercise import Case, Plain, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab10_activation_checkpointing import activation_bytes as public
from shardlab.estimate.activations import Kernels, layer_bytes
from shardlab.models.paper_layer import PaperLayer, saved_bytes

Setting = dict[str, Any]
Outputs = Callable[[Case, Any], list[Plain]]
MT_NLG = {"tokens": 2048, "samples": 1, "width": 20480, "heads": 128}
CASES = (
    public.counted("counted in a layer on 4 ranks", tp_size=4),
    public.published("530B on 8 ranks, the paper's table", MT_NLG),
    questions("sixteen more layers", weight=2),
)
BOUNDARIES = {
    "divides": "175B on 8 ranks, the paper's table",
    "does not divide": "not tested: t divides the heads and columns",
    "one rank": "one rank",
    "more ranks than elements": "not tested, as above",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "sbh * (10 / sp_size + 24 / tp_size + scores / tp_size)",
        "sbh * (10 / sp_size + (24 + scores) / tp_size) + 16 * tokens * samples / sp_size",
        "the layer norms' means and standard deviations may be counted",
    ),
)


def draw(case: Case, rng: np.random.Generator) -> list[Setting]:
    """Settings in which no two known mistakes give the same number."""
    drawn = []
    for _ in range(16):
        tp_size = int(rng.choice([2, 4, 8]))
        heads = tp_size * int(rng.integers(2, 9))
        drawn.append(
            public.setting(
                tokens=128 * int(rng.integers(1, 30)),
                samples=int(rng.integers(2, 9)),
                width=heads * int(rng.choice([48, 80, 112])),
                heads=heads,
                tp_size=tp_size,
                sequence_parallel=bool(rng.integers(2)),
                recompute=str(rng.choice(public.RECOMPUTE)),
            )
        )
    return drawn


def formula_bytes(asked: Setting) -> float:
    """Korthikanti et al., arXiv 2205.05198, table 2."""
    asked = public.complete(asked)
    names = {"samples": "batch", "tp_size": "tensor_parallel"}
    return layer_bytes(**{names.get(name, name): value for name, value in asked.items()})


def counted_bytes(asked: Setting) -> int:
    """Of one rank's part of a real layer, without sequence parallelism: 1/t of the heads and of
    the MLP's columns.  On torch's meta device, which has shapes but no data."""
    asked = public.complete(asked)
    width, tp_size = asked["width"], asked["tp_size"]
    with torch.device("meta"):
        part = PaperLayer(width, asked["heads"])
        part.heads //= tp_size
        part.qkv = nn.Linear(width, 3 * width // tp_size)
        part.out = nn.Linear(width // tp_size, width)
        part.up = nn.Linear(width, 4 * width // tp_size)
        part.down = nn.Linear(4 * width // tp_size, width)
        part = part.to(torch.bfloat16)
        x = torch.empty((asked["samples"], asked["tokens"], width), dtype=torch.bfloat16)
    if name := {"selective": "attend", "full": "forward"}.get(asked["recompute"]):
        setattr(
            part,
            name,
            partial(checkpoint, getattr(part, name), use_reentrant=True),
        )
    return saved_bytes(part, x.requires_grad_())


def reference(case: Case, inputs: Any) -> list[Plain]:
    count = counted_bytes if case.name.startswith("counted") else formula_bytes
    return [[count(asked) for asked in inputs[0]]]


def answers(wrong: Callable[[Setting], float | None]) -> Outputs:
    return lambda case, inputs: [[wrong(public.complete(asked)) for asked in inputs[0]]]


def formula_with(**changes: Any) -> Outputs:
    """The formula for a changed setting."""
    return answers(lambda asked: formula_bytes(asked | changes))


def scores_times(factor: Callable[[Setting], float]) -> Outputs:
    def changed(asked: Setting) -> float | None:
        if asked["recompute"] != "none":
            return None
        without = formula_bytes(asked | {"recompute": "selective"})
        return without + factor(asked) * (formula_bytes(asked) - without)

    return answers(changed)


def only_if(is_full: bool, **changes: Any) -> Outputs:
    """The formula for a changed setting, if everything is recomputed or only otherwise."""
    return answers(
        lambda asked: formula_bytes(
            asked | changes if (asked["recompute"] == "full") == is_full else asked
        )
    )


def swapped(asked: Setting) -> float | None:
    """24sbh replicated without sequence parallelism, and 10sbh sharded over t."""
    if asked["recompute"] == "full" or asked["sequence_parallel"]:
        return None
    sbh = asked["tokens"] * asked["samples"] * asked["width"]
    return formula_bytes(asked) + 14 * sbh * (1 - 1 / asked["tp_size"])


MISTAKES = {
    "divides by t what every rank has: without sequence parallelism the inputs of the layer norms "
    "and of the sharded matrices, and the dropout masks, are replicated, 10sbh": (
        only_if(False, sequence_parallel=True)
    ),
    "divides the stored input of full recomputation by t: without sequence parallelism every rank "
    "has all of it, 2sbh": only_if(True, sequence_parallel=True),
    "divides by t what every rank has: without sequence parallelism 10sbh are replicated, and so "
    "is the stored input of full recomputation": formula_with(sequence_parallel=True),
    "does not divide by t the 10sbh of tokens, which sequence parallelism shards": (
        only_if(False, sequence_parallel=False)
    ),
    "does not divide the stored input of full recomputation by t: sequence parallelism shards it": (
        only_if(True, sequence_parallel=False)
    ),
    "does not divide by t what sequence parallelism shards: the 10sbh of tokens, and the stored "
    "input": formula_with(sequence_parallel=False),
    "divides 10sbh by t and keeps 24sbh whole: tensor parallelism shards the 24sbh, and only "
    "sequence parallelism the 10sbh": answers(swapped),
    "does not divide the attention scores by t: a rank has 1/t of the heads": (
        scores_times(lambda asked: asked["tp_size"])
    ),
    "does not divide by t: a rank has 1/t of the heads and columns": formula_with(tp_size=1),
    "forgets the attention scores, or their s²: softmax, dropout's mask and dropout's output "
    "take 5as²b bytes": formula_with(recompute="selective"),
    "counts the attention scores of one head: a layer has a heads": (
        scores_times(lambda asked: 1 / asked["heads"])
    ),
    "counts the attention scores of one sequence: for b of them they take 5as²b": (
        scores_times(lambda asked: 1 / asked["samples"])
    ),
    "counts other than one byte for each element of a dropout mask": (
        formula_with(kernels=Kernels(mask_bytes=2)),
        formula_with(kernels=Kernels(mask_bytes=0)),
    ),
    "keeps what selective recomputation drops: the scores, their softmax and dropout": (
        formula_with(recompute="none")
    ),
}
