"""Lab 03: a ring all-reduce from its pieces, each examined for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.compare import equal
from autograder.drive import standing_in
from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercises.bounds import as_pairs, is_pairs
from autograder.exercises.ready_made import answers_of, borrowed
from autograder.exercises.ring import (
    HALF_MIB_OF_FLOAT32,
    P2P_ONLY,
    RIGHT_NEIGHBOUR_ONLY,
    Bounds,
    adds_what_arrives,
    bounds_of,
    chunks_of,
    draw_tensors,
    hub,
    missing_chunks,
    nothing_added,
    returns_nothing,
    ring_case,
    sum_or_mean,
    whole_tensors,
    within_one_percent,
    works_on_a_copy,
    wrong_chunk,
    wrong_neighbour,
)
from autograder.kept_back import kept_back, never


def halves_cases() -> tuple[Case, ...]:
    """For reduce-scatter and for all-gather alike."""
    return (
        ring_case(4, 12),
        ring_case(3, 10),
        ring_case(2, HALF_MIB_OF_FLOAT32),
        ring_case(4, HALF_MIB_OF_FLOAT32),
        ring_case(8, HALF_MIB_OF_FLOAT32),
        ring_case(5, 75_001, "float64", hidden=True),
        ring_case(6, 50, "int64", hidden=True),
        ring_case(5, 3, hidden=True),
        ring_case(3, 1, "float64", hidden=True),
        ring_case(4, 300_002, "bfloat16", hidden=True),
    )


def all_reduce_cases() -> tuple[Case, ...]:
    """Both operations at 4 ranks: who knows only one of them is not told to look for a 4."""
    return (
        ring_case(4, 12, op="mean", suffix=", mean"),
        ring_case(3, 10, op="sum", suffix=", sum"),
        ring_case(2, HALF_MIB_OF_FLOAT32, op="mean", suffix=", mean"),
        ring_case(4, HALF_MIB_OF_FLOAT32, op="sum", suffix=", sum"),
        ring_case(8, HALF_MIB_OF_FLOAT32, op="mean", suffix=", mean"),
        ring_case(5, 75_001, "float64", op="mean", hidden=True),
        ring_case(6, 50, "int64", op="sum", hidden=True),
        ring_case(5, 3, op="sum", hidden=True),
        ring_case(3, 1, op="mean", hidden=True),
        ring_case(4, 300_002, "bfloat16", op="sum", hidden=True),
    )


# ---- reduce_scatter -----------------------------------------------------------------------------


def drive_reduce_scatter(
    subject: Callable[[torch.Tensor, Bounds], Any], tensor: torch.Tensor, case: Case
) -> Plain:
    bounds = bounds_of(len(tensor), case.world_size)
    returned = subject(tensor, list(bounds))
    start, stop = bounds[dist.get_rank()]
    return {"returned": returned, "tensor[start:stop]": tensor[start:stop]}


def expect_reduce_scatter(case: Case, inputs: Any) -> list[Plain]:
    chunks = chunks_of(case, torch.stack(inputs).sum(dim=0))
    return [{"returned": chunk, "tensor[start:stop]": chunk} for chunk in chunks]


REDUCE_SCATTER = Exercise(
    name="ring_all_reduce.reduce_scatter",
    points=5,
    cases=halves_cases(),
    draw=draw_tensors,
    drive=drive_reduce_scatter,
    expect=expect_reduce_scatter,
    budgets=(within_one_percent(halves=1), RIGHT_NEIGHBOUR_ONLY),
    allows=P2P_ONLY,
    diagnoses=(
        hub,
        wrong_neighbour,
        whole_tensors,
        returns_nothing,
        wrong_chunk,
        nothing_added,
    ),
)


# ---- all_gather ---------------------------------------------------------------------------------


def draw_buffers(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Rank r's own chunk of its buffer counts; what the rest holds must not matter."""
    buffers = draw_tensors(case, rng)
    for rank, buffer in enumerate(buffers):
        for chunk, values in enumerate(chunks_of(case, buffer)):
            if chunk != rank:
                values.neg_()
    return buffers


def drive_all_gather(
    subject: Callable[[torch.Tensor, Bounds], Any], tensor: torch.Tensor, case: Case
) -> Plain:
    returned = subject(tensor, bounds_of(len(tensor), case.world_size))
    return {"tensor": tensor, "returned": tensor_or_none(returned)}


def expect_all_gather(case: Case, inputs: Any) -> list[Plain]:
    own = [chunks_of(case, buffer)[rank] for rank, buffer in enumerate(inputs)]
    return [{"tensor": torch.cat(own)}] * case.world_size


def tensor_or_none(returned: Any) -> torch.Tensor | None:
    return returned if isinstance(returned, torch.Tensor) else None


ALL_GATHER = Exercise(
    name="ring_all_reduce.all_gather",
    points=4,
    cases=halves_cases(),
    draw=draw_buffers,
    drive=drive_all_gather,
    expect=expect_all_gather,
    budgets=(within_one_percent(halves=1), RIGHT_NEIGHBOUR_ONLY),
    allows=P2P_ONLY,
    diagnoses=(
        hub,
        wrong_neighbour,
        whole_tensors,
        works_on_a_copy,
        adds_what_arrives,
        missing_chunks,
    ),
)


# ---- ring_all_reduce ----------------------------------------------------------------------------


def direct_reduce_scatter(tensor: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """Stands in for the student's: as many bytes as in a ring, sent straight to their owners."""
    rank = dist.get_rank()
    start, stop = bounds[rank]
    own = tensor[start:stop]
    others = [peer for peer in range(len(bounds)) if peer != rank]
    received = [torch.empty_like(own) for _ in others]
    works = [dist.irecv(part, peer) for part, peer in zip(received, others, strict=True)]
    works += [dist.isend(tensor[slice(*bounds[peer])], peer) for peer in others]
    wait_for(works)
    for part in received:
        own += part
    return own


def wait_for(works: list[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def direct_all_gather(tensor: torch.Tensor, bounds: Bounds) -> None:
    rank = dist.get_rank()
    others = [peer for peer in range(len(bounds)) if peer != rank]
    works = [dist.irecv(tensor[slice(*bounds[peer])], peer) for peer in others]
    works += [dist.isend(tensor[slice(*bounds[rank])], peer) for peer in others]
    wait_for(works)


def drive_ring_all_reduce(subject: Callable[..., Any], tensor: torch.Tensor, case: Case) -> Plain:
    subject = standing_in(
        subject,
        chunk_bounds=bounds_of,
        reduce_scatter=direct_reduce_scatter,
        all_gather=direct_all_gather,
    )
    returned = subject(tensor, op=case.params["op"])
    return {"tensor": tensor, "returned": tensor_or_none(returned)}


def expect_ring_all_reduce(case: Case, inputs: Any) -> list[Plain]:
    total = torch.stack(inputs).sum(dim=0)
    wanted = total / case.world_size if case.params["op"] == "mean" else total
    return [{"tensor": wanted}] * case.world_size


RING_ALL_REDUCE = Exercise(
    name="ring_all_reduce.ring_all_reduce",
    points=5,
    cases=all_reduce_cases(),
    draw=draw_tensors,
    drive=drive_ring_all_reduce,
    expect=expect_ring_all_reduce,
    budgets=(within_one_percent(halves=2),),
    allows=P2P_ONLY,
    diagnoses=(works_on_a_copy, sum_or_mean, hub, whole_tensors),
)


# ---- chunk_bounds, bytes_per_rank: plain functions, on one rank ----------------------------------


def draw_sizes(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Those the case names, or `draws` of them: [length, world_size] with a remainder or short."""
    if "sizes" in case.params:
        return [case.params["sizes"]]
    return [random_sizes(case, rng)]


@kept_back(never)
def random_sizes(case: Case, rng: np.random.Generator) -> Plain:
    sizes = []
    for _ in range(case.params["draws"]):
        world_size = int(rng.integers(3, 17))
        if case.params["short"]:
            length = int(rng.integers(0, world_size))
        else:
            length = world_size * int(rng.integers(1, 1000)) + int(rng.integers(1, world_size))
        sizes.append([length, world_size])
    return sizes


def drive_chunk_bounds(
    subject: Callable[[int, int], Any], sizes: list[list[int]], case: Case
) -> Plain:
    return [as_pairs(answer) for answer in answers_of(subject, sizes)]


def expect_chunk_bounds(case: Case, inputs: Any) -> list[Plain]:
    return [[bounds_of(length, world_size) for length, world_size in inputs[0]]]


def wrong_bounds(attempt: Attempt) -> Finding | None:
    """Names the first answer that is a list of pairs but not the right one."""
    if attempt.error:
        return None
    for (length, world_size), wanted, bounds in zip(
        attempt.inputs[0], attempt.expected[0], attempt.outputs[0], strict=True
    ):
        if bounds != wanted and is_pairs(bounds):
            call = f"chunk_bounds({length}, {world_size})"
            mistake = name_wrong_bounds(length, world_size, bounds)
            return Finding(call, mistake, f"it is {bounds}", anyone="chunk_bounds")
    return None


def name_wrong_bounds(length: int, world_size: int, bounds: Bounds) -> str:
    if len(bounds) != world_size:
        return "should return one pair for each rank: world_size of them"
    if not all(0 <= start <= stop <= length for start, stop in bounds):
        return "should keep to 0 ≤ start ≤ stop ≤ length"
    covered = [element for start, stop in bounds for element in range(start, stop)]
    if covered == list(range(length - length % world_size)):
        return "skips the remainder: the last elements are in no chunk"
    if covered != list(range(length)):
        return "should put every element in exactly one chunk, in order"
    lengths = [stop - start for start, stop in bounds]
    if max(lengths) - min(lengths) > 1:
        return "makes unequal chunks: lengths may differ by 1 at most"
    return "should put the longer chunks first"


CHUNK_BOUNDS = Exercise(
    name="ring_all_reduce.chunk_bounds",
    points=2,
    cases=(
        Case("12 elements for 4 ranks", 1, {"sizes": [[12, 4]]}),
        Case("10 elements for 4 ranks", 1, {"sizes": [[10, 4]]}),
        Case("3 elements for 8 ranks", 1, {"sizes": [[3, 8]]}),
        Case("lengths with a remainder", 1, {"draws": 20, "short": False}, hidden=True),
        Case("fewer elements than ranks", 1, {"draws": 20, "short": True}, hidden=True),
    ),
    draw=draw_sizes,
    drive=drive_chunk_bounds,
    expect=expect_chunk_bounds,
    allows=frozenset(),
    diagnoses=(wrong_bounds,),
)


def draw_transfers(case: Case, rng: np.random.Generator) -> list[Plain]:
    """[length, element_bytes, world_size], lengths that divide: the formula gives whole bytes."""
    if "transfers" in case.params:
        return [case.params["transfers"]]
    return [random_transfers(rng)]


@kept_back(never)
def random_transfers(rng: np.random.Generator) -> Plain:
    transfers = []
    for _ in range(20):
        world_size = int(rng.integers(3, 65))
        length = world_size * int(rng.integers(1, 10**6))
        transfers.append([length, int(rng.choice([1, 2, 4, 8])), world_size])
    return transfers


def drive_bytes_per_rank(
    subject: Callable[[int, int, int], Any], transfers: list[list[int]], case: Case
) -> Plain:
    return answers_of(subject, transfers)


def expect_bytes_per_rank(case: Case, inputs: Any) -> list[Plain]:
    return [[2 * (n - 1) * length * size // n for length, size, n in inputs[0]]]


def wrong_formula(attempt: Attempt) -> Finding | None:
    if attempt.error:
        return None
    for (length, size, n), wanted, got in zip(
        attempt.inputs[0], attempt.expected[0], attempt.outputs[0], strict=True
    ):
        tensor_bytes = length * size
        other_formulas = {
            2 * tensor_bytes: "forgets (N - 1) / N: a rank never sends its own result to itself",
            wanted / 2: "counts one half of the ring: there is a reduce-scatter and an all-gather",
            wanted / size: "counts elements: the answer is in bytes",
            wanted * n: "counts what all ranks send together: the answer is for one rank",
            (n - 1) * tensor_bytes: "counts whole tensors: a ring sends chunks of 1/N",
        }
        known = isinstance(got, int | float) and not equal(wanted, got) and other_formulas.get(got)
        if known:
            call = f"bytes_per_rank({length}, {size}, {n})"
            evidence = f"{got:,.0f}, expected {wanted:,.0f}"
            return Finding(call, known, evidence, anyone="bytes_per_rank")
    return None


BYTES_PER_RANK = Exercise(
    name="ring_all_reduce.bytes_per_rank",
    points=2,
    cases=(
        Case("1,000 float32 on 4 ranks", 1, {"transfers": [[1000, 4, 4]]}),
        Case("2²⁰ bfloat16 on 8 ranks", 1, {"transfers": [[2**20, 2, 8]]}),
        Case("other sizes and ranks", 1, {}, hidden=True),
        Case("one rank, two ranks", 1, {"transfers": [[640, 4, 1], [640, 8, 2]]}, hidden=True),
    ),
    draw=draw_transfers,
    drive=drive_bytes_per_rank,
    expect=expect_bytes_per_rank,
    tolerance=1e-9,
    allows=frozenset(),
    diagnoses=(borrowed, wrong_formula),
)


EXERCISES = (CHUNK_BOUNDS, REDUCE_SCATTER, ALL_GATHER, RING_ALL_REDUCE, BYTES_PER_RANK)
