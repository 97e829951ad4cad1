"""Records the steps of `find_the_bottleneck` from real ranks, each on a node of its own.

python -m autograder.exercises.lab16_where_the_time_goes.hidden.record_bottlenecks [NAME ...]

A device that computes, and a loader that reads, are sleeps: on two cores, ranks that really compute
would wait for each other's cores.  Calls are real, over links of LINK_BITS_PER_S.  A step is
recorded again if, because this machine was busy, its cause does not stand out or its repair saves
less than half of that (`clearest`).  Record a new step before an exercise asks for it.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from autograder.exercises.lab16_where_the_time_goes.hidden.exposed_communication import right
from autograder.exercises.lab16_where_the_time_goes.hidden.find_the_bottleneck import (
    HIDDEN,
    Answer,
    lost_s,
)
from shardlab import launch, measure
from shardlab.recorded_runs.bottlenecks import (
    CAUSES,
    COMPUTE,
    LOADER,
    RECORDED,
    Recorded,
    dump,
    intervals,
    load,
)
from shardlab.run import Run
from shardlab.run.matching import match_calls

STRAGGLER, SLOW_LOADER, SMALL, SYNC, NO_OVERLAP = CAUSES
LINK_BITS_PER_S = 1e9
STEPS = 3  # the last one is recorded
STEP = "step"
NUMBERS = ("cause", "place", "step_s", "repaired_s", "summary")
BUCKET_BYTES = 2**18
TRIES = 8
CLEAR = 1.8  # how often the next largest loss fits into the cause's
DIGITS = 5  # of seconds


@dataclass(frozen=True)
class Recipe:
    """A training step; ranks are numbered up to ``world_size``."""

    cause: str
    world_size: int = 3
    micro_batches: int = 3
    layers: int = 4
    compute_s: float = 0.004  # of a layer's backward; forward takes half of it
    uneven_s: float = 0.0  # more in each micro-batch, on one rank after the other
    slow: Sequence[float] = ()  # factor of each rank's computation
    loader_s: Sequence[float] = ()  # of a micro-batch, by rank
    buckets: int = 1  # of a layer's gradients
    layer_bytes: int = BUCKET_BYTES
    overlaps: bool = True
    logs: str = ""  # "loss" or "barrier": after each micro-batch's forward
    metrics: int = 0  # collectives at the end of the step
    ends_with_barrier: bool = False


def train(recipe: Recipe) -> None:
    size = recipe.layer_bytes // 4 // recipe.buckets
    gradients = [[torch.zeros(size) for _ in range(recipe.buckets)] for _ in range(recipe.layers)]
    for _ in range(STEPS):
        dist.barrier()
        with measure(STEP):
            step(recipe, gradients)


def step(recipe: Recipe, gradients: list[list[torch.Tensor]]) -> None:
    rank, last = dist.get_rank(), recipe.micro_batches - 1
    factor = recipe.slow[rank] if recipe.slow else 1.0

    def compute(seconds: float) -> None:
        with measure(COMPUTE):
            time.sleep(seconds * factor)

    in_flight: list[Any] = []
    for micro_batch in range(recipe.micro_batches):
        if recipe.loader_s:
            with measure(LOADER):
                time.sleep(recipe.loader_s[rank])
        late = micro_batch % recipe.world_size == rank
        compute(recipe.layers * recipe.compute_s / 2 + late * recipe.uneven_s)
        if recipe.logs == "loss":
            dist.all_reduce(torch.zeros(1))
        elif recipe.logs:
            dist.barrier()
        for layer in gradients:
            compute(recipe.compute_s)
            if micro_batch == last and recipe.overlaps:
                for bucket in layer:
                    in_flight.append(dist.all_reduce(bucket, async_op=True))
    for work in in_flight:
        work.wait()
    if not recipe.overlaps:
        for layer in gradients:
            for bucket in layer:
                dist.all_reduce(bucket)
    compute(recipe.compute_s)
    for _ in range(recipe.metrics):
        dist.all_reduce(torch.zeros(8))
    if recipe.ends_with_barrier:
        dist.barrier()


def repaired(recipe: Recipe) -> Recipe:
    without: dict[str, dict[str, Any]] = {
        STRAGGLER: {"slow": ()},
        SLOW_LOADER: {"loader_s": ()},
        SMALL: {"buckets": 1},
        SYNC: {"logs": ""},
        NO_OVERLAP: {"overlaps": True},
    }
    return replace(recipe, **without[recipe.cause])


def run_of(recipe: Recipe) -> Run:
    return launch(
        train, recipe, world_size=recipe.world_size, device="cpu", quiet=True,
        nodes=recipe.world_size, link_bits_per_s=LINK_BITS_PER_S,
    )  # fmt: skip


def last_step(run: Run) -> list[tuple[float, float]]:
    """Of each rank."""
    found = {block.rank: (block.start_s, block.end_s) for block in run.traffic[STEP].blocks}
    return [found[rank] for rank in range(run.world_size)]


def step_s(run: Run) -> float:
    of_ranks = last_step(run)
    return round(max(end for _, end in of_ranks) - min(start for start, _ in of_ranks), DIGITS)


def recorded_of(run: Run, lines: random.Random) -> Recorded:
    """Lines are renumbered: those of the recorded code would be the same in all steps."""
    of_ranks = last_step(run)
    zero_s = min(start for start, _ in of_ranks)

    def interval(start_s: float, end_s: float | None) -> list[float]:
        return [round((at or 0.0) - zero_s, DIGITS) for at in (start_s, end_s)]

    def blocks(label: str) -> list[list[Any]]:
        return [
            [
                interval(block.start_s, block.end_s)
                for block in (run.traffic[label].blocks if label in run.traffic else ())
                if block.rank == rank and start <= block.start_s <= end
            ]
            for rank, (start, end) in enumerate(of_ranks)
        ]

    in_step = [
        call
        for call in run.calls
        if of_ranks[call.rank][0] <= call.start_s <= of_ranks[call.rank][1]
    ]
    groups = sorted(match_calls(in_step), key=lambda group: group.calls[0].seq)
    sources = sorted({group.calls[0].source for group in groups}, key=_line)
    numbers = sorted(lines.sample(range(20, 90), len(sources)))
    name_of = dict(zip(sources, (f"train.py, line {each}" for each in numbers), strict=True))
    calls = []
    for group in groups:
        first, *_ = by_rank = sorted(group.calls, key=lambda call: call.rank)
        size = 0 if first.op == "barrier" else first.bytes
        times = [interval(call.start_s, call.end_s) for call in by_rank]
        calls.append([name_of[first.source], first.op, size, times])
    found = {COMPUTE: blocks(COMPUTE), LOADER: blocks(LOADER), "calls": calls}
    return {"step_s": step_s(run), "summary": summary_of(found), **found}


def _line(source: str) -> int:
    return int(source.rpartition(" ")[2])


def summary_of(found: Recorded) -> dict[str, Any]:
    def lengths_s(label: str) -> list[float]:
        return [round(sum(end - start for start, end in own), DIGITS) for own in found[label]]

    def seconds(calls: list[Any], key: str) -> list[float]:
        by_rank = right(*intervals(found | {"calls": calls}))
        return [max(0.0, round(each[key], DIGITS)) for each in by_rank]

    def of_line(line: str) -> dict[str, Any]:
        calls = [each for each in found["calls"] if each[0] == line]
        return {
            "line": line,
            "op": calls[0][1],
            "calls": len(calls),
            "bytes": sum(size for _, _, size, _ in calls),
            "exposed_s": seconds(calls, "exposed_s"),
            "waiting_s": seconds(calls, "waiting_s"),
        }

    return {
        "compute_s": lengths_s(COMPUTE),
        "loader_s": lengths_s(LOADER),
        "overlapped_s": seconds(found["calls"], "overlapped_s"),
        "lines": [
            of_line(line) for line in sorted({each[0] for each in found["calls"]}, key=_line)
        ],
    }


def record(recipe: Recipe, name: str) -> Recorded:
    """Raises RuntimeError if the cause does not stand out in any of the tries."""
    for attempt in range(TRIES):
        found = recorded_of(run_of(recipe), random.Random(name))
        found["repaired_s"] = step_s(run_of(repaired(recipe)))
        (cause, place), clear = clearest(found)
        times = f"{found['step_s']} s, repaired {found['repaired_s']} s"
        print(f"{name}, try {attempt}: {cause}, {place}, {clear:.1f} times; {times}", flush=True)
        if cause == recipe.cause and clear >= CLEAR and place == place_of(recipe, found):
            found |= {"cause": cause, "place": place}
            return {key: found[key] for key in (*NUMBERS, COMPUTE, LOADER, "calls")}
    raise RuntimeError(f"{name} is not clear: is this machine busy?")


def clearest(found: Recorded) -> tuple[Answer, float]:
    """The answer whose repair saves most, if that shortens the step, and its ratio to the next."""
    by_gain = sorted(lost_s(found["summary"]).items(), key=lambda entry: -entry[1])
    (answer, most_s), (_, next_s), *_ = by_gain
    saved_s = found["step_s"] - found["repaired_s"]
    return answer, most_s / max(next_s, 1e-3) if saved_s > most_s / 2 else 0.0


def place_of(recipe: Recipe, found: Recorded) -> Any:
    """Where the recipe has its cause; a line: that of the calls that the recipe makes there."""
    if recipe.cause == STRAGGLER:
        return recipe.slow.index(max(recipe.slow))
    if recipe.cause == SLOW_LOADER:
        return recipe.loader_s.index(max(recipe.loader_s))
    lines = found["summary"]["lines"]
    if recipe.cause != SYNC:
        return max(lines, key=lambda each: each["bytes"])["line"]
    (line,) = [
        each["line"]
        for each in lines
        if each["calls"] == recipe.micro_batches and each["bytes"] <= 4 * each["calls"]
    ]
    return line


VISIBLE = {
    "A": Recipe(STRAGGLER, slow=(1, 1, 1.6)),
    "B": Recipe(SLOW_LOADER, loader_s=(0.015, 0.02, 0.015)),
    "C": Recipe(SMALL, buckets=24),
    "D": Recipe(SYNC, logs="loss", uneven_s=0.03),
    "E": Recipe(NO_OVERLAP, layers=6, compute_s=0.006, layer_bytes=2**19, overlaps=False),
    # The same signs, another cause
    "F": Recipe(SLOW_LOADER, loader_s=(0.02, 0.002, 0.002), logs="loss", ends_with_barrier=True),
    "G": Recipe(STRAGGLER, slow=(0.5, 1.6, 1), logs="barrier", micro_batches=4),
    "H": Recipe(
        NO_OVERLAP, layers=8, compute_s=0.007, layer_bytes=2**19, overlaps=False, metrics=12,
        slow=(0.5, 1, 1),
    ),
    "I": Recipe(
        SYNC, world_size=2, logs="barrier", uneven_s=0.025, micro_batches=4,
        loader_s=(0.003, 0.002),
    ),
}  # fmt: skip
OF_CASES = {
    "the five causes, in other steps": {
        STRAGGLER: Recipe(STRAGGLER, slow=(1.7, 1)  , world_size=2),
        SLOW_LOADER: Recipe(SLOW_LOADER, loader_s=(0.014, 0.013, 0.019)),
        SMALL: Recipe(SMALL, world_size=2, layers=6, buckets=30),
        SYNC: Recipe(SYNC, logs="barrier", uneven_s=0.03),
        NO_OVERLAP: Recipe(
            NO_OVERLAP, world_size=2, layers=7, compute_s=0.008, layer_bytes=2**19 + 2**18,
            overlaps=False,
        ),
    },
    "one rank has less to do": {
        STRAGGLER: Recipe(STRAGGLER, slow=(1, 0.3, 1.5)),
        SLOW_LOADER: Recipe(SLOW_LOADER, slow=(1, 0.3, 1), loader_s=(0.012, 0.008, 0.018)),
        SMALL: Recipe(SMALL, slow=(0.3, 1, 1), layer_bytes=2**19, buckets=13),
        SYNC: Recipe(SYNC, slow=(1, 1, 0.6), logs="loss", uneven_s=0.03),
        NO_OVERLAP: Recipe(
            NO_OVERLAP, slow=(0.4, 1, 1), layers=6, compute_s=0.007, layer_bytes=2**19,
            overlaps=False,
        ),
    },
    "collectives in every micro-batch": {
        STRAGGLER: Recipe(STRAGGLER, slow=(1, 1.6, 1), logs="barrier", ends_with_barrier=True),
        SLOW_LOADER: Recipe(SLOW_LOADER, loader_s=(0.002, 0.002, 0.02), logs="loss"),
        SMALL: Recipe(SMALL, buckets=25, logs="barrier", metrics=4),
        SYNC: Recipe(SYNC, logs="loss", uneven_s=0.035, metrics=8, ends_with_barrier=True),
        NO_OVERLAP: Recipe(
            NO_OVERLAP, world_size=2, layers=6, compute_s=0.009, layer_bytes=2**19, buckets=5,
            overlaps=False, logs="loss", metrics=8,
        ),
    },
    "a little of everything": {
        STRAGGLER: Recipe(
            STRAGGLER, slow=(1.05, 1, 1.75), loader_s=(0.004, 0.004, 0.003), uneven_s=0.004
        ),
        SLOW_LOADER: Recipe(
            SLOW_LOADER, slow=(1.15, 1, 1), loader_s=(0.01, 0.01, 0.026), uneven_s=0.004,
            logs="loss", micro_batches=4,
        ),
        SMALL: Recipe(SMALL, buckets=14, loader_s=(0.004, 0.003, 0.003), slow=(1, 1.1, 1)),
        SYNC: Recipe(SYNC, logs="barrier", uneven_s=0.035, loader_s=(0.004, 0.004, 0.003)),
        NO_OVERLAP: Recipe(
            NO_OVERLAP, layers=9, compute_s=0.007, layer_bytes=2**19 + 2**17, overlaps=False,
            loader_s=(0.003, 0.004, 0.003), slow=(1, 1, 1.05), metrics=6, micro_batches=2,
        ),
    },
}  # fmt: skip
HIDDEN_RECIPES = {
    f"{case}: {name}": recipe for case, named in OF_CASES.items() for name, recipe in named.items()
}


def main(names: Sequence[str]) -> None:
    """Records all that are named, and all that are not recorded yet."""
    for recipes, path in ((VISIBLE, RECORDED), (HIDDEN_RECIPES, HIDDEN)):
        known = load(path)
        for name, recipe in recipes.items():
            if name in names or name not in known:
                found = record(recipe, name)
                if path == HIDDEN:  # nobody looks at it: its numbers are enough
                    found = {key: found[key] for key in NUMBERS}
                known[name] = found
                dump({each: known[each] for each in recipes if each in known}, path)


if __name__ == "__main__":
    main(sys.argv[1:])
