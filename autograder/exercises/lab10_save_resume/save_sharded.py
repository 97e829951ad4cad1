"""Each rank writes its slices to its own file; rank 0 also writes an index.

Before that, the same processes save a smaller state in the same folder.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from autograder.exercise import Attempt, Case, Finding, OnRanks, Plain, equal
from autograder.exercise.budget import Budget, Limit, from_outputs, sent_bytes
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab10_save_resume import shared
from autograder.exercises.lab10_save_resume.shared import INDEX, shard_name
from autograder.guest.on_rank import COMMUNICATION_FUNCTIONS

ZIP_BYTES = 8192  # the most that torch.save adds for names and alignment
INDEX_BYTES = 4096
BARRIER_BYTES = 4096
WRITTEN = "written by a rank"
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


@contextlib.contextmanager
def called_after_collectives(action: Callable[[], None]) -> Iterator[None]:
    module: Any = dist
    names = {name for name in COMMUNICATION_FUNCTIONS if inspect.isfunction(getattr(dist, name))}
    functions = {name: getattr(dist, name) for name in names}

    def with_action(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            returned = function(*args, **kwargs)
            action()
            return returned

        return call

    for name, function in functions.items():
        setattr(module, name, with_action(function))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(module, name, function)


def content(path: Path) -> Plain:
    try:
        if path.suffix == ".json":
            return json.loads(path.read_text())
        return as_plain(torch.load(path, weights_only=True))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition('. ')[0]}"


def as_plain(value: Any) -> Plain:
    if isinstance(value, dict):
        return {str(name): as_plain(each) for name, each in value.items()}
    return value if isinstance(value, Tensor) else type(value).__name__


def slice_bytes(case: Case) -> int:
    return sum(
        getattr(torch, dtype).itemsize * -(-math.prod(shape) // case.world_size)
        for dtype, *shape in case.params["state"].values()
    )


def written_limit(case: Case) -> Limit:
    of_slices = slice_bytes(case) + ZIP_BYTES
    return Limit([of_slices + INDEX_BYTES] + [of_slices] * (case.world_size - 1))


LABEL = "writes its slices' bytes and ≤ 8 KiB more"
OWN_SLICES = Budget(LABEL, from_outputs("bytes"), written_limit, WRITTEN)


@on_each_rank
def one_saves_for_all(output: Any, attempt: Attempt) -> MistakeText:
    writers = [each for each in attempt.outputs if each["names"]]
    if output["names"] or len(writers) != 1:
        return None
    writer = next(r for r, each in enumerate(attempt.outputs) if each["names"])
    mistake = "writes nothing into folder: each rank should write its own slices to its own file"
    return mistake, f"only rank {writer} writes: {', '.join(writers[0]['names'])}"


@on_each_rank
def one_name_twice(output: Any, rank: int, attempt: Attempt) -> Any:
    first = {name: r for r in reversed(range(rank)) for name in attempt.outputs[r]["names"]}
    name = next((name for name in output["names"] if name in first), None)
    if name is None:
        return None
    if name == INDEX:
        mistake = f"writes {INDEX} as well: N ranks would write the same file at the same time"
        return Finding(f"rank {rank}", mistake, who_if_hidden="a rank other than 0")
    mistake = f"writes the same file name as rank {first[name]}: on a shared disk the last one "
    return f"{mistake}overwrites the others' slices", name


@on_each_rank
def wrong_name(output: Any, rank: int, case: Case) -> MistakeText:
    if shard_name(rank, case.world_size) in output["names"]:
        return None
    written = ", ".join(output["names"]) or "no file"
    return "does not write shard_name(rank, world_size)", written


@on_each_rank
def keeps_an_earlier_file(output: Any) -> MistakeText:
    if not output["kept"]:
        return None
    mistake = "leaves a file from an earlier save unchanged: a save has to replace it"
    return mistake, ", ".join(output["kept"])


@on_each_rank
def removes_others_files(output: Any) -> MistakeText:
    if not output["lost"]:
        return None
    mistake = "removes other ranks' files, which may be new on a shared disk: replace only its own "
    mistake += "files, or let all ranks wait after the removal, before any of them writes"
    return mistake, ", ".join(output["lost"])


@on_each_rank
def changes_slices(output: Any) -> MistakeText:
    if not output["changed"]:
        return None
    return "replaces tensors in the caller's dict: save a new dict", ", ".join(output["changed"])


@on_each_rank
def wrong_index(rank: int, attempt: Attempt) -> Any:
    wanted, got = (each[rank].get(INDEX) for each in (attempt.expected, attempt.outputs))
    if wanted is None or equal(wanted, got):
        return None
    mistake = f'does not record the given shapes under "shapes" in {INDEX}'
    mistake += ": without them you cannot tell padding from data"
    if got is None:
        mistake = f"writes no {INDEX}"
    elif isinstance(got, str):  # an error
        return f"writes an {INDEX} that cannot be read as JSON", got
    elif not isinstance(got, dict) or got.get("world_size") != wanted["world_size"]:
        mistake = f'does not record the number of ranks under "world_size", as an int, in {INDEX}'
        mistake += ": another number of ranks may load it"
    evidence = "" if got is None else f"it has {got}"
    return Finding(f"rank {rank}", mistake, evidence, who_if_hidden="rank 0")


@on_each_rank
def other_files(output: Any, expected: Any) -> MistakeText:
    others = set(output["names"]) - set(expected["names"])
    if not others:
        return None
    return "leaves files that the task does not name", ", ".join(sorted(others))


@on_each_rank
def other_content(output: Any, rank: int, case: Case) -> MistakeText:
    saved = output.get(shard_name(rank, case.world_size))
    wrong = [saved] if isinstance(saved, str) else []
    if isinstance(saved, dict):
        wrong = [each for each in saved.values() if not isinstance(each, Tensor)]
    return ("does not save {name: tensor} with torch.save", str(wrong[0])) if wrong else None


@on_each_rank
def whole_storage(output: Any, rank: int, expected: Any, case: Case) -> MistakeText:
    """The right tensors, but with the bytes of the views' whole storage."""
    more = (case.world_size - 1) * slice_bytes(case)
    limit = written_limit(case).most
    assert isinstance(limit, list)
    if not limit[rank] < output["bytes"] <= limit[rank] + more:
        return None
    if output["bytes"] < more or not equal(expected, output):
        return None
    return (
        "writes more than its slices: a slice is a view, and torch.save writes all of a view's "
        "storage; clone() it first",
        f"{output['bytes']:,} bytes, {int(limit[rank]):,} are enough",
    )


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
        Budget("sends ≤ 4 KiB per rank", sent_bytes, lambda case: Limit(BARRIER_BYTES)),
        OWN_SLICES,
    ),
    signs=(
        one_saves_for_all,
        one_name_twice,
        wrong_name,
        keeps_an_earlier_file,
        removes_others_files,
        changes_slices,
        wrong_index,
        other_files,
        other_content,
        whole_storage,
    ),
)
