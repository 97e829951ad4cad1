"""Load a checkpoint on a different number of ranks.

In cases with few files, a rank gets only the files that contain part of its slices.  The others
are names that cannot be opened, so there are no reads to count.

Then each rank loads a second, smaller checkpoint from another folder, with the same file names.
"""

from __future__ import annotations

import json
import math
import re
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, OnRanks, Plain, equal
from autograder.exercise.compare import difference, with_key
from autograder.exercise.signs import MistakeText, on_each_rank
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
    """By rank: the saved slices, by file number."""
    shards = shared.cut(shared.draw_state(case, rng), case.params["saved on"])
    return [
        {"shards": {str(n): shards[n] for n in numbers}, "shapes": shared.shapes_of(case)}
        for numbers in case.params["files"]
    ]


def drive(subject: Any, given: Any, case: Case) -> Plain:
    saved_on = case.params["saved on"]
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, folder_2 = Path(name, "first"), Path(name, "second")
        save(folder, given["shards"], given["shapes"], saved_on)
        save(folder_2, *second_checkpoint(case), saved_on)
        try:
            loaded = subject(folder)
            return {"opens": NEEDED_FILES, "slices": loaded, "second load": subject(folder_2)}
        except FileNotFoundError as error:
            shard = re.search(r"shard_\d+_of_\d+\.pt", str(error))
            if shard is None:
                raise
            why = NOT_NEEDED if (folder / shard[0]).is_symlink() else MISSING
            return {"opens": f"{shard[0]}, {why}", "line": innermost_line(error)}


def save(
    folder: Path, shards: dict[str, dict[str, Tensor]], shapes: dict[str, list[int]], saved_on: int
) -> None:
    """Save the files; the order of tensors in them differs from that in the index."""
    folder.mkdir()
    for number in range(saved_on):
        path = folder / shard_name(number, saved_on)
        if slices := shards.get(str(number)):
            torch.save(dict(reversed(slices.items())), path)
        else:
            path.symlink_to(NOWHERE)
    (folder / INDEX).write_text(json.dumps({"world_size": saved_on, "shapes": shapes}))


def second_state(case: Case) -> dict[str, Tensor]:
    """A state whose lengths both numbers of ranks divide."""
    names, shape = case.params["state"], (case.params["saved on"], case.world_size)
    return {name: torch.arange(math.prod(shape)).float().view(shape) for name in names}


def second_checkpoint(case: Case) -> tuple[dict[str, dict[str, Tensor]], dict[str, list[int]]]:
    """All slices, by file number, and the shapes."""
    state = second_state(case)
    shards = shared.cut(state, case.params["saved on"])
    shapes = {name: list(each.shape) for name, each in state.items()}
    return {str(number): shard for number, shard in enumerate(shards)}, shapes


def innermost_line(error: Exception) -> str:
    """The innermost line of the answer: "cell 5, line 3: its text"."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if source.is_user_code(each.filename)]
    return ": ".join(filter(None, source.locate(own[-1].filename, own[-1].lineno or 0)))


def opens_another_file(attempt: Attempt) -> Finding | None:
    """A sign that also holds if other ranks wait for this one."""
    for rank, output in enumerate(attempt.outputs):
        if isinstance(output, dict) and output["opens"] != NEEDED_FILES:
            name, _, why = output["opens"].partition(", ")
            mistake = f"opens a file {why.replace('which', 'that')}"
            return Finding(f"rank {rank}", mistake, f"{name}; {output['line']}")
    return None


@on_each_rank
def wrong_second_load(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    expected = attempt.expected[rank]
    if not equal(expected["slices"], output.get("slices"), 0.0):
        return None
    if found := difference(expected["second load"], output.get("second load"), 0.0):
        mistake = "loads the first checkpoint correctly, but not a second one from another folder"
        return f"{mistake}: does it keep anything from the first?", with_key(*found)
    return None


EXERCISE = OnRanks(
    points=4,
    cases=(
        loading_case(3, 1, weight=["float32", 3, 3], bias=["bfloat16", 7]),
        loading_case(3, 4, weight=["float32", 8, 2], bias=["float32", 16]),
        loading_case(12, 4, ", few files", weight=["float32", 8, 3], bias=["float32", 16]),
    ),
    inputs=draw_saved,
    drive=drive,
    tolerance=0.0,
    signs=(NAMED_MISTAKES, opens_another_file, wrong_second_load),
)
