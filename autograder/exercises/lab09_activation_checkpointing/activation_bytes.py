"""Lab 09, activation_bytes: what a transformer layer keeps, by formula and counted in a layer.

What is counted is shardlab.paper_layer, in 16 bit and on torch's meta device, which has shapes and
no numbers, so that GPT-3's layer can be counted too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint as of_torch
from torch import nn

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back, never
from autograder.guest.library import answers_of, borrowed
from shardlab.estimate import activations
from shardlab.paper_layer import PaperLayer, saved_bytes

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


def counted_bytes(
    tokens: int, samples: int, width: int, heads: int, tp_size: int, recompute: str
) -> int:
    """Of a real layer: one rank's part of it, without sequence parallelism."""
    with torch.device("meta"):
        part = part_of_layer(width, heads, tp_size).to(torch.bfloat16)
        x = torch.empty((samples, tokens, width), dtype=torch.bfloat16).requires_grad_()
    whole, attend = part.forward, part.attend
    again: Any = partial(of_torch.checkpoint, use_reentrant=True)
    if recompute == "selective":
        part.attend = partial(again, attend)  # type: ignore[method-assign]
    elif recompute == "full":
        part.forward = partial(again, whole)  # type: ignore[method-assign]
    return saved_bytes(part, x)


def part_of_layer(width: int, heads: int, tp_size: int) -> PaperLayer:
    """heads/t heads, and a t-th of the MLP's columns."""
    layer = PaperLayer(width, heads)
    layer.heads = heads // tp_size
    for name, fan_in, fan_out in (
        ("qkv", width, 3 * width // tp_size),
        ("out", width // tp_size, width),
        ("up", width, 4 * width // tp_size),
        ("down", 4 * width // tp_size, width),
    ):
        setattr(layer, name, nn.Linear(fan_in, fan_out))
    return layer


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
    return answers_of(subject, settings)


def expect_activation_bytes(case: Case, inputs: Any) -> list[Plain]:
    return [[right_bytes(case, given) for given in inputs[0]]]


def right_bytes(case: Case, given: Setting) -> float:
    if not case.params.get("counted"):
        return formula_bytes(**given)
    return counted_bytes(**{name: given[name] for name in given if name != "sequence_parallel"})


# ---- mistakes by their names --------------------------------------------------------------------


def wrong_bytes(attempt: Attempt) -> Finding | None:
    """The slip that explains most of the wrong answers: a single one may fit two by chance."""
    if attempt.error or not isinstance(attempt.outputs[0], list):
        return None
    explained: dict[str, list[str]] = {}  # by the mistake, what it explains
    for given, wanted, got in zip(
        attempt.inputs[0], attempt.expected[0], attempt.outputs[0], strict=True
    ):
        if equal(wanted, got, TOLERANCE) or not isinstance(got, int | float):
            continue
        for number, mistake in slips(given):
            if equal(number, got, TOLERANCE):
                evidence = f"{got:,.0f} bytes, expected {wanted:,.0f}"
                explained.setdefault(mistake, []).append(evidence)
    if not explained:
        return None
    mistake = max(explained, key=lambda slip: len(explained[slip]))
    return Finding("activation_bytes", mistake, explained[mistake][0], anyone="activation_bytes")


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
    variants = (
        *((1, False, "none"), (8, False, "none"), (8, True, "none")),
        *((8, True, "selective"), (8, False, "full")),
    )
    settings = [
        setting(**model, tp_size=tp_size, sequence_parallel=parallel, recompute=how)
        for tp_size, parallel, how in variants
    ]
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
        Case("sixteen more layers", 1, {"draws": 16}, hidden=True, weight=2),
    ),
    draw=draw_settings,
    drive=drive_activation_bytes,
    expect=expect_activation_bytes,
    tolerance=TOLERANCE,
    allows=frozenset(),
    diagnoses=(borrowed, wrong_bytes),
)
