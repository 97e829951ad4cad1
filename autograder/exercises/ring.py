"""What exercises on rings share: cases, byte budgets, and mistakes by their names.

The ring: rank r sends to its right neighbour r + 1 and receives from its left neighbour r - 1
(modulo N).  reduce-scatter leaves rank r with chunk r of the sum, all-gather starts from there.
"""

from __future__ import annotations

import numpy as np
import torch

from autograder.compare import equal
from autograder.exercise import Attempt, Budget, Case, Finding, Plain
from autograder.exercises.outputs import finished
from autograder.kept_back import by_case, kept_back
from shardlab.run import Run

Bounds = list[tuple[int, int]]

P2P_ONLY = frozenset({"send", "recv"})
HALF_MIB_OF_FLOAT32 = 2**17
# Below this, gloo's own messages (about 100 bytes for each send) would blur a budget of 1 %.
BUDGET_FROM_BYTES = 2**19


@kept_back(lambda case, inputs: [(len(tensor), case.world_size) for tensor in inputs[:1]])
def bounds_of(length: int, world_size: int) -> Bounds:
    pieces = np.array_split(np.arange(length), world_size)
    stops = np.cumsum([len(piece) for piece in pieces])
    return [(int(stop) - len(piece), int(stop)) for stop, piece in zip(stops, pieces, strict=True)]


# ---- cases on ranks -----------------------------------------------------------------------------


def ring_case(
    world_size: int,
    length: int,
    dtype: str = "float32",
    op: str = "sum",
    hidden: bool = False,
    suffix: str = "",
) -> Case:
    size = "512 KiB" if length == HALF_MIB_OF_FLOAT32 else f"{length:,} elements"
    params = {"length": length, "dtype": dtype, "op": op}
    return Case(f"{world_size} ranks, {size}{suffix}", world_size, params, hidden)


def draw_tensors(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Small positive whole numbers: sums are exact in every dtype, and no two mistakes agree."""
    dtype = getattr(torch, case.params["dtype"])
    most = 16 if dtype == torch.bfloat16 else 1000
    shape = (case.world_size, case.params["length"])
    return list(torch.from_numpy(rng.integers(1, most + 1, size=shape)).to(dtype))


def chunks_of(case: Case, tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor[start:stop] for start, stop in bounds_of(len(tensor), case.world_size)]


# ---- budgets ------------------------------------------------------------------------------------


@kept_back(by_case)
def half_bytes(case: Case) -> float | None:
    """(N-1)/N·S, what each rank sends in one half of a ring; None where S is too small to tell."""
    element_bytes = getattr(torch, case.params["dtype"]).itemsize
    tensor_bytes = case.params["length"] * element_bytes
    if tensor_bytes < BUDGET_FROM_BYTES:
        return None
    return (case.world_size - 1) / case.world_size * tensor_bytes


def within_one_percent(halves: int) -> Budget:
    def times(factor: float, case: Case) -> list[float] | None:
        ideal_bytes = half_bytes(case)
        if ideal_bytes is None:
            return None
        return [factor * halves * ideal_bytes] * case.world_size

    return Budget(
        "sends ≤ 1.01 × ideal bytes per rank",
        limit=lambda case: times(1.01, case),
        used=lambda run: run.traffic.sent_by_rank.tolist(),
        least=lambda case: times(0.99, case) or [],
    )


def neighbour_limit(case: Case) -> list[float] | None:
    """Not 0: gloo's receiver tells its sender, the left neighbour, that it is ready."""
    ideal_bytes = half_bytes(case)
    return None if ideal_bytes is None else [0.01 * ideal_bytes] * case.world_size


def past_the_neighbour(run: Run) -> list[int]:
    sent = run.traffic.sent_bytes
    ranks = range(run.world_size)
    return [int(sent[rank].sum() - sent[rank, (rank + 1) % len(ranks)]) for rank in ranks]


RIGHT_NEIGHBOUR_ONLY = Budget(
    "sends to the right neighbour only",
    limit=neighbour_limit,
    used=past_the_neighbour,
)


# ---- mistakes by their names --------------------------------------------------------------------


def hub(attempt: Attempt) -> Finding | None:
    run, world_size = attempt.run, attempt.case.world_size
    if run is None or world_size < 3:
        return None
    sent = run.traffic.sent_bytes
    through = sent.sum(axis=0) + sent.sum(axis=1)  # bytes in and out of each rank
    centre = int(through.argmax())
    if not sent.sum() or through[centre] < 0.9 * sent.sum():
        return None
    return Finding(
        f"rank {centre}",
        "is a hub: every other rank sends it everything, and it sends everything back",
        anyone="one rank",
    )


def wrong_neighbour(attempt: Attempt) -> Finding | None:
    world_size = attempt.case.world_size
    for call in attempt.run.calls if attempt.run else []:
        step, side = (1, "right") if call.op == "send" else (-1, "left")
        neighbour = (call.rank + step) % world_size
        if call.is_p2p and call.peer is not None and call.peer != neighbour:
            verb = "sends to" if call.op == "send" else "receives from"
            sign = "+" if step > 0 else "-"
            return Finding(
                f"rank {call.rank}",
                f"{verb} the wrong neighbour: {side} is (rank {sign} 1) % world_size",
                f"{verb} rank {call.peer}, its {side} neighbour is rank {neighbour}",
            )
    return None


def whole_tensors(attempt: Attempt) -> Finding | None:
    longest = len(chunks_of(attempt.case, attempt.inputs[0])[0])
    if longest >= attempt.case.params["length"]:
        return None
    most_bytes = longest * attempt.inputs[0].element_size()
    for call in attempt.run.calls if attempt.run else []:
        if call.op == "send" and call.bytes > most_bytes:
            return Finding(
                f"rank {call.rank}",
                "sends whole tensors: a ring sends one chunk in each step",
                f"{call.bytes:,} bytes in one send, a chunk has {most_bytes:,}",
            )
    return None


def returns_nothing(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        if output["returned"] is None:
            return Finding(f"rank {rank}", "returned nothing: return the chunk that it reduced")
    return None


def works_on_a_copy(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        wanted = attempt.expected[rank]["tensor"]
        if equal(wanted, output["returned"]) and not equal(wanted, output["tensor"]):
            return Finding(
                f"rank {rank}",
                "modifies a copy: it returns the right values but leaves tensor itself unchanged",
            )
    return None


def wrong_chunk(attempt: Attempt) -> Finding | None:
    sums = chunks_of(attempt.case, torch.stack(list(attempt.inputs)).sum(dim=0))
    for rank, output in finished(attempt):
        for chunk, values in enumerate(sums):
            if chunk != rank and len(values) and equal(values, output["returned"]):
                return Finding(
                    f"rank {rank}",
                    "ends with the sum of another rank's chunk: rank r should end with chunk r",
                    f"it holds chunk {chunk}",
                )
    return None


def nothing_added(attempt: Attempt) -> Finding | None:
    """Chunk r reaches rank r in the last step, so stopping early leaves it as it was.

    So does starting with one's own chunk: then the sum of chunk r + 1 ends on rank r.
    """
    for rank, output in finished(attempt):
        own = chunks_of(attempt.case, attempt.inputs[rank])[rank]
        if len(own) and equal(own, output["returned"]):
            said = "the sum arrives in the last of N - 1 steps"
            if attempt.run and _took_all_steps(attempt.run, rank):
                said = "chunk r has to come to rank r last, so rank r never sends it"
            return Finding(f"rank {rank}", f"returned its own part, not the sum: {said}")
    return None


def _took_all_steps(run: Run, rank: int) -> bool:
    sends = [call for call in run.calls if call.rank == rank and call.op == "send"]
    return len(sends) == run.world_size - 1


def adds_what_arrives(attempt: Attempt) -> Finding | None:
    """In all-gather. The left neighbour's own chunk arrives first, and as that rank had it."""
    for rank, output in finished(attempt):
        left = (rank - 1) % attempt.case.world_size
        wanted, before, got = (
            chunks_of(attempt.case, tensor)[left]
            for tensor in (attempt.expected[rank]["tensor"], attempt.inputs[rank], output["tensor"])
        )
        if left != rank and len(wanted) and equal(wanted + before, got):
            return Finding(
                f"rank {rank}",
                "adds what arrives to what was there: in all-gather it takes its place",
                f"chunk {left}",
            )
    return None


def missing_chunks(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        wanted = chunks_of(attempt.case, attempt.expected[rank]["tensor"])
        before = chunks_of(attempt.case, attempt.inputs[rank])
        got = chunks_of(attempt.case, output["tensor"])
        never = [
            chunk
            for chunk, values in enumerate(got)
            if not equal(wanted[chunk], values) and equal(before[chunk], values)
        ]
        if never:
            return Finding(
                f"rank {rank}",
                "has chunks that never arrived: all-gather over N ranks takes N - 1 steps",
                f"chunk {never[0]} is as it was",
            )
    return None


def sum_or_mean(attempt: Attempt) -> Finding | None:
    world_size = attempt.case.world_size
    for rank, output in finished(attempt):
        wanted, got = attempt.expected[rank]["tensor"], output["tensor"]
        if attempt.case.params["op"] == "mean" and equal(wanted * world_size, got):
            return Finding(f"rank {rank}", "returned the sum, not the mean: divide by world_size")
        if attempt.case.params["op"] == "sum" and equal((wanted / world_size).to(got.dtype), got):
            return Finding(
                f"rank {rank}", "returned the mean, not the sum: divide for op='mean' only"
            )
    return None
