"""Each rank writes its slices to its own file; rank 0 also writes an index.

Before that, the same processes save a smaller state in the same folder.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from autograder.exercise import Case, OnRanks, Plain, equal
from autograder.exercise.budget import Budget, Limit, from_outputs, sent_bytes
from autograder.exercise.signs import MistakeText, on_each_rank, over_budget
from autograder.exercises.lab11_save_resume import shared
from autograder.exercises.lab11_save_resume.shared import INDEX, shard_name
from autograder.guest.on_rank import COMMUNICATION_FUNCTIONS

ZIP_BYTES = 8192  # the most that torch.save adds for names and alignment
INDEX_BYTES = 4096
WRITTEN = "written by a rank"
UNREADABLE = "cannot be read"
OF_ANOTHER_RANK = b"a new file of another rank"


def draw_slices(case: Case, rng: np.random.Generator) -> list[Plain]:
    slices = shared.cut(shared.draw_state(case, rng), case.world_size)
    return [{"slices": own, "shapes": shared.shapes_of(case)} for own in slices]


def drive(subject: Any, given: Any, case: Case) -> Plain:
    """Each rank has its own disk here, so it shows what this rank wrote.

    In the second save, the other ranks' new files are there from the beginning, as if these ranks
    were faster, and again after each collective, as if all ranks wrote after it.
    """
    slices = {}
    for name, own in given["slices"].items():
        whole = own.new_zeros(case.world_size * len(own))  # a slice is a view, as in ZeRO
        whole[: len(own)] = own
        slices[name] = whole[: len(own)]
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        smaller = {name: own[:1].clone() for name, own in slices.items()}
        subject(folder, smaller, {name: [case.world_size] for name in smaller})
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        own_name = shard_name(dist.get_rank(), case.world_size)
        names = {shard_name(rank, case.world_size) for rank in range(case.world_size)} - {own_name}
        others = [folder / name for name in names | ({INDEX} if dist.get_rank() else set())]
        others = [path for path in others if path.name not in before]

        def write_others() -> None:
            saved = folder / own_name
            if saved.is_file() and saved.read_bytes() != before.get(own_name):
                return  # this rank has not waited before it wrote, so the others have not either
            for path in others if folder.is_dir() else ():
                path.write_bytes(OF_ANOTHER_RANK)

        write_others()
        passed = dict(slices)
        with called_after_collectives(write_others):
            subject(folder, slices, given["shapes"])
        lost = [path.name for path in others if not path.is_file()]
        for path in others:
            if path.is_file() and path.read_bytes() == OF_ANOTHER_RANK:
                path.unlink()
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.name: content(path) for path in paths} | {
            "names": [str(path.relative_to(folder)) for path in paths],
            "lost": sorted(lost),
            "changed": [name for name, own in passed.items() if slices.get(name) is not own],
            "kept": [path.name for path in paths if path.read_bytes() == before.get(path.name)],
            "bytes": sum(path.stat().st_size for path in paths),
        }


def called_after_collectives(action: Callable[[], None]) -> Any:
    """A context manager."""

    def with_action(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            returned = function(*args, **kwargs)
            action()
            return returned

        return call

    functions = {name: getattr(dist, name) for name in COMMUNICATION_FUNCTIONS}
    wrapped: dict[str, Any] = {
        name: with_action(each) for name, each in functions.items() if inspect.isfunction(each)
    }
    return mock.patch.multiple(dist, **wrapped)


def content(path: Path) -> Plain:
    try:
        if path.suffix == ".json":
            return json.loads(path.read_text())
        return as_plain(torch.load(path, weights_only=True))
    except Exception as error:
        return f"{UNREADABLE} ({type(error).__name__}: {str(error).partition('. ')[0]})"


def as_plain(value: Any) -> Plain:
    if isinstance(value, dict):
        return {str(name): as_plain(each) for name, each in value.items()}
    return value if isinstance(value, Tensor) else type(value).__name__


def written_limit(case: Case) -> Limit:
    of_slices = ZIP_BYTES + sum(
        getattr(torch, dtype).itemsize * -(-math.prod(shape) // case.world_size)
        for dtype, *shape in case.params["state"].values()
    )
    return Limit([of_slices + INDEX_BYTES] + [of_slices] * (case.world_size - 1))


@on_each_rank
def wrong_files(output: Any, expected: Any) -> MistakeText:
    if output["names"] == expected["names"]:
        return None
    mistake = "does not leave exactly its own files: shard_name(rank, world_size) and, on rank 0, "
    wrote, wanted = (", ".join(each["names"]) or "no file" for each in (output, expected))
    return f"{mistake}{INDEX}", f"{wrote}; expected {wanted}"


SIDE_EFFECTS = {
    "kept": "leaves a file from an earlier save unchanged: a save has to replace it",
    "lost": "removes other ranks' files, which may be new on a shared disk: replace only its own "
    "files, or let all ranks wait after the removal, before any of them writes",
    "changed": "replaces tensors in the caller's dict: save a new dict",
}


@on_each_rank
def side_effect(output: Any) -> MistakeText:
    found = next((key for key in SIDE_EFFECTS if output[key]), None)
    return found and (SIDE_EFFECTS[found], ", ".join(output[found]))


@on_each_rank
def wrong_index(output: Any, expected: Any) -> MistakeText:
    if INDEX not in expected or equal(expected[INDEX], output[INDEX]):
        return None
    mistake = 'does not write {"world_size": the number of ranks, "shapes": the given shapes} to '
    is_unreadable = str(output[INDEX]).startswith(UNREADABLE)
    found = output[INDEX] if is_unreadable else f"it has {output[INDEX]}"
    return f"{mistake}{INDEX} as JSON", found


@on_each_rank
def other_content(output: Any, rank: int, case: Case) -> MistakeText:
    saved = output[shard_name(rank, case.world_size)]
    tensors = saved.values() if isinstance(saved, dict) else [saved]
    wrong = [each for each in tensors if not isinstance(each, Tensor)]
    return ("does not save {name: tensor} with torch.save", str(wrong[0])) if wrong else None


SMALL = {"weight": ["float32", 5, 6], "bias": ["float64", 5]}
LARGE = {"weight": ["bfloat16", 250, 400], "momentum": ["float32", 200000]}

EXERCISE = OnRanks(
    points=3,
    cases=(
        Case("4 ranks, two tensors", 4, {"state": SMALL}),
        Case("2 ranks, 1 MB", 2, {"state": LARGE}),
    ),
    inputs=draw_slices,
    drive=drive,
    tolerance=1e-9,  # the same numbers
    budgets=(
        Budget("sends ≤ 4 KiB per rank", sent_bytes, lambda case: Limit(4096)),
        Budget(
            "writes its slices' bytes and ≤ 8 KiB more",
            from_outputs("bytes"),
            written_limit,
            WRITTEN,
        ),
    ),
    signs=(
        wrong_files,
        side_effect,
        wrong_index,
        other_content,
        over_budget(
            WRITTEN,
            "writes more than its slices: a slice is a view, and torch.save writes all of a view's "
            "storage; clone() it first",
        ),
    ),
)
