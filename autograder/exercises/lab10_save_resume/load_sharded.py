"""Load a checkpoint on a different number of ranks.

In cases with few files, a rank gets only the files that contain a part of its slices.  The others
are names that cannot be opened, so no way of reading them has to be counted.
"""

from __future__ import annotations

import json
import re
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, OnRanks, Plain
from autograder.exercises.lab10_save_resume import shared
from autograder.exercises.lab10_save_resume.shared import INDEX, shard_name
from shardlab import source

NOWHERE = "not_on_this_rank"  # what the links to the other files point to
NEEDED_FILES = "only files with a part of its slices"
MISSING, NOT_NEEDED = "which does not exist", "which has no part of its slices"


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
        try:
            return {"opens": NEEDED_FILES, "slices": subject(folder)}
        except FileNotFoundError as error:
            shard = re.search(r"shard_\d+_of_\d+\.pt", str(error))
            if shard is None:
                raise
            why = NOT_NEEDED if (folder / shard[0]).is_symlink() else MISSING
            return {"opens": f"{shard[0]}, {why}", "line": innermost_line(error)}


def innermost_line(error: Exception) -> str:
    """Of the answer: "cell 5, line 3: its text"."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if source.is_user_code(each.filename)]
    return ": ".join(filter(None, source.locate(own[-1].filename, own[-1].lineno or 0)))


def opens_another_file(attempt: Attempt) -> Finding | None:
    """Also if other ranks wait for this one."""
    for rank, output in enumerate(attempt.outputs):
        if isinstance(output, dict) and output["opens"] != NEEDED_FILES:
            name, _, why = output["opens"].partition(", ")
            mistake = f"opens a file {why.replace('which', 'that')}"
            return Finding(f"rank {rank}", mistake, f"{name}; {output['line']}")
    return None


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
    signs=(NAMED_MISTAKES, opens_another_file),
)
