"""Lab 06: what offload moves, an optimizer on the host, and configurations that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back, never
from autograder.exercises.offload import OFFLOADED_ADAM
from autograder.exercises.offload_configs import FIX_CONFIG, WRITE_CONFIG
from autograder.guest.library import answers_of, borrowed
from shardlab.estimate import offload

METHODS = ("swap", "zero-offload", "parameters")
PRECISIONS = ("bf16", "fp16", "fp32")
GB, GIB = 10**9, 2**30

Question = list[Any]  # [method, parameters, world_size, precision, micro_batches]
Bytes = tuple[float, float]  # to the host, to the device


def draw_questions(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Counts of parameters that divide by the ranks, so that answers are whole bytes."""
    if "questions" in case.params:
        return [case.params["questions"]]
    return [random_questions(rng)]


@kept_back(never)
def random_questions(rng: np.random.Generator) -> Plain:
    questions = []
    for _ in range(24):
        world_size = int(rng.integers(1, 33))
        parameters = world_size * int(rng.integers(10**5, 10**8))
        method, precision = str(rng.choice(METHODS)), str(rng.choice(PRECISIONS))
        questions.append([method, parameters, world_size, precision, int(rng.integers(1, 9))])
    return questions


def drive_bytes(subject: Callable[..., Any], questions: list[Question], case: Case) -> Plain:
    return [as_pair(answer) for answer in answers_of(subject, questions)]


def as_pair(answer: Any) -> Plain:
    """A list will do for a tuple."""
    return tuple(answer) if isinstance(answer, list) else answer


CHANGES: tuple[dict[str, Any], ...] = (  # by which slips differ from their question
    {},
    {"world_size": 1},
    {"micro_batches": 1},
    {"precision": "fp32"},
    {"precision": "bf16"},
)


def changed(question: Question, **changes: Any) -> Question:
    names = ("method", "parameters", "world_size", "precision", "micro_batches")
    return list((dict(zip(names, question, strict=True)) | changes).values())


@kept_back(lambda case, inputs: [(changed(q, **those),) for q in inputs[0] for those in CHANGES])
def bytes_of(question: Question) -> Bytes:
    """(arXiv 2101.06840, section 3; parameters on the host: arXiv 2104.07857)"""
    method, parameters, world_size, precision, micro_batches = question
    moved = offload.moved_bytes(
        parameters,
        method,
        world_size=world_size,
        micro_batches=micro_batches,
        element_bytes=element_bytes_of(precision),
        state_bytes=state_bytes_of(precision),
    )
    return moved.to_host_bytes, moved.to_device_bytes


def element_bytes_of(precision: str) -> int:
    return 4 if precision == "fp32" else 2


def state_bytes_of(precision: str) -> int:
    """Momentum and variance; in 16-bit training the fp32 master as well."""
    return 8 if precision == "fp32" else 12


def expect_bytes(case: Case, inputs: Any) -> list[Plain]:
    return [[bytes_of(question) for question in inputs[0]]]


def slips(question: Question, right: Bytes) -> Iterator[tuple[Bytes, str]]:
    """Wrong answers that have a name, for one question."""
    method, _, _, precision, micro_batches = question
    down, up = right

    def of(**changes: Any) -> Bytes:
        return bytes_of(changed(question, **changes))

    yield of(world_size=1), "forgets to divide by N: each rank moves its own share"
    yield (down / GIB, up / GIB), "is in GiB: the answer is in bytes"
    yield (down / GB, up / GB), "is in GB: the answer is in bytes"
    yield (down, 0), "counts one direction only: parameters come back up"
    yield (0, up), "counts one direction only: gradients go down"
    yield of(micro_batches=1), "forgets that there is a backward pass for each micro-batch"
    if method == "swap":
        other = 8 if precision != "fp32" else 12
        times = other / state_bytes_of(precision)
        yield (
            (down * times, up * times),
            "counts the wrong states: 16-bit training has an fp32 master as well, fp32 has none",
        )
        return
    if precision != "fp32":
        yield of(precision="fp32"), "counts fp32, 4Ψ: what moves has 16 bits, 2 bytes each"
    else:
        yield of(precision="bf16"), "counts 16 bits, 2Ψ: in fp32 training 4 bytes each move"
    if method == "zero-offload":
        yield (
            (down, up * micro_batches),
            "brings parameters up for each micro-batch: they change once in a step",
        )
    if method == "parameters":
        yield (down, up / 2), "fetches parameters once: forward needs them, and backward again"


def wrong_formula(attempt: Attempt) -> Finding | None:
    """The first wrong answer, if it has a name."""
    if attempt.error:
        return None
    answers = attempt.outputs[0]
    for question, wanted, got in zip(attempt.inputs[0], attempt.expected[0], answers, strict=True):
        if equal(wanted, got) or not is_pair(got):
            continue
        call = f"offload_bytes_per_step({', '.join(map(written, question))})"
        evidence = ", expected ".join(
            f"({', '.join(map(written, pair))})" for pair in (got, wanted)
        )
        for slip, mistake in slips(question, wanted):
            if equal(slip, got, 1e-6) and not equal(wanted, slip):
                return Finding(call, mistake, evidence, anyone="offload_bytes_per_step")
        if equal((wanted[1], wanted[0]), got):
            mistake = "has its two numbers the wrong way round: down first, then up"
            return Finding(call, mistake, evidence, anyone="offload_bytes_per_step")
    return None


def written(value: Any) -> str:
    """1,000,000,000: a long row of digits is taken for a clock's, and not shown."""
    return f"{value:,}" if isinstance(value, int | float) else repr(value)


def is_pair(got: Any) -> bool:
    return isinstance(got, tuple) and len(got) == 2


OFFLOAD_BYTES = Exercise(
    name="offload.offload_bytes_per_step",
    points=3,
    cases=(
        Case(
            "ZeRO-Offload on one device", 1, {"questions": [["zero-offload", 10**9, 1, "bf16", 1]]}
        ),
        Case(
            "on 8 ranks, 4 micro-batches", 1, {"questions": [["zero-offload", 8000, 8, "fp16", 4]]}
        ),
        Case("ZeRO-Offload in fp32", 1, {"questions": [["zero-offload", 8000, 4, "fp32", 1]]}),
        Case("states that swap", 1, {"questions": [["swap", 6000, 2, "bf16", 3]]}),
        Case("parameters on the host", 1, {"questions": [["parameters", 6000, 4, "bf16", 2]]}),
        Case("other models, ranks and precisions", 1, {}, hidden=True),
    ),
    draw=draw_questions,
    drive=drive_bytes,
    expect=expect_bytes,
    tolerance=1e-9,
    allows=frozenset(),
    diagnoses=(borrowed, wrong_formula),
)


EXERCISES = (OFFLOAD_BYTES, OFFLOADED_ADAM, WRITE_CONFIG, FIX_CONFIG)
