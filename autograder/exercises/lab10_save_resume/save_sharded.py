"""Lab 10, save_sharded: each rank writes its slices into a file of its own, rank 0 an index."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercises.checkpoint_shards import (
    DTYPES,
    INDEX,
    cut,
    draw_state,
    shapes_of,
    shard_name,
)
from autograder.exercises.outputs import finished, from_outputs

SHOWN = 16  # elements of a slice that go back to the checker as they are
ZIP_BYTES = 8192  # that torch.save adds, at most, for names and alignment
INDEX_BYTES = 4096
A_BARRIERS_BYTES = 4096
WRITTEN = "written by a rank"


def draw_slices(case: Case, rng: np.random.Generator) -> list[Plain]:
    slices = cut(draw_state(case, rng), case.world_size)
    return [{"slices": own, "shapes": shapes_of(case)} for own in slices]


def drive_save(subject: Any, given: Any, case: Case) -> Plain:
    """Each rank has a disk of its own here: what lies on it at the end, only this rank wrote."""
    slices = {}
    for name, own in given["slices"].items():
        whole = own.new_zeros(case.world_size * len(own))  # a slice is a view, as ZeRO has it
        whole[: len(own)] = own
        slices[name] = whole[: len(own)]
    folder = Path(tempfile.mkdtemp())
    try:
        subject(folder, slices, given["shapes"])
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {
            "names": [str(path.relative_to(folder)) for path in paths],
            "files": {path.name: content(path) for path in paths},
            "bytes": sum(path.stat().st_size for path in paths),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def content(path: Path) -> Plain:
    try:
        if path.suffix == ".json":
            return json.loads(path.read_text())
        return outline(torch.load(path, weights_only=True))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def outline(value: Any) -> Plain:
    """Of a long tensor its beginning and a sum, in which each place counts otherwise."""
    if isinstance(value, dict):
        return {str(name): outline(each) for name, each in value.items()}
    if not isinstance(value, Tensor) or value.dim() != 1:
        return value if isinstance(value, Tensor) else str(type(value).__name__)
    places = torch.arange(1, len(value) + 1, dtype=torch.float64)
    total = float((value.double() * places.sin()).sum()) if value.dtype.is_floating_point else 0.0
    return {"elements": len(value), "begins": value[:SHOWN].clone(), "sum": total}


def expect_save(case: Case, inputs: Any) -> list[Plain]:
    outputs = []
    for rank, given in enumerate(inputs):
        files = {shard_name(rank, case.world_size): outline(given["slices"])}
        if rank == 0:
            files[INDEX] = {"world_size": case.world_size, "shapes": given["shapes"]}
        outputs.append({"files": files, "names": sorted(files)})
    return outputs


def slice_bytes(case: Case) -> int:
    return sum(
        DTYPES[dtype].itemsize * -(-math.prod(shape) // case.world_size)
        for dtype, *shape in case.params["state"].values()
    )


def written_limit(case: Case) -> list[float]:
    files: list[float] = [slice_bytes(case) + ZIP_BYTES] * case.world_size
    files[0] += INDEX_BYTES
    return files


# ---- mistakes by their names --------------------------------------------------------------------


def one_name_twice(attempt: Attempt) -> Finding | None:
    seen: dict[str, int] = {}
    for rank, output in finished(attempt):
        for name in output["names"]:
            if name in seen and name == INDEX:
                return Finding(
                    f"rank {rank}",
                    f"writes {INDEX} as well: on one disk N ranks write one file at the same time",
                    anyone="a rank other than 0",
                )
            if name in seen:
                return Finding(
                    f"rank {rank}",
                    f"writes the same name as rank {seen[name]}: on one disk the last one wins, "
                    "and the others' slices are lost",
                    name,
                )
            seen[name] = rank
    return None


def one_saves_for_all(attempt: Attempt) -> Finding | None:
    without = [rank for rank, output in finished(attempt) if not output["names"]]
    if len(without) == attempt.case.world_size - 1 > 0:
        return Finding(
            f"rank {without[0]}",
            "writes nothing and leaves it to one rank: each writes its own file, and nothing is "
            "gathered",
        )
    return None


def wrong_name(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        wanted = shard_name(rank, attempt.case.world_size)
        if wanted not in output["names"]:
            names = ", ".join(output["names"]) or "no file"
            return Finding(f"rank {rank}", "does not write shard_name(rank, world_size)", names)
    return None


def no_index(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        wanted = attempt.expected[rank]["files"].get(INDEX)
        if wanted is None:
            continue
        got = output["files"].get(INDEX)
        if got is None:
            return Finding(f"rank {rank}", f"writes no {INDEX}", anyone="rank 0")
        if not isinstance(got, dict) or got.get("world_size") != wanted["world_size"]:
            return Finding(
                f"rank {rank}",
                f"does not note world_size in {INDEX}: who loads may be another number of ranks",
                anyone="rank 0",
            )
        if got != wanted:
            return Finding(
                f"rank {rank}",
                f"does not note the shapes as they were given in {INDEX}: without them nobody "
                "knows what is padding",
                anyone="rank 0",
            )
    return None


def writes_whole_storage(attempt: Attempt) -> Finding | None:
    for spent in attempt.spent:
        for rank in spent.ranks_over:
            if spent.heading == WRITTEN and spent.used[rank] > 1.5 * slice_bytes(attempt.case):
                return Finding(
                    f"rank {rank}",
                    "writes more than its slices: a slice is a view, and torch.save writes all of "
                    "a view's storage; clone() it first",
                    f"{spent.used[rank]:,} bytes, {spent.limit[rank]:,} are enough",
                )
    return None


SAVE_SHARDED = Exercise(
    name="save_resume.save_sharded",
    points=3,
    cases=(
        Case(
            "4 ranks, two tensors",
            4,
            {"state": {"weight": ["float32", 5, 6], "bias": ["float32", 5]}},
        ),
        Case(
            "2 ranks, 1 MB",
            2,
            {"state": {"weight": ["bfloat16", 250, 400], "momentum": ["float32", 200000]}},
        ),
        Case(
            "3 ranks, three dtypes",
            3,
            {"state": {"a": ["float64", 7], "b": ["bfloat16", 3, 4, 2], "c": ["float32", 8]}},
            hidden=True,
        ),
    ),
    draw=draw_slices,
    drive=drive_save,
    expect=expect_save,
    budgets=(
        Budget(
            "sends ≤ 4 KiB per rank",
            limit=lambda case: [A_BARRIERS_BYTES] * case.world_size,
            used=lambda run: run.traffic.sent_by_rank.tolist(),
        ),
        Budget(
            "writes its slices' bytes and ≤ 8 KiB more",
            limit=written_limit,
            used=from_outputs("bytes"),
            heading=WRITTEN,
        ),
    ),
    diagnoses=(one_saves_for_all, one_name_twice, wrong_name, no_index, writes_whole_storage),
)
