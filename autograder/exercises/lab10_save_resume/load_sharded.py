"""Lab 10, load_sharded: a checkpoint that some ranks wrote, cut anew for another number of them."""

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
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import by_case, kept_back
from autograder.exercises.checkpoint_shards import INDEX, cut, draw_state, shapes_of, shard_name
from autograder.exercises.outputs import finished, from_outputs
from shardlab.errors import RankError

OPENED = "files opened"


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


# ---- mistakes by their names --------------------------------------------------------------------


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
