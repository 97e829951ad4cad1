"""Load a checkpoint on a different number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Finding,
    OnRanks,
    Plain,
    from_outputs,
)
from autograder.exercise.signs import over_budget, raises
from autograder.exercises.lab10_save_resume import shared
from autograder.exercises.lab10_save_resume.shared import INDEX, shard_name

OPENED = "files opened"
LABEL = "opens only files that contain a part of its slices"
FEW_FILES = Budget(LABEL, from_outputs("opened"), heading=OPENED, unit="")


def loading_case(saved_on: int, ranks: int, suffix: str = "", **state: list[Any]) -> Case:
    """``state``: {name: [dtype, *shape]}"""
    params = {"saved on": saved_on, "state": state, "few files": bool(suffix)}
    return Case(f"{saved_on} ranks' checkpoint on {ranks}{suffix}", ranks, params)


def draw_saved(case: Case, rng: np.random.Generator) -> Plain:
    """The same files for every rank, as on a shared disk."""
    shards = shared.cut(shared.draw_state(case, rng), case.params["saved on"])
    return {"shards": shards, "shapes": shared.shapes_of(case)}


def drive(subject: Any, given: Any, case: Case) -> Plain:
    shards = given["shards"]
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for rank, slices in enumerate(shards):
            torch.save(slices, folder / shard_name(rank, len(shards)))
        index = {"world_size": len(shards), "shapes": given["shapes"]}
        (folder / INDEX).write_text(json.dumps(index))
        with patch.object(torch, "load", wraps=torch.load) as load:
            slices = subject(folder)
        return {"slices": slices, "opened": len({str(args[0]) for args, _ in load.call_args_list})}


def looks_for_other_names(attempt: Attempt) -> Finding | None:
    return raises(
        rf"No such file.*_of_{attempt.case.world_size}\.pt",
        "looks for files named after the current number of ranks: index.json has the number of "
        "ranks that saved them",
    )(attempt)


opens_too_many = over_budget(
    OPENED,
    "opens files that contain no part of its slices: if each of N ranks reads the whole "
    "checkpoint, it is read N times",
    "files",
)

EXERCISE = OnRanks(
    points=4,
    cases=(
        loading_case(4, 2, weight=["float32", 5, 5], bias=["bfloat16", 5]),
        loading_case(3, 4, weight=["float32", 8, 2], bias=["float32", 16]),
        loading_case(12, 4, ", few files", weight=["float32", 120, 2]),
    ),
    inputs=draw_saved,
    drive=drive,
    tolerance=0.0,
    budgets=(FEW_FILES,),
    signs=(looks_for_other_names, NAMED_MISTAKES, opens_too_many),
)
