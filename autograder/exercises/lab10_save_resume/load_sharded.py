"""Load a checkpoint on a different number of ranks.

In cases with few files, a rank gets only the files that contain a part of its slices.  The others
are names that cannot be opened, so no way of reading them has to be counted.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, OnRanks, Plain
from autograder.exercises.lab10_save_resume import shared
from autograder.exercises.lab10_save_resume.shared import INDEX, shard_name
from shardlab.errors import RankError

OWN_RANK = (
    "opens the file with its own rank: with another number of ranks the slice boundaries are "
    "different"
)
AS_TEXT = (
    "takes the files in the order of their names as text, where shard_10 comes before shard_2: "
    "count from 0 to the old world_size"
)
NOT_NEEDED = "opens a file that contains no part of its slices"
ALL_FILES = f"{NOT_NEEDED}: if each of N ranks reads the whole checkpoint, it is read N times"
ONE_TOO_FAR = f"{NOT_NEEDED}: it comes right after the last one that does"
ONE_TOO_EARLY = f"{NOT_NEEDED}: it comes right before the first one that does"
PAST_THE_END = (
    "looks for a file after the last one: the last rank's stop can lie beyond the tensor's end, so "
    "limit it to the number of elements"
)
OTHER_NAMES = (
    "looks for files named after the current number of ranks: index.json has the number of ranks "
    "that saved them"
)
NOWHERE = "not_on_this_rank"  # what the links to the other files point to


def loading_case(saved_on: int, ranks: int, suffix: str = "", **state: list[Any]) -> Case:
    """``state``: {name: [dtype, *shape]}"""
    params = {"saved on": saved_on, "state": state, "few files": bool(suffix)}
    return Case(f"{saved_on} ranks' checkpoint on {ranks}{suffix}", ranks, params)


def draw_saved(case: Case, rng: np.random.Generator) -> list[Plain]:
    """By rank: the saved slices by the number of their file."""
    shards = shared.cut(shared.draw_state(case, rng), case.params["saved on"])
    return [
        {"shards": {str(n): shards[n] for n in numbers}, "shapes": shared.shapes_of(case)}
        for numbers in case.params["files"]
    ]


def drive(subject: Any, given: Any, case: Case) -> Plain:
    saved_on = case.params["saved on"]
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for number in range(saved_on):
            path = folder / shard_name(number, saved_on)
            if slices := given["shards"].get(str(number)):
                torch.save(slices, path)
            else:
                path.symlink_to(NOWHERE)
        index = {"world_size": saved_on, "shapes": given["shapes"]}
        (folder / INDEX).write_text(json.dumps(index))
        return {"slices": subject(folder)}


def missing_file(attempt: Attempt) -> Finding | None:
    """A rank stopped because it opened ``shard_{number}_of_{ranks}.pt``, which it does not have."""
    error, case = attempt.error, attempt.case
    if not isinstance(error, RankError):
        return None
    name = re.search(r"No such file.*\b(shard_(\d+)_of_(\d+)\.pt)", error.message)
    if name is None:
        return None
    number, ranks, saved_on = int(name[2]), int(name[3]), case.params["saved on"]
    if ranks == saved_on:
        mistake = PAST_THE_END
        if number < saved_on:
            mistake = which_file(number, error.rank, case)
    elif ranks == case.world_size:
        mistake = OTHER_NAMES
    else:
        return None
    return Finding(f"rank {error.rank}", mistake, f"it opens {name[1]}")


def which_file(number: int, rank: int, case: Case) -> str:
    """Why a rank may have opened a file that contains no part of its slices."""
    needed = case.params["files"][rank]
    if number == rank > 0:  # an answer that opens all files would open file 0 first
        return OWN_RANK
    if number in (needed[0] - 1, needed[-1] + 1):
        return ONE_TOO_FAR if number > needed[0] else ONE_TOO_EARLY
    if order_as_text(case.params["saved on"]).index(number) in needed:
        return AS_TEXT
    return NOT_NEEDED if number else ALL_FILES


def order_as_text(saved_on: int) -> list[int]:
    """The files' numbers, sorted by name."""
    return sorted(range(saved_on), key=lambda number: shard_name(number, saved_on))


EXERCISE = OnRanks(
    points=4,
    cases=(
        loading_case(3, 2, weight=["float32", 3, 3], bias=["bfloat16", 7]),
        loading_case(3, 4, weight=["float32", 8, 2], bias=["float32", 16]),
        loading_case(12, 4, ", few files", weight=["float32", 120, 2]),
    ),
    inputs=draw_saved,
    drive=drive,
    tolerance=0.0,
    signs=(missing_file, NAMED_MISTAKES),
)
