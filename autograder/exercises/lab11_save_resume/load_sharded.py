"""Load a checkpoint on a different number of ranks.

In cases with few files, a rank gets only the files that contain part of its slices.  The others
contain no tensors and cannot be opened.

Then each rank loads a second, smaller checkpoint from the same folder, with the same file names.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import os
import re
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, OnRanks, Plain, equal
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab11_save_resume import shared
from autograder.exercises.lab11_save_resume.rank_errors import with_cell
from autograder.exercises.lab11_save_resume.shared import INDEX, shard_name
from shardlab.display import source

NO_TENSORS = "not on this rank"  # what the other files contain
NEEDED_FILES = "only files with a part of its slices"
MISSING, NOT_NEEDED = "which does not exist", "which has no part of its slices"
SECOND = "a second checkpoint, in files with the same names"


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
        folder = Path(name, "checkpoint")
        save(folder, given["shards"], given["shapes"], saved_on)
        refused: list[Plain] = []
        try:
            with opens_observed(folder, refused), nan_in_empty_tensors():
                loaded = subject(folder)
            views = changed_with_the_files(loaded, folder)
            if not refused:
                shutil.rmtree(folder)  # its files may still be mapped, so they are not cut off
                save(folder, *second_checkpoint(case), saved_on)
                second = subject(folder)
        except FileNotFoundError as error:
            shard = re.search(r"shard_\d+_of_\d+\.pt", str(error))
            if shard is None:
                raise
            line = innermost_line(traceback.extract_tb(error.__traceback__))
            return {"opens": f"{shard[0]}, {MISSING}", "line": line}
        except PermissionError:
            if not refused:
                raise
        if refused:
            return refused[0]
        return {"opens": NEEDED_FILES, "slices": loaded, SECOND: second, "views": views}


def save(
    folder: Path, shards: dict[str, dict[str, Tensor]], shapes: dict[str, list[int]], saved_on: int
) -> None:
    """Save the files; the order of tensors in them differs from that in the index.

    An earlier checkpoint with another number of ranks has left two files in the folder.
    """
    folder.mkdir()
    for number in range(saved_on):
        path = folder / shard_name(number, saved_on)
        if slices := shards.get(str(number)):
            torch.save(dict(reversed(slices.items())), path)
        else:
            path.write_text(NO_TENSORS)
    for number in range(2):
        (folder / shard_name(number, saved_on + 2)).write_text(NO_TENSORS)
    (folder / INDEX).write_text(json.dumps({"world_size": saved_on, "shapes": shapes}))


def changed_with_the_files(loaded: Any, folder: Path) -> list[str]:
    """Names of loaded tensors that another content of the files changes; they get it back."""
    items = loaded.items() if isinstance(loaded, dict) else ()
    tensors = {name: each for name, each in items if isinstance(each, Tensor)}
    before = {name: each.nan_to_num() for name, each in tensors.items()}
    saved = {path: path.read_bytes() for path in folder.iterdir()}
    for path, content in saved.items():
        with path.open("r+b") as file:  # not cut off first: a mapped part must not vanish
            file.write(bytes(len(content)))
    changed = [n for n, each in before.items() if not torch.equal(each, tensors[n].nan_to_num())]
    for path, content in saved.items():
        with path.open("r+b") as file:
            file.write(content)
    return changed


@contextlib.contextmanager
def opens_observed(folder: Path, refused: list[Plain]) -> Iterator[None]:
    """Refuses to open files of no use."""
    python_open, marker = builtins.open, NO_TENSORS.encode()
    useless = [path for path in folder.iterdir() if path.read_bytes() == marker]

    def observed(file: Any, *args: Any, **kwargs: Any) -> Any:
        path = Path(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) else None
        if path in useless:
            line = innermost_line(traceback.extract_stack())
            refused.append({"opens": f"{path.name}, {NOT_NEEDED}", "line": line})
            raise PermissionError(errno.EACCES, "this rank cannot open", path.name)
        return python_open(file, *args, **kwargs)

    with mock.patch.object(builtins, "open", observed), mock.patch.object(io, "open", observed):
        yield


@contextlib.contextmanager
def nan_in_empty_tensors() -> Iterator[None]:
    """torch.empty fills floating-point tensors with NaN, so that results do not vary."""
    was_on = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_on, warn_only=warns)


def second_state(case: Case) -> dict[str, Tensor]:
    """A state whose lengths both numbers of ranks divide."""
    elements = case.params["saved on"] * case.world_size
    return {name: torch.arange(elements).float() for name in case.params["state"]}


def second_checkpoint(case: Case) -> tuple[dict[str, dict[str, Tensor]], dict[str, list[int]]]:
    """All slices, by file number, and the shapes."""
    state = second_state(case)
    shards = shared.cut(state, case.params["saved on"])
    shapes = {name: list(each.shape) for name, each in state.items()}
    return {str(number): shard for number, shard in enumerate(shards)}, shapes


def innermost_line(frames: traceback.StackSummary) -> str:
    """The innermost line of the answer, which `with_cell` describes in the student's kernel."""
    own = [each for each in frames if source.is_user_code(each.filename)]
    return f"  [{own[-1].filename}, line {own[-1].lineno}]"


def opens_another_file(attempt: Attempt) -> Finding | None:
    """A sign that also holds if other ranks wait for this one."""
    for rank, output in enumerate(attempt.outputs):
        if isinstance(output, dict) and output["opens"] != NEEDED_FILES:
            name, _, why = output["opens"].partition(", ")
            mistake = f"opens a file {why.replace('which', 'that')}"
            of = int(name.removesuffix(".pt").rpartition("_")[2])
            if of != attempt.case.params["saved on"]:
                where = "the current number" if of == attempt.case.world_size else "another number"
                mistake = f"opens a file of {where} of ranks: index.json has the number that saved"
            evidence = with_cell(f"{name}{output['line']}", attempt.trust)
            return Finding(f"rank {rank}", mistake, evidence)
    return None


@on_each_rank
def keeps_something(output: Any, expected: Any) -> MistakeText:
    first, second = (equal(expected[key], output[key], 0.0) for key in ("slices", SECOND))
    if second or not first:
        return None
    return (
        "returns the right slices of a checkpoint, but not of a newer one in the same folder: does "
        "it keep something between calls?"
    )


@on_each_rank
def returns_views(output: Any) -> MistakeText:
    if not output.get("views"):
        return None
    return (
        "returns a part of a mapped file, not a copy: a newer save changes its values, so copy it "
        "with torch.cat or clone()"
    ), ", ".join(map(repr, output["views"]))


EXERCISE = OnRanks(
    points=4,
    cases=(
        loading_case(3, 1, weight=["float32", 3, 3], bias=["bfloat16", 7]),
        loading_case(3, 4, weight=["float32", 5, 3], bias=["bfloat16", 14]),
        loading_case(12, 4, ", few files", weight=["float32", 8, 3], bias=["float32", 13]),
    ),
    inputs=draw_saved,
    drive=drive,
    tolerance=0.0,
    signs=(NAMED_MISTAKES, opens_another_file, keeps_something, returns_views),
)
