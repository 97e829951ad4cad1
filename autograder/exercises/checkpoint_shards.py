"""Lab 10: a file for each rank, and loading them on another number of ranks.

A state is several tensors, each flattened, padded with zeros to a multiple of N, and cut in N equal
slices, of which rank r has the r-th.
"""

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

from autograder.compare import equal
from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercises.zero import finished
from autograder.kept_back import by_case, kept_back
from shardlab.errors import RankError
from shardlab.run import Run

INDEX = "index.json"
SHOWN = 16  # elements of a slice that go back to the checker as they are
ZIP_BYTES = 8192  # that torch.save adds, at most, for names and alignment
INDEX_BYTES = 4096
A_BARRIERS_BYTES = 4096
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def shard_name(rank: int, world_size: int) -> str:
    return f"shard_{rank}_of_{world_size}.pt"


# ---- states -------------------------------------------------------------------------------------


def shapes_of(case: Case) -> dict[str, list[int]]:
    return {name: list(shape) for name, (_, *shape) in case.params["state"].items()}


def draw_state(case: Case, rng: np.random.Generator) -> dict[str, Tensor]:
    """Whole tensors. ``case.params["state"]``: {name: [dtype, *shape]}"""
    return {
        name: torch.from_numpy(rng.standard_normal(shape)).to(DTYPES[dtype])
        for name, (dtype, *shape) in case.params["state"].items()
    }


def cut(state: dict[str, Tensor], world_size: int) -> list[dict[str, Tensor]]:
    """By rank, its slices: copies."""
    return [
        {name: padded(tensor, world_size)[rank].clone() for name, tensor in state.items()}
        for rank in range(world_size)
    ]


def padded(tensor: Tensor, world_size: int) -> Tensor:
    """[world_size, length of a slice]"""
    flat = tensor.flatten()
    return torch.cat([flat, flat.new_zeros(-len(flat) % world_size)]).view(world_size, -1)


def outline(value: Any) -> Plain:
    """Of a long tensor its beginning and a sum, in which each place counts otherwise."""
    if isinstance(value, dict):
        return {str(name): outline(each) for name, each in value.items()}
    if not isinstance(value, Tensor) or value.dim() != 1:
        return value if isinstance(value, Tensor) else str(type(value).__name__)
    places = torch.arange(1, len(value) + 1, dtype=torch.float64)
    total = float((value.double() * places.sin()).sum()) if value.dtype.is_floating_point else 0.0
    return {"elements": len(value), "begins": value[:SHOWN].clone(), "sum": total}


# ---- save_sharded -------------------------------------------------------------------------------


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


def from_outputs(key: str) -> Any:
    """For a budget: a number that each rank returned, 0 where it did not come to its end."""

    def used(run: Run) -> list[int]:
        found = (out.get(key) if isinstance(out, dict) else 0 for out in run.outputs)
        return [number if type(number) is int else 0 for number in found]

    return used


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


WRITTEN = "written by a rank"

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


# ---- load_sharded -------------------------------------------------------------------------------


def draw_saved(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same files for every rank, as a disk that they share would have them."""
    saved = {"shards": cut(draw_state(case, rng), case.params["saved on"])}
    return [{**saved, "shapes": shapes_of(case)}] * case.world_size


def drive_load(subject: Any, given: Any, case: Case) -> Plain:
    """Notes which files torch.load is asked for."""
    folder, opened, load = Path(tempfile.mkdtemp()), set(), torch.load

    def noting(file: Any, *args: Any, **options: Any) -> Any:
        opened.add(str(file))
        return load(file, *args, **options)

    try:
        shards = given["shards"]
        for rank, slices in enumerate(shards):
            torch.save(slices, folder / shard_name(rank, len(shards)))
        index = {"world_size": len(shards), "shapes": given["shapes"]}
        (folder / INDEX).write_text(json.dumps(index))
        torch.load = noting  # type: ignore[assignment]
        slices = subject(folder)
        torch.load = load
        return {"slices": slices, "opened": len(opened)}
    finally:
        torch.load = load
        shutil.rmtree(folder, ignore_errors=True)


def whole_state(given: Any) -> dict[str, Tensor]:
    """[elements] each: padding is gone."""
    return {
        name: torch.cat([shard[name] for shard in given["shards"]])[: math.prod(shape)]
        for name, shape in given["shapes"].items()
    }


def expect_load(case: Case, inputs: Any) -> list[Plain]:
    return [{"slices": slices} for slices in resharded(case, inputs[0], "")]


READINGS = ("", "keeps the old padding", "sorts names as text", "leaves out the new padding")


@kept_back(lambda case, inputs: [(case, inputs[0], reading) for reading in READINGS])
def resharded(case: Case, given: Any, reading: str) -> list[Plain]:
    """By rank; ``reading`` is a slip, or "" for the right way."""
    shards, n = given["shards"], case.world_size
    if reading == "sorts names as text":
        names = {shard_name(rank, len(shards)): shard for rank, shard in enumerate(shards)}
        shards = [names[name] for name in sorted(names)]
    whole = whole_state({**given, "shards": shards})
    if reading == "keeps the old padding":
        whole = {name: torch.cat([each[name] for each in shards]) for name in whole}
    if reading != "leaves out the new padding":
        return list(cut(whole, n))
    return [
        {name: flat[part(len(flat), rank, n)].clone() for name, flat in whole.items()}
        for rank in range(n)
    ]


def part(elements: int, rank: int, world_size: int) -> slice:
    length = -(-elements // world_size)
    return slice(rank * length, min((rank + 1) * length, elements))


@kept_back(by_case)
def needed_files(case: Case) -> list[int]:
    """By rank: how many of the saved files hold an element of its slices."""
    needed: list[set[int]] = [set() for _ in range(case.world_size)]
    for _, *shape in case.params["state"].values():
        elements = math.prod(shape)
        old = -(-elements // case.params["saved on"])
        for rank, files in enumerate(needed):
            own = part(elements, rank, case.world_size)
            files |= {place // old for place in range(own.start, own.stop)}
    return [len(files) for files in needed]


def opened_limit(case: Case) -> list[float] | None:
    return list(needed_files(case)) if case.params.get("few files") else None


def reads_as_if(attempt: Attempt) -> Finding | None:
    """Names a slip that every rank's slices show."""
    outputs = [output["slices"] for _, output in finished(attempt)]
    expected = [output["slices"] for output in attempt.expected]
    if not outputs or equal(expected, outputs):
        return None
    for reading in READINGS[1:]:
        wrong = resharded(attempt.case, attempt.inputs[0], reading)
        if equal(wrong, outputs) and not equal(expected, wrong):
            return Finding("every rank", MISREADS[reading], anyone="every rank")
    return None


MISREADS = {
    "keeps the old padding": "takes the old padding for elements: cut each tensor to its shape's "
    "length before it is padded for the new number of ranks",
    "sorts names as text": "puts the files together in the order of their names as text, in which "
    "shard_10 comes before shard_2: count from 0 to the old world_size",
    "leaves out the new padding": "returns slices of different lengths: pad for the new number of "
    "ranks",
}


def takes_its_old_shard(attempt: Attempt) -> Finding | None:
    """The file with its own number, as if the number of ranks were the old one."""
    shards = attempt.inputs[0]["shards"]
    for rank, output in finished(attempt):
        right = equal(attempt.expected[rank]["slices"], output["slices"])
        if not right and rank < len(shards) and equal(shards[rank], output["slices"]):
            return Finding(
                f"rank {rank}",
                "takes the slices of the file with its own number: on another number of ranks "
                "they are cut elsewhere",
            )
    return None


def looks_for_other_names(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, RankError) or error.kind != "FileNotFoundError":
        return None
    if f"_of_{attempt.case.world_size}.pt" in error.message:
        return Finding(
            f"rank {error.rank}",
            "looks for files named after the present number of ranks: index.json has the one "
            "that saved them",
        )
    return None


def wrong_dtype(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        for name, wanted in attempt.expected[rank]["slices"].items():
            got = output["slices"].get(name) if isinstance(output["slices"], dict) else None
            if isinstance(got, Tensor) and got.dtype != wanted.dtype:
                return Finding(
                    f"rank {rank}",
                    "changes the dtype: a buffer of torch.zeros is fp32, whatever is put into it",
                    f"{got.dtype}, saved as {wanted.dtype}",
                )
    return None


def opens_too_many(attempt: Attempt) -> Finding | None:
    for spent in attempt.spent:
        for rank in spent.ranks_over:
            if spent.heading == OPENED:
                return Finding(
                    f"rank {rank}",
                    "opens files that hold nothing of its slices: N ranks that each read all of a "
                    "checkpoint read it N times",
                    f"{spent.used[rank]} files, {spent.limit[rank]} are enough",
                )
    return None


OPENED = "files opened"

LOAD_SHARDED = Exercise(
    name="save_resume.load_sharded",
    points=4,
    cases=(
        Case(
            "4 ranks' checkpoint on 2",
            2,
            {"saved on": 4, "state": {"weight": ["float32", 5, 5], "bias": ["bfloat16", 5]}},
        ),
        Case(
            "3 ranks' checkpoint on 4",
            4,
            {"saved on": 3, "state": {"weight": ["float32", 8, 2], "bias": ["float32", 16]}},
        ),
        Case(
            "12 ranks' checkpoint on 4, few files",
            4,
            {"saved on": 12, "state": {"weight": ["float32", 120, 2]}, "few files": True},
        ),
        Case(
            "11 ranks' checkpoint on 3",
            3,
            {"saved on": 11, "state": {"a": ["float64", 45], "b": ["bfloat16", 8, 7]}},
            hidden=True,
        ),
        Case(
            "3 ranks' checkpoint on 1",
            1,
            {"saved on": 3, "state": {"a": ["float32", 4, 5], "b": ["bfloat16", 7]}},
            hidden=True,
        ),
        Case(
            "13 ranks' checkpoint on 2, few files",
            2,
            {
                "saved on": 13,
                "state": {"a": ["float32", 131], "b": ["float32", 262]},
                "few files": True,
            },
            hidden=True,
        ),
    ),
    draw=draw_saved,
    drive=drive_load,
    expect=expect_load,
    tolerance=0.0,
    budgets=(
        Budget(
            "opens the files that hold something of its slices, and no other",
            limit=opened_limit,
            used=from_outputs("opened"),
            heading=OPENED,
            unit="",
        ),
    ),
    diagnoses=(
        looks_for_other_names,
        wrong_dtype,
        takes_its_old_shard,
        reads_as_if,
        opens_too_many,
    ),
)
