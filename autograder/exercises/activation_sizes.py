"""Lab 09, activation_bytes: what a transformer layer keeps, by formula and counted in a layer.

The paper's layer, in 16 bit, with attention made of matmuls, and dropout masks of one byte; on
torch's meta device, which has shapes and no numbers, so that GPT-3's layer can be counted too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint as of_torch
from torch import Tensor, nn

from autograder.compare import equal
from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.kept_back import kept_back, never
from shardlab.estimate import activations

# Within half a per cent: a real layer keeps means and deviations of its layer norms as well.
TOLERANCE = 0.005
RECOMPUTE = ("none", "selective", "full")
GPT_3 = {"tokens": 2048, "samples": 1, "width": 12288, "heads": 96}
MT_NLG = {"tokens": 2048, "samples": 1, "width": 20480, "heads": 128}

Setting = Mapping[str, Any]


def setting(**changes: Any) -> dict[str, Any]:
    plain = {
        **{"tokens": 512, "samples": 4, "width": 1024, "heads": 16},
        **{"tp_size": 1, "sequence_parallel": False, "recompute": "none"},
    }
    return plain | changes


# ---- by formula, and counted --------------------------------------------------------------------


def formula_bytes(
    tokens: int,
    samples: int,
    width: int,
    heads: int,
    tp_size: int,
    sequence_parallel: bool,
    recompute: str,
) -> float:
    """Korthikanti et al., arXiv 2205.05198, table 2."""
    return activations.layer_bytes(
        *(tokens, samples, width, heads),
        tensor_parallel=tp_size,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
    )


class PaperLayer(nn.Module):
    """One rank's part of a layer of heads/t heads; without sequence parallelism."""

    def __init__(self, width: int, heads: int, tp_size: int, recompute: str) -> None:
        super().__init__()
        self.heads, self.recompute = heads // tp_size, recompute
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width // tp_size)
        self.out = nn.Linear(width // tp_size, width)
        self.up, self.down = (
            nn.Linear(width, 4 * width // tp_size),
            nn.Linear(4 * width // tp_size, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> [B, T, D]"""
        if self.recompute != "full":
            return self.whole(x)
        y: Tensor = of_torch.checkpoint(self.whole, x, use_reentrant=True)
        return y

    def whole(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm_1(x)).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2)
        q, k, v = (part.contiguous() for part in qkv.chunk(3, dim=1))
        if self.recompute == "selective":
            mixed = of_torch.checkpoint(attend, q, k, v, use_reentrant=True)
        else:
            mixed = attend(q, k, v)
        x = x + dropped(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + dropped(self.down(nn.functional.gelu(self.up(self.norm_2(x)))))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q, k, v [B, H, T, D/H] -> the same"""
    scores = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
    return dropped(scores) @ v


def dropped(x: Tensor) -> Tensor:
    """With a mask of one byte for each element, which is what is kept."""
    y: Tensor = torch.native_dropout(x, 0.1, True)[0]
    return y


def counted_bytes(
    tokens: int, samples: int, width: int, heads: int, tp_size: int, recompute: str
) -> int:
    """Of the storages that a real layer's graph holds for backward, weights aside."""
    with torch.device("meta"):
        layer = PaperLayer(width, heads, tp_size, recompute).to(torch.bfloat16)
        x = torch.empty(samples, tokens, width, dtype=torch.bfloat16, requires_grad=True)
    own = {weight.untyped_storage()._cdata for weight in layer.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    return sum(storage.nbytes() for at, storage in kept.items() if at not in own)


# ---- a case -------------------------------------------------------------------------------------


def draw_settings(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Those the case names, or `draws` of them."""
    if "settings" in case.params:
        return [case.params["settings"]]
    return [[random_setting(rng) for _ in range(case.params["draws"])]]


@kept_back(never)
def random_setting(rng: np.random.Generator) -> dict[str, Any]:
    """One in which no two known mistakes lead to the same number."""
    tp_size = int(rng.choice([2, 4, 8]))
    heads = tp_size * int(rng.integers(2, 9))
    return setting(
        tokens=128 * int(rng.integers(3, 30)),
        samples=int(rng.integers(2, 9)),
        width=heads * int(rng.choice([48, 80, 112])),
        heads=heads,
        tp_size=tp_size,
        sequence_parallel=bool(rng.integers(2)),
        recompute=str(rng.choice(RECOMPUTE)),
    )


def drive_activation_bytes(subject: Callable[..., Any], settings: Any, case: Case) -> Plain:
    return [subject(**setting) for setting in settings]


def expect_activation_bytes(case: Case, inputs: Any) -> list[Plain]:
    return [[right_bytes(case, given) for given in inputs[0]]]


def right_bytes(case: Case, given: Setting) -> float:
    if not case.params.get("counted"):
        return formula_bytes(**given)
    return counted_bytes(**{name: given[name] for name in given if name != "sequence_parallel"})


# ---- mistakes by their names --------------------------------------------------------------------


def wrong_bytes(attempt: Attempt) -> Finding | None:
    if attempt.error or not isinstance(attempt.outputs[0], list):
        return None
    for given, wanted, got in zip(
        attempt.inputs[0], attempt.expected[0], attempt.outputs[0], strict=True
    ):
        if equal(wanted, got, TOLERANCE) or not isinstance(got, int | float):
            continue
        for number, mistake in slips(given):
            if equal(number, got, TOLERANCE):
                evidence = f"{got:,.0f} bytes, expected {wanted:,.0f}"
                return Finding("activation_bytes", mistake, evidence, anyone="activation_bytes")
    return None


@kept_back(lambda case, inputs: [(given,) for given in inputs[0]])
def slips(given: Setting) -> list[tuple[float, str]]:
    """What known mistakes make of a setting; the right number is none of them."""
    right = formula_bytes(**given)
    return [
        (number, mistake)
        for number, mistake in wrong_numbers(given)
        if not equal(right, number, TOLERANCE)
    ]


def wrong_numbers(given: Setting) -> Iterator[tuple[float, str]]:
    s, b, h, a = (given[name] for name in ("tokens", "samples", "width", "heads"))
    t, parallel, how = given["tp_size"], given["sequence_parallel"], given["recompute"]
    sbh, right = s * b * h, formula_bytes(**given)
    ratio = 5 * a * s / h

    def other(**changes: Any) -> float:
        return formula_bytes(**{**given, **changes})

    if how != "full":
        if not parallel:
            yield (
                other(sequence_parallel=True),
                "divides everything by t: without sequence parallelism the layer norms, the "
                "inputs of the cut matrices and the dropout masks between them are whole on every "
                "rank, 10sbh",
            )
        else:
            yield (
                other(sequence_parallel=False),
                "leaves 10sbh whole: with sequence parallelism a rank has 1/t of these tokens too",
            )
        yield other(tp_size=1), "does not divide by t: a rank has a part of the heads and columns"
    if how == "none":
        yield (
            other(recompute="selective"),
            "forgets the attention's scores: softmax, its mask and what dropout leaves of it grow "
            "with s², 5as/h",
        )
        yield right - sbh * ratio / t * 3 / 5, "counts the softmax alone of the attention's scores"
        of_masks = (2 / (t if parallel else 1) + ratio / (5 * t)) * sbh
        yield right + of_masks, "counts two bytes for an element of a dropout mask: it has one"
        yield right - of_masks, "forgets the dropout masks, of one byte for each element"
    if how == "selective":
        yield (
            other(recompute="none"),
            "keeps what selective recomputation drops: the scores, their softmax and dropout",
        )
        yield (
            other(recompute="full"),
            "counts full recomputation for selective: only the scores are made again",
        )
    if how == "full":
        part = t if parallel else 1
        yield 34 * sbh / part, "counts selective recomputation for full: a layer keeps its input"
        if parallel:
            other_input = "keeps the whole input on each rank: sequence parallelism has cut it"
        else:
            other_input = "divides the stored input by t: without sequence parallelism it is whole"
        yield other(sequence_parallel=not parallel), other_input
        yield 0, "counts nothing for full recomputation: the layer's input is kept, 2sbh"
        yield right / 2, "counts elements: in 16 bit each has 2 bytes"
    yield right * 2, "counts 4 bytes for each element: in 16 bit they are 2"
    yield right / b, "counts one sequence: all b of a micro-batch are kept"
    yield right / 2**30, "answers in GiB: the answer is in bytes"


def published_case(name: str, model: Setting, hidden: bool = False) -> Case:
    """The paper's table 2: without, tensor parallel, both, selective, full."""
    variants: list[dict[str, Any]] = [
        {},
        {"tp_size": 8},
        {"tp_size": 8, "sequence_parallel": True},
        {"tp_size": 8, "sequence_parallel": True, "recompute": "selective"},
        {"tp_size": 8, "recompute": "full"},
    ]
    settings = [setting(**model, **variant) for variant in variants]
    return Case(name, 1, {"settings": settings}, hidden)


def counted_case(name: str, hidden: bool = False, **changes: Any) -> Case:
    settings = [setting(**changes, recompute=how) for how in RECOMPUTE]
    return Case(name, 1, {"settings": settings, "counted": True}, hidden)


ACTIVATION_BYTES = Exercise(
    name="activation_checkpointing.activation_bytes",
    points=4,
    cases=(
        Case("one rank", 1, {"settings": [setting(), setting(samples=3, width=768, heads=12)]}),
        published_case("175B on 8 ranks, the paper's table", GPT_3),
        counted_case("counted in a layer: none, selective, full"),
        counted_case("counted in a layer on 4 ranks", tp_size=4, hidden=True),
        published_case("530B on 8 ranks, the paper's table", MT_NLG, hidden=True),
        Case("other sizes", 1, {"draws": 16}, hidden=True, weight=2),
    ),
    draw=draw_settings,
    drive=drive_activation_bytes,
    expect=expect_activation_bytes,
    tolerance=TOLERANCE,
    allows=frozenset(),
    diagnoses=(wrong_bytes,),
)
