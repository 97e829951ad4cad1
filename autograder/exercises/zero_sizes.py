"""Lab 04's arithmetic: bytes of model states by ZeRO stage, and bounds of a flat partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back, never
from autograder.exercises.bounds import as_pairs, is_pairs
from autograder.exercises.zero import shard_bounds
from autograder.guest.library import answers_of, borrowed
from shardlab.estimate import memory

# ---- zero_bytes ---------------------------------------------------------------------------------

CATEGORIES = ("parameters", "gradients", "optimizer")
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}
PAPER_PARAMETERS = (7_500_000_000, 128_000_000_000, 1_000_000_000_000)
PAPER_RANKS = (1, 4, 16, 64, 256, 1024)


def draw_questions(case: Case, rng: np.random.Generator) -> list[Plain]:
    """[parameters, world_size, stage, offload]: `draws` of them, or a column of the table"""
    stages, offload = case.params["stages"], case.params["offload"]
    if "parameters" in case.params:
        sizes = [(case.params["parameters"], n) for n in case.params["ranks"]]
    else:
        sizes = random_sizes(case, rng)
    return [[[parameters, n, stage, offload] for parameters, n in sizes for stage in stages]]


@kept_back(never)
def random_sizes(case: Case, rng: np.random.Generator) -> list[tuple[int, int]]:
    draws = range(case.params["draws"])
    return [(int(rng.integers(10**6, 10**12)), int(rng.integers(3, 2000))) for _ in draws]


def drive_zero_bytes(subject: Callable[..., Any], questions: Any, case: Case) -> Plain:
    return answers_of(subject, questions)


def right_bytes(parameters: int, world_size: int, stage: int, offload: bool) -> dict[str, float]:
    states = memory.model_states(
        parameters, stage=stage, world_size=world_size, offload_optimizer=offload
    )
    return {**states.device, "host": states.host_bytes}


def expect_zero_bytes(case: Case, inputs: Any) -> list[Plain]:
    return [[right_bytes(*question) for question in inputs[0]]]


def wrong_bytes(attempt: Attempt) -> Finding | None:
    if attempt.error or not isinstance(attempt.outputs[0], list):
        return None
    for question, wanted, got in zip(
        attempt.inputs[0], attempt.expected[0], attempt.outputs[0], strict=True
    ):
        if not isinstance(got, dict) or equal(wanted, got, 1e-9):
            continue
        mistake = name_wrong_bytes(question, wanted, got)
        if mistake:
            name = next(key for key in wanted if not equal(wanted[key], got.get(key), 1e-9))
            parameters, n, stage, offload = question
            call = f"zero_bytes({parameters:,}, {n}, {stage}{', True' if offload else ''})"
            evidence = f"{name}: {got.get(name)}, expected {wanted[name]:,.1f}"
            return Finding(call, mistake, evidence, anyone="zero_bytes")
    return None


def name_wrong_bytes(
    question: list[Any], wanted: dict[str, float], got: dict[str, Any]
) -> str | None:
    """Each mistake as what it makes of the right answer, the first that gives just what came."""
    parameters, n, stage, offload = question

    def gives(**changed: float) -> bool:
        return equal(wanted | changed, got, 1e-9)

    def all_times(factor: float) -> dict[str, float]:
        return {name: size * factor for name, size in wanted.items()}

    if gives(**all_times(2**30 / 1e9)):
        return "counts GB as GiB: a GB has 10⁹ bytes, 2³⁰ are a GiB"
    if gives(**all_times(1e-9)) or gives(**all_times(2.0**-30)):
        return "answers in GB: the answer is in bytes"
    place = "host" if offload else "optimizer"
    for k, mistake in {
        8: "forgets the fp32 master of the parameters: K is 4 + 4 + 4 = 12 bytes",
        4: "counts one of Adam's two states: K is 4 + 4 + 4 = 12 bytes",
        16: "counts a gradient in fp32 as well: K is 4 + 4 + 4 = 12 bytes",
    }.items():
        share = parameters / n if stage >= 1 else parameters
        if gives(**{place: wanted[place] + (k - 12) * share}):
            return mistake
    if offload and gives(gradients=2 * parameters / n, host=wanted["host"] - 2 * parameters / n):
        return "leaves the gradients on the device: with offload they lie on the host"
    if offload and gives(host=wanted["host"] * n):
        return "counts the host's bytes of all ranks: the answer is for one rank"
    sharded = [name for name in CATEGORIES if stage >= SHARDED_FROM[name] and wanted[name]]
    whole = [name for name in CATEGORIES if stage < SHARDED_FROM[name] and wanted[name]]
    for names in subsets(whole):
        if gives(**{name: wanted[name] / n for name in names}):
            return f"divides the {' and the '.join(names)}, which this stage does not shard"
    for names in subsets(sharded):
        if gives(**{name: wanted[name] * n for name in names}):
            return f"does not divide the {' and the '.join(names)}, which this stage shards"
    return wrong_divisor([*sharded, "host"] if offload else sharded, n, wanted, got)


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(1, len(names) + 1):
        yield from combinations(names, size)


def wrong_divisor(
    sharded: list[str], n: int, wanted: dict[str, float], got: dict[str, Any]
) -> str | None:
    """Right but for the divisor of all that is sharded."""
    for divisor, mistake in {
        n - 1: "divides by N - 1: all N ranks have a share",
        n * n: "divides by N twice",
        8: "divides by 8, whatever N is: divide by world_size",
    }.items():
        if sharded and divisor > 0:
            changed = {name: wanted[name] * n / divisor for name in sharded}
            if equal(wanted | changed, got, 1e-9):
                return mistake
    return None


def paper_case(parameters: int, name: str, hidden: bool = False) -> Case:
    params = {"parameters": parameters, "ranks": list(PAPER_RANKS), "stages": [1, 2, 3]}
    return Case(f"the paper's table, {name}", 1, params | {"offload": False}, hidden, weight=0.5)


ZERO_BYTES = Exercise(
    name="zero.zero_bytes",
    points=3,
    cases=(
        Case(
            "stage 0: everything everywhere",
            1,
            {"parameters": 7_500_000_000, "ranks": [64], "stages": [0], "offload": False},
            weight=0.5,
        ),
        paper_case(PAPER_PARAMETERS[0], "7.5B"),
        paper_case(PAPER_PARAMETERS[1], "128B"),
        Case(
            "10B with offload on 4 ranks",
            1,
            {"parameters": 10**10, "ranks": [4], "stages": [2, 3], "offload": True},
        ),
        paper_case(PAPER_PARAMETERS[2], "1T", hidden=True),
        Case(
            "other sizes and ranks",
            1,
            {"draws": 20, "stages": [0, 1, 2, 3], "offload": False},
            hidden=True,
            weight=2,
        ),
        Case(
            "other sizes and ranks, with offload",
            1,
            {"draws": 20, "stages": [2, 3], "offload": True},
            hidden=True,
        ),
    ),
    draw=draw_questions,
    drive=drive_zero_bytes,
    expect=expect_zero_bytes,
    tolerance=1e-9,
    allows=frozenset(),
    diagnoses=(borrowed, wrong_bytes),
)


# ---- shard_bounds -------------------------------------------------------------------------------


def draw_partitions(case: Case, rng: np.random.Generator) -> list[Plain]:
    """[sizes of the parameters, world_size], those the case names or `draws` of them."""
    if "partitions" in case.params:
        return [case.params["partitions"]]
    return [random_partitions(case, rng)]


@kept_back(never)
def random_partitions(case: Case, rng: np.random.Generator) -> Plain:
    partitions: list[Plain] = []
    while len(partitions) < case.params["draws"]:
        world_size = int(rng.integers(3, 33))
        sizes = [int(size) for size in rng.integers(1, 2000, size=int(rng.integers(3, 9)))]
        if sum(sizes) % world_size:  # with padding: without it mistakes would pass
            partitions.append([sizes, world_size])
    return partitions


def drive_shard_bounds(subject: Callable[..., Any], partitions: Any, case: Case) -> Plain:
    return [as_pairs(answer) for answer in answers_of(subject, partitions)]


def expect_shard_bounds(case: Case, inputs: Any) -> list[Plain]:
    return [[shard_bounds(sizes, n) for sizes, n in inputs[0]]]


def wrong_bounds(attempt: Attempt) -> Finding | None:
    if attempt.error:
        return None
    for (sizes, n), wanted, bounds in zip(
        attempt.inputs[0], attempt.expected[0], attempt.outputs[0], strict=True
    ):
        if bounds != wanted and is_pairs(bounds):
            mistake = name_wrong_bounds(sizes, n, bounds)
            call = f"shard_bounds({sizes}, {n})"
            return Finding(call, mistake, f"it is {bounds}", anyone="shard_bounds")
    return None


def name_wrong_bounds(sizes: list[int], world_size: int, bounds: list[tuple[int, int]]) -> str:
    length = sum(sizes)
    lengths = [stop - start for start, stop in bounds]
    if len(bounds) != world_size:
        return "should return one pair for each rank: world_size of them"
    if bounds[-1][1] == length and len(set(lengths[:-1])) == 1 and lengths[-1] > lengths[0]:
        return "gives the last rank the rest: pad, so that all slices are equal"
    layer_edges = {int(edge) for edge in np.cumsum([0, *sizes])}
    if {edge for pair in bounds for edge in pair} <= layer_edges:
        return "splits by layer: a slice may begin and end in the middle of a parameter"
    if bounds[-1][1] == length:
        return "forgets the padding: slices end at a multiple of N, past the last parameter"
    if len(set(lengths)) > 1:
        return "makes unequal slices: collectives want the same length on every rank"
    if bounds[-1][1] < length:
        return "drops the last elements: N slices of ⌊Ψ/N⌋ do not hold Ψ"
    return "pads too much: a slice has ⌈Ψ/N⌉ elements"


SHARD_BOUNDS = Exercise(
    name="zero.shard_bounds",
    points=2,
    cases=(
        Case("parameters of 3, 4 and 3 for 4 ranks", 1, {"partitions": [[[3, 4, 3], 4]]}),
        Case("parameters of 100 and 7 for 8 ranks", 1, {"partitions": [[[100, 7], 8]]}),
        Case("more ranks than elements", 1, {"partitions": [[[2, 1], 5]]}, hidden=True),
        Case("other sizes and ranks", 1, {"draws": 20}, hidden=True),
    ),
    draw=draw_partitions,
    drive=drive_shard_bounds,
    expect=expect_shard_bounds,
    allows=frozenset(),
    diagnoses=(borrowed, wrong_bounds),
)
